// Where the reader is, in the address behind the #; the slider and the keys.

const VIEWS = { run: ["Run", runView], step: ["Step", stepView], group: ["Group", groupView] };
const USED = { run: ["problem"], step: ["step", "filter"], group: ["step", "group", "completion", "token"] }; // by the views
const state = { view: "run", step: 0, group: 1, completion: 0, token: 0, problem: 0, filter: "all" };
const START = {}; // the place at which the report opens

/** The address of a place. */
function hashOf(changes) {
  const next = { ...state, token: 0, ...changes }; // a token is linked to, and left again
  const parts = USED[next.view].filter((name) => ["step", "group"].includes(name) || next[name] !== START[name]);
  return `#${[next.view === "run" ? ["run"] : [], parts.map((name) => `${name}=${next[name]}`)].flat().join("&")}`;
}

/** The place that an address names; what makes no sense in it is left out. */
function placeOf(hash) {
  const found = new URLSearchParams(hash.slice(1)), place = { token: 0 };
  for (const name of ["step", "group", "completion", "token", "problem"]) if (/^\d{1,9}$/.test(found.get(name))) place[name] = Number(found.get(name));
  if (Object.hasOwn(FILTERS, found.get("filter"))) place.filter = found.get("filter");
  place.view = found.has("run") ? "run" : found.has("group") ? "group" : found.has("step") ? "step" : "run";
  if (found.has("step")) place.step = nearest(place.step);
  return place;
}

/** The step in the file that is nearest to one that may not be. */
const nearest = (step, steps = report.steps) => steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a), steps[0] ?? 0);

/** Go to another place; it enters the history of the browser only if the view changes. */
function go(changes) {
  const other = changes.view && changes.view !== state.view;
  try { history[other ? "pushState" : "replaceState"](null, "", hashOf(changes)); } catch { /* a notebook's frame may have no address */ }
  return move({ ...state, ...changes }, other);
}

let drawing = 0; // number of the newest drawing: an older one that has to wait for its data is dropped

async function move(place, toTop = false) {
  const stayed = $("view").dataset.view === "run" && place.view === "run", mine = ++drawing;
  const problemAlone = stayed && place.problem !== state.problem;
  Object.assign(state, place);
  const steps = state.view === "run" ? [] : await Promise.all(report.runs.map((run) => loadStep(run, state.step)));
  if (mine !== drawing) return;
  hideTooltip();
  telling += 1; // a story that is being told stops
  // Of the run only the problem changes; a zoom of the curves stays.
  if (problemAlone) document.querySelectorAll(".problems").forEach((section, i) => section.replaceWith(problemsOf(report.runs[i])));
  else draw(steps);
  for (const link of $("views").children) {
    link.href = hashOf({ view: link.dataset.view });
    link.ariaCurrent = link.dataset.view === state.view ? "page" : "false";
  }
  $("slider").value = Math.max(0, report.steps.indexOf(state.step));
  $("slider").ariaValueText = `step ${state.step}`;
  $("at").textContent = state.step;
  $("stepper").hidden = state.view === "run"; // the run is all of its steps
  if (toTop) scrollTo(0, 0);
  if (state.view === "group" && state.token) moveToken(0);
  document.documentElement.dataset.drawn = String(mine); // for tests
}

/** The view from nothing, with the focus where it was. */
function draw(steps) {
  const view = $("view"), [name, value] = Object.entries(document.activeElement.dataset)[0] ?? [];
  view.replaceChildren(...VIEWS[state.view][1](steps).flat(9).filter(Boolean));
  view.dataset.view = state.view;
  if (name) view.querySelector(`[data-${name}="${CSS.escape(value)}"]`)?.focus();
}

// ---- The keys

/** In a group to the next step whose tokens are recorded, in the view of a step to the next one. */
function moveStep(by) {
  if (state.view === "run") return;
  const steps = state.view === "group" && report.tokenSteps.length ? report.tokenSteps : report.steps;
  const next = by > 0 ? steps.find((step) => step > state.step) : steps.findLast((step) => step < state.step);
  return next === undefined ? null : go({ step: next });
}

/** The slider: in a group only recorded steps, and from each at least to the next one. */
function slide(step) {
  if (state.view !== "group" || !report.tokenSteps.length) return go({ step });
  const near = nearest(step, report.tokenSteps);
  return near === state.step && step !== near ? moveStep(step - near) : go({ step: near });
}

