// The keys, and the moves that they and the buttons make.

const moveStep = (by) => {
  const next = report.steps[report.steps.indexOf(state.step) + by];
  if (next !== undefined) go({ step: next });
};
/** To the next step, or the one before, whose tokens are recorded. */
const moveRecorded = (by) => {
  const next = by > 0 ? report.tokenSteps.find((step) => step > state.step) : report.tokenSteps.findLast((step) => step < state.step);
  if (next !== undefined) go({ step: next });
};
const groupsHere = () => Promise.all(report.runs.map((run) => loadStep(run, state.step))).then((steps) => Math.max(0, ...steps.map((s) => s?.groups.length ?? 0)));
const moveGroup = async (by) => {
  const last = await groupsHere();
  go({ view: "group", group: Math.min(last, Math.max(1, state.view === "group" ? state.group + by : state.group)), completion: 1 });
};
const moveCompletion = async (by) => {
  if (state.view !== "group") return go({ view: "group", completion: 1 });
  const n = Math.max(...report.runs.map((run) => run.groupSize));
  state.completion = Math.min(n, Math.max(1, state.completion + by));
  await go({});
  const card = document.querySelector(".completion.current");
  card?.focus({ preventScroll: true });
  card?.scrollIntoView({ block: "nearest" });
};

/** The token that a link names, with its numbers beside it. */
function showToken() {
  const token = document.querySelectorAll(".completion.current .tokens:not(.plain) .token")[state.token - 1];
  if (!token) return;
  token.classList.add("at");
  token.scrollIntoView({ block: "center" });
  tooltip.show(token, tokenFacts(token));
}

/** To the next token of the current completion, with its numbers beside it. */
function moveToken(by) {
  const tokens = [...document.querySelectorAll(".completion.current .tokens:not(.plain) .token")];
  if (!tokens.length) return;
  const at = tokens.findIndex((token) => token.matches(".at")), next = Math.min(tokens.length - 1, Math.max(0, at + by));
  tokens[at]?.classList.remove("at");
  tokens[next].classList.add("at");
  tokens[next].scrollIntoView({ block: "nearest" });
  tooltip.show(tokens[next], tokenFacts(tokens[next]));
}

const KEYS = {
  ArrowLeft: [() => moveStep(-1), "←", "the step before"],
  ArrowRight: [() => moveStep(1), "→", "the next step"],
  t: [() => moveRecorded(1), "t", "the next step whose tokens are recorded"],
  T: [() => moveRecorded(-1), "T", "the one before"],
  n: [() => moveCompletion(1), "n", "the next completion"],
  p: [() => moveCompletion(-1), "p", "the completion before"],
  N: [() => moveGroup(1), "N", "the next group"],
  P: [() => moveGroup(-1), "P", "the group before"],
  "]": [() => moveToken(1), "]", "the next token, with its numbers"],
  "[": [() => moveToken(-1), "[", "the token before"],
  Escape: [() => tooltip.hide(), "Esc", "hide what the pointer has shown"],
  r: [() => go({ view: "run" }), "r", "the run"],
  s: [() => go({ view: "step" }), "s", "the step"],
  g: [() => go({ view: "group" }), "g", "the group"],
  h: [() => go({ view: "problems" }), "h", "the held-out problems"],
  c: [() => { const names = Object.keys(COLOURS); go({ colour: names[(names.indexOf(state.colour) + 1) % names.length] }); }, "c", "colour tokens by something else"],
  "?": [() => $("help").showModal(), "?", "this list"],
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || !report) return;
  const own = event.target.matches("#slider") ? event.key.startsWith("Arrow") : event.target.matches("input, select");
  if (own) return; // the field that is being edited
  if (Object.hasOwn(KEYS, event.key)) {
    event.preventDefault();
    KEYS[event.key][0]();
  }
});
