// Where the reader is, in the address behind the #; the slider, the two themes.

const VIEWS = { run: ["Run", runView], step: ["Step", stepView], group: ["Group", groupView], problems: ["Problems", problemsView] };
const state = { view: "run", step: 0, group: 1, completion: 1, token: 0, problem: 1, filter: "all", sort: "number", colour: "update" };
const START = { ...state };
const $ = (id) => document.getElementById(id);

/** The address of a place: what differs from the beginning, and the view. */
function hashOf(changes) {
  const next = { ...state, token: 0, ...changes }, parts = []; // a token is linked to, and left again
  const used = { run: ["step"], step: ["step", "filter", "sort"], group: ["step", "group", "completion", "token", "colour"], problems: ["problem", "step"] }[next.view];
  if (next.view === "run") parts.push("run");
  if (next.view === "problems") parts.push("problems");
  for (const name of used) if (["step", "group"].includes(name) || next[name] !== START[name]) parts.push(`${name}=${next[name]}`);
  return `#${parts.join("&")}`;
}

/** The place that an address names; what it does not name stays as it is, what makes no sense is left out. */
function placeOf(hash) {
  const found = new URLSearchParams(hash.replace(/^#/, "")), place = {};
  place.token = 0;
  for (const name of ["step", "group", "completion", "token", "problem"]) {
    const number = parseInt(found.get(name), 10);
    if (number >= (name === "step" ? 0 : 1)) place[name] = number;
  }
  if (Object.hasOwn(FILTERS, found.get("filter"))) place.filter = found.get("filter");
  if (Object.hasOwn(SORTS, found.get("sort"))) place.sort = found.get("sort");
  if (Object.hasOwn(COLOURS, found.get("colour"))) place.colour = found.get("colour");
  place.view = found.has("problems") ? "problems" : found.has("run") ? "run" : found.has("group") ? "group" : found.has("step") ? "step" : "run";
  if (place.step !== undefined) place.step = nearest(place.step);
  return place;
}

/** The step in the file that is nearest to one that may not be. */
const nearest = (step) => report.steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a), report.steps[0] ?? 0);

/** Go to another place; it enters the history of the browser only where the view changes. */
function go(changes) {
  const hash = hashOf(changes), other = changes.view && changes.view !== state.view;
  const place = { ...state, ...changes };
  try { history[other ? "pushState" : "replaceState"](null, "", hash); } catch { /* a notebook's frame may have no address */ }
  return move(place, other);
}

let drawing = 0; // number of the newest drawing: an older one that has to wait for its data is dropped

async function move(place, toTop = false) {
  const stepAlone = place.step !== state.step && $("view").dataset.view === "run" && place.view === "run";
  Object.assign(state, place);
  const mine = ++drawing;
  const { view } = state;
  const steps = view === "step" || view === "group" ? await Promise.all(report.runs.map((run) => loadStep(run, state.step))) : [];
  if (mine !== drawing) return;
  tooltip.hide();
  if (stepAlone) charts.forEach(markAgain); // of the run only the mark in the curves changes; a zoom stays
  else draw(view, steps);
  for (const link of $("views").children) {
    const own = link.dataset.view;
    link.href = hashOf({ view: own });
    if (own === view) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const at = report.steps.indexOf(state.step);
  Object.assign($("slider"), { value: Math.max(0, at) });
  $("slider").setAttribute("aria-valuetext", `step ${state.step}${report.tokenSteps.includes(state.step) ? ", with its tokens" : ""}`);
  $("at").textContent = state.step;
  $("back").disabled = at <= 0;
  $("forward").disabled = at < 0 || at >= report.steps.length - 1;
  if (toTop) scrollTo(0, 0);
  if (view === "group" && state.token) showToken();
  document.documentElement.dataset.drawn = String(mine); // for tests
}

/** The view from nothing, with the focus where it was. */
function draw(view, steps) {
  const element = document.activeElement, again = element && $("view").contains(element) ? keyOf(element) : null;
  $("view").replaceChildren(...VIEWS[view][1](steps).flat().filter(Boolean));
  $("view").dataset.view = view;
  if (again) $("view").querySelector(again)?.focus();
}

/** How to find a control again after the view is drawn anew. */
function keyOf(element) {
  for (const name of ["filter", "sort", "colour", "problem"]) {
    if (name in element.dataset) return `[data-${name}="${element.dataset[name]}"]`;
  }
  return null;
}

/** Light or dark: the reader's choice, else the system's. */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "light" : "dark";
  $("theme").setAttribute("aria-label", `${theme === "dark" ? "light" : "dark"} theme`);
}

/** The last step that all runs have with tokens, else with completions, else the last of any. */
function openingStep() {
  const shared = (steps) => report.steps.findLast((step) => report.runs.every((run) => steps(run).includes(step)));
  return shared((run) => run.tokenSteps) ?? shared((run) => run.steps) ?? report.tokenSteps.at(-1) ?? report.steps.at(-1) ?? 0;
}

async function begin() {
  if (typeof DecompressionStream === "undefined") throw new Error("it needs a browser of 2023 or newer");
  await loadReport();
  START.step = state.step = openingStep();
  const opening = await loadStep(report.runs[0], START.step);
  START.group = state.group = 1 + Math.max(0, opening ? opening.groups.findIndex((group) => !group.noSignal) : 0);
  const recorded = report.runs.some((run) => run.vocabulary.length);
  START.colour = state.colour = recorded ? "update" : "advantage";
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  $("theme").onclick = () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); move({}); };
  $("views").append(...Object.entries(VIEWS).map(([view, [label]]) => h("a", { "data-view": view, href: "#" }, label)));
  $("keys").append(...Object.values(KEYS).map(([, key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))));
  $("help-button").onclick = () => $("help").showModal();
  $("back").onclick = () => moveStep(-1);
  $("forward").onclick = () => moveStep(1);
  Object.assign($("slider"), { max: Math.max(0, report.steps.length - 1), disabled: report.steps.length < 2 });
  $("slider").oninput = ({ target }) => go({ step: report.steps[target.valueAsNumber] });
  $("recorded").append(...report.tokenSteps.map((step) => h("span", { style: { left: `${(100 * report.steps.indexOf(step)) / Math.max(1, report.steps.length - 1)}%` } })));
  $("names").replaceChildren(...report.runs.map((run, i) => h("span", {}, report.runs.length > 1 ? [runTag(i), " "] : null, run.name)));
  $("choice").textContent = report.runs.map((run) => (run.steps.length === run.recorded ? "" : `${run.name}: ${stepsInFile(run)}`)).filter(Boolean).join(" ");
  addEventListener("hashchange", () => move(placeOf(location.hash)));
  addEventListener("popstate", () => move(placeOf(location.hash)));
  document.addEventListener("click", (event) => { // links within the page, also in a frame that has no address
    const link = event.target instanceof Element && event.target.closest('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(placeOf(link.getAttribute("href")));
  });
  await move(placeOf(location.hash));
  if (state.view === "group" && state.completion > 1) document.querySelector(".completion.current")?.scrollIntoView({ block: "nearest" });
}

begin().catch((error) => {
  $("view").replaceChildren(h("p", { class: "note" }, `This report cannot be shown: ${error.message}.`));
  throw error;
});
