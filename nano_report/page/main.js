// Where the reader is, in the address behind the #; the slider and the keys.

const VIEWS = { run: ["Run", runView], step: ["Step", stepView], group: ["Group", groupView] };
const USED = { run: ["problem"], step: ["step"], group: ["step", "group", "completion", "token"] };
const state = { view: "run", step: 0, group: 1, completion: 0, token: 0, problem: 0 };

/** The address of a place. */
function hashOf(changes) {
  const next = { ...state, token: 0, ...changes };
  const used = USED[next.view].filter((name) => next[name] || name === "step");
  const parts = used.map((name) => `${name}=${next[name]}`);
  if (next.view === "run") parts.unshift("run");
  return `#${parts.join("&")}`;
}

/** The place that an address names; what makes no sense in it is left out. */
function placeAt(hash) {
  const found = new URLSearchParams(hash.slice(1));
  const place = { completion: 0, token: 0 };
  for (const name of Object.keys(state))
    if (/^\d{1,9}$/.test(found.get(name))) place[name] = Number(found.get(name));
  place.view = ["group", "step"].find((view) => found.has(view)) ?? "run";
  if (found.has("step")) place.step = nearest(place.step);
  return place;
}

/** The step in the file that is nearest to one that may not be. */
function nearest(step, steps = report.steps) {
  const closer = (a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a);
  return steps.reduce(closer, steps[0] ?? 0);
}

/** Go to another place; it enters the browser's history only if the view changes. */
function go(changes) {
  const other = changes.view && changes.view !== state.view;
  const place = { ...state, token: 0, ...changes };
  try {
    history[other ? "pushState" : "replaceState"](null, "", hashOf(place));
  } catch {
    // A notebook's frame may have no address.
  }
  return move(place, other);
}

let drawing = 0; // number of the newest drawing: an older one that waits for its data is dropped

async function move(place, toTop = false) {
  const mine = ++drawing;
  Object.assign(state, place);
  const step = state.view === "run" ? null : await loadStep(state.step);
  if (mine !== drawing) return;
  hideTooltip();
  telling += 1; // a story that is being told stops
  draw(step);
  for (const link of $("views").children) {
    link.href = hashOf({ view: link.dataset.view });
    link.ariaCurrent = link.dataset.view === state.view ? "page" : "false";
  }
  const reached = stepsOfView();
  const at = { max: reached.length - 1, value: reached.indexOf(nearest(state.step, reached)) };
  Object.assign($("slider"), at, { ariaValueText: `step ${state.step}` });
  $("at").textContent = state.step;
  $("stepper").hidden = state.view === "run"; // the run is all of its steps
  if (toTop) scrollTo(0, 0);
  if (state.token) moveToken(0);
  document.documentElement.dataset.drawn = String(mine); // for tests
}

/** The view from nothing, with the focus where it was. */
function draw(step) {
  const view = $("view");
  const [name, value] = Object.entries(document.activeElement.dataset)[0] ?? [];
  view.replaceChildren(...[VIEWS[state.view][1](step)].flat(9).filter(Boolean));
  if (name) view.querySelector(`[data-${name}="${CSS.escape(value)}"]`)?.focus();
}

/** The steps that the slider and the arrows reach: in a group those with recorded tokens. */
function stepsOfView() {
  const recorded = state.view === "group" && report.tokenSteps.length;
  return recorded ? report.tokenSteps : report.steps;
}

/** To another step. Each step draws other problems, so a group leads to that step's best one. */
function goToStep(step) {
  return go({ step, group: report.best[step] || 1, completion: 0 });
}

function moveStep(by) {
  const steps = stepsOfView();
  const later = (step) => step > state.step;
  const earlier = (step) => step < state.step;
  const next = by > 0 ? steps.find(later) : steps.findLast(earlier);
  if (state.view !== "run" && next !== undefined) goToStep(next);
}

async function moveGroup(by) {
  const step = await loadStep(state.step);
  const last = step?.groups.length ?? 1;
  const group = Math.min(last, Math.max(1, state.group + by));
  go({ view: "group", group, completion: 0 });
}

/** Show the token of the address, or one before or after it, with its numbers. */
function moveToken(by) {
  const tokens = document.querySelectorAll("tr.current .recorded .token");
  state.token = Math.min(tokens.length, Math.max(1, state.token + by));
  const token = tokens[state.token - 1];
  if (!token) return;
  document.querySelector(".token.at")?.classList.remove("at");
  token.classList.add("at");
  token.scrollIntoView({ block: by ? "nearest" : "center" });
  showTooltip(token, tokenFacts(token));
}

const KEYS = {
  ArrowLeft: [
    "←",
    "the previous step; in a group, the previous with recorded tokens",
    moveStep,
    -1,
  ],
  ArrowRight: ["→", "the next step", moveStep, 1],
  "]": ["]", "the next token, with its numbers", moveToken, 1],
  "[": ["[", "the previous token", moveToken, -1],
  r: ["r", "the run", go, { view: "run" }],
  s: ["s", "the step", go, { view: "step" }],
  g: ["g", "the group", go, { view: "group" }],
  "?": ["?", "this list", () => $("help").showModal()],
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || !report) return;
  if (event.target.matches("input") && event.key.startsWith("Arrow")) return; // its own
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  const [, , action, argument] = KEYS[event.key];
  action(argument);
});

async function begin() {
  if (typeof DecompressionStream === "undefined")
    throw new Error("it needs a browser from 2024 or later");
  await loadReport();
  [state.step, state.group] = report.start; // the group that shows most
  for (const [view, [label]] of Object.entries(VIEWS))
    $("views").append(h("a", { "data-view": view, href: "#" }, label));
  for (const [key, what] of Object.values(KEYS))
    $("keys").append(h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)));
  $("help-button").onclick = () => $("help").showModal();
  $("back").onclick = () => moveStep(-1);
  $("forward").onclick = () => moveStep(1);
  $("slider").oninput = ({ target }) => goToStep(stepsOfView()[target.valueAsNumber]);
  if (report.steps.length < report.recorded) $("choice").textContent = shown();
  addEventListener("hashchange", () => move(placeAt(location.hash)));
  document.addEventListener("click", (event) => {
    const { target } = event;
    if (target.matches?.(".recorded .token")) showTooltip(target, tokenFacts(target));
    else if (!target.closest?.("[data-tip]")) hideTooltip();
    const link = target.closest?.('a[href^="#"]'); // also in a frame that has no address
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(placeAt(link.getAttribute("href")));
  });
  await move(placeAt(location.hash));
}

begin().catch((error) => {
  $("view").replaceChildren(h("p", {}, `This report cannot be shown: ${error.message}.`));
  throw error;
});