async function moveGroup(by) {
  const steps = await Promise.all(report.runs.map((run) => loadStep(run, state.step))), last = Math.max(...steps.map((step) => step?.groups.length ?? 1));
  go({ view: "group", group: Math.min(last, Math.max(1, state.group + by)), completion: 0 });
}

async function moveCompletion(by) {
  if (state.view !== "group") await go({ view: "group" });
  const rows = [...document.querySelectorAll(".attempts tbody tr")], at = rows.findIndex((row) => row.classList.contains("current"));
  await go({ completion: Number(rows[Math.min(rows.length - 1, Math.max(0, at + by))].dataset.completion) });
  document.querySelector(".attempts .current")?.focus();
}

/** Show the token of the address, or one before or after it, with its numbers. */
function moveToken(by) {
  const tokens = document.querySelectorAll(".attempts .current .recorded .token");
  state.token = Math.min(tokens.length, Math.max(1, state.token + by));
  const token = tokens[state.token - 1];
  if (!token) return;
  document.querySelector(".token.at")?.classList.remove("at");
  token.classList.add("at");
  token.scrollIntoView({ block: by ? "nearest" : "center" });
  showTooltip(token, tokenFacts(token, true));
}

const KEYS = {
  ArrowLeft: ["←", "the previous step; in a group, the previous step with recorded tokens", () => moveStep(-1)],
  ArrowRight: ["→", "the next step; in a group, the next step with recorded tokens", () => moveStep(1)],
  n: ["n", "the next attempt", () => moveCompletion(1)],
  p: ["p", "the previous attempt", () => moveCompletion(-1)],
  N: ["N", "the next group", () => moveGroup(1)],
  P: ["P", "the previous group", () => moveGroup(-1)],
  "]": ["]", "the next token, with its numbers", () => moveToken(1)],
  "[": ["[", "the previous token", () => moveToken(-1)],
  r: ["r", "the run", () => go({ view: "run" })],
  s: ["s", "the step", () => go({ view: "step" })],
  g: ["g", "the group", () => go({ view: "group" })],
  "?": ["?", "this list", () => $("help").showModal()],
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || !report) return;
  if (event.target.matches("#slider") && event.key.startsWith("Arrow")) return; // its own
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key][2]();
});

async function begin() {
  $("view").append(h("p", { class: "note" }, "Unpacking …"));
  if (typeof DecompressionStream === "undefined") throw new Error("it needs a browser from 2023 or later");
  await loadReport();
  // The report opens at the group that shows best what an update does; if no tokens were recorded, at the last step.
  const [run] = report.runs;
  [state.step, state.group] = run.start;
  Object.assign(START, state);
  $("views").append(...Object.entries(VIEWS).map(([view, [label]]) => h("a", { "data-view": view, href: "#" }, label)));
  $("keys").append(...Object.values(KEYS).map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))));
  $("help-button").onclick = () => $("help").showModal();
  $("back").onclick = () => moveStep(-1);
  $("forward").onclick = () => moveStep(1);
  const last = Math.max(0, report.steps.length - 1);
  Object.assign($("slider"), { max: last, disabled: !last, oninput: ({ target }) => slide(report.steps[target.valueAsNumber]) });
  $("recorded").append(...report.tokenSteps.map((step) => h("span", { style: { left: `${(100 * report.steps.indexOf(step)) / (last || 1)}%` } })));
  $("choice").textContent = report.runs.filter((one) => one.steps.length < one.recorded).map((one) => `${one.name}: ${stepsInFile(one)}`).join(" ");
  document.addEventListener("theme", () => move({ ...state })); // the curves have its colours
  document.addEventListener("click", ({ target }) => {
    if (target.matches?.(".recorded .token")) showTooltip(target, tokenFacts(target, true));
    else if (!target.closest?.("[data-tip]")) hideTooltip();
  });
  addEventListener("hashchange", () => move(placeOf(location.hash)));
  document.addEventListener("click", (event) => { // links within the page, also in a frame that has no address
    const link = event.target.closest?.('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(placeOf(link.getAttribute("href")));
  });
  await move(placeOf(location.hash));
}

begin().catch((error) => {
  $("view").replaceChildren(h("p", { class: "note" }, `This report cannot be shown: ${error.message}.`));
  throw error;
});
