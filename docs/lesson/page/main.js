// The page as a whole: the group on top, which attempt is followed, keys, themes, links.

/** What became of an attempt, with a sign of its own. */
function verdict(attempt) {
  if (attempt.answer === 1) return ["✓", "right"];
  if (attempt.finish === "length") return ["✂", "cut off"];
  return attempt.format === 1 ? ["≠", "well-formed, wrong"] : ["✗", "no valid answer"];
}

function follow(k) {
  state.follow = state.follow === k ? null : k;
  drawAll();
}

function drawFollow() {
  const button = (k, label, title) => h("button", { type: "button", "aria-pressed": state.follow === k, title, onclick: () => {
    if (state.follow !== k) follow(k);
  } }, label);
  document.getElementById("follow").replaceChildren(
    h("span", { class: "label" }, "follow"), button(null, "all", "the whole step"),
    ...page.attempts.map((attempt, k) => button(k, [String(k + 1), h("span", { class: "glyph" }, verdict(attempt)[0])], `attempt ${k + 1}: ${verdict(attempt)[1]}`)));
}

const chance = (logProb) => `${(100 * Math.exp(logProb)).toPrecision(3)}%`;
const meanOf = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** The group: its question, its eight attempts, and what became of the one that is followed. */
function drawStory() {
  const rewards = page.attempts.map((one) => one.reward), most = Math.max(...rewards, 1);
  const list = h("ol", { class: "attempts" }, page.attempts.map((attempt, k) => h("li", {},
    h("button", { type: "button", "aria-pressed": state.follow === k, "data-attempt": k, onclick: () => follow(k) },
      h("span", { class: "place" }, MARKS[k]), h("span", { class: "what" }, verdict(attempt).join(" ")),
      h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: `width: ${hidden("reward") ? 0 : 100 * attempt.reward / most}%` })),
      h("span", { class: "amount" }, hidden("reward") ? "reward ?" : `reward ${digits(attempt.reward)}`, h("small", {}, `${attempt.ids.length} tokens`))))));
  const children = [h("h2", {}, `Group ${page.group} of step ${page.step}: ${page.size} attempts at one question`), h("p", { class: "problem" }, words(page.prompt).trim()), list];
  if (state.follow !== null) children.push(attemptElement(page.attempts[state.follow], state.follow));
  else children.push(h("p", { class: "note" }, "Choose an attempt, here or with the keys 1 to 8: every line then shows its row alone."));
  document.getElementById("story").replaceChildren(...children);
}

function attemptElement(attempt, k) {
  const fact = (label, value, name) => {
    const asked = hidden(name), link = asked ? asked.line : lines[name];
    const where = asked ? `predict first: line ${link}` : `line ${link}`;
    return h("div", {}, h("dt", {}, label), h("dd", {}, h("span", {}, asked ? "?" : value),
      link ? h("a", { href: `#L${link}` }, where) : null));
  };
  const run = page.facts[state.run][k], lines = page.lines;
  const before = meanOf(run.before), after = meanOf(run.after), moved = run.after.map((x, i) => Number((x - run.before[i]).toPrecision(3)));
  const tokens = tokenRow(k, moved);
  tokens.classList.add("moved");
  const change = [h("p", { class: "note" }, "How the step has moved the log-prob of each token (▲ likelier, ▼ less likely):"), tokens];
  return h("div", { class: "attempt", "data-followed": k },
    h("pre", { class: "said", tabindex: 0 }, attempt.text),
    h("dl", { class: "facts" },
      fact("reward", `${digits(run.reward)}: ${attempt.why || verdict(attempt)[1]}`, "reward"),
      fact("advantage", digits(run.advantage), "advantage"),
      run.ratio === null ? null : fact("ratio, before the step", digits(run.ratio), "ratio"),
      fact("its part of the loss", digits(run.loss), "loss"),
      fact("chance of a token, on (geometric) average", `${chance(before)} → ${chance(after)}`, "after")),
    hidden("after") ? null : change);
}

function drawRuns() {
  const holder = document.getElementById("runs");
  if (!holder) return;
  holder.replaceChildren(h("div", { class: "runs", role: "group", "aria-label": "which relative" }, page.runs.map((run, i) => h("button", {
    type: "button", "aria-pressed": state.run === i, onclick: () => { state.run = i; indexCalls(); drawAll(); } }, run.name))), comparison());
}

/** One row for each relative: what it makes of the same step. */
function comparison() {
  const k = state.follow ?? page.shown, base = page.runs[0], firstFacts = page.facts[0][k];
  const cell = (text, differs) => h("td", differs ? { "data-differs": true } : {}, text, differs ? h("span", { class: "differs" }, " ≠") : "");
  const row = (run, i) => {
    const own = page.facts[i][k], first = firstFacts, numbers = [own.reward, own.advantage, own.loss, meanOf(own.after) - meanOf(own.before), run.total];
    const others = [first.reward, first.advantage, first.loss, meanOf(first.after) - meanOf(first.before), base.total];
    return h("tr", { "aria-current": state.run === i }, h("th", { scope: "row" }, run.name, h("small", {}, run.flags)),
      numbers.map((x, j) => cell(digits(x), i > 0 && digits(x) !== digits(others[j]))));
  };
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "the relatives compared" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, `attempt ${MARKS[k]} under`), ["reward", "advantage", "its part of the loss", "log-prob of a token, moved by", "loss of the step"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, page.runs.map(row))), h("p", { class: "note" }, page.runs[state.run].what));
}

/** Whether a visit's values differ from those under the first run, GRPO itself. */
function differs(key, s, visit) {
  if (state.run === 0) return false;
  const first = baseCalls.get(key);
  if (!first) return true;
  const same = about(about(first)[0].visits.filter((one) => one.s === s))[0];
  return !same || JSON.stringify(same.set) !== JSON.stringify(visit.set);
}
let baseCalls = new Map();

function drawAll() {
  hideCard();
  drawFollow();
  drawStory();
  drawRuns();
  for (const body of bodies) body.draw();
  document.documentElement.dataset.drawn = Number(document.documentElement.dataset.drawn || 0) + 1;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "light" : "dark";
}

// ---- Keys

/** The line of the file that the address names, or the last one before it. */
function place() {
  let number = Number((location.hash.match(/^#L(\d+)$/) || [])[1]);
  while (number > 0 && !document.getElementById(`L${number}`)) number--;
  return number || 0;
}

function step(direction) {
  const all = [...document.querySelectorAll("#file .line[data-ran][id]")].map((line) => Number(line.dataset.line));
  const at = place(), next = direction > 0 ? all.find((n) => n > at) : all.findLast((n) => n < at);
  if (next) location.hash = `L${next}`;
}

function current(action) {
  const row = bodies.flatMap((body) => [...body.rows.values()].map((one) => [body, one])).find(([, one]) => one.element.id === `L${place()}`);
  if (row && row[1].statement !== undefined && row[0].visit(row[1])) action(...row);
}

const KEYS = {
  j: ["the next line that ran", () => step(1)],
  k: ["the line before", () => step(-1)],
  v: ["its values", () => current((body, row) => body.toggle(row.statement, "values"))],
  o: ["open its calls", () => current((body, row) => calledBy(body.visit(row)).forEach(([name]) => body.toggle(row.statement, name)))],
  a: ["answer all predictions: show every value", () => { page.predictions.forEach((_, i) => answered.has(i) || answered.set(i, -1)); drawAll(); }],
  0: ["the whole step", () => state.follow !== null && follow(state.follow)],
  t: ["dark or light", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark")],
  "?": ["these keys", () => document.getElementById("help").showModal()],
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, dialog")) return;
  if (event.key === "Escape") hideCard();
  const number = Number(event.key);
  if (number >= 1 && number <= page.attempts.length) follow(number - 1);
  else if (KEYS[event.key]) KEYS[event.key][1]();
  else return;
  event.preventDefault();
});

function showPlace() {
  document.querySelector(".line.at")?.classList.remove("at");
  const line = place() && document.getElementById(`L${place()}`);
  if (!line) return;
  line.classList.add("at");
  line.scrollIntoView({ block: "center" });
}

function start() {
  for (const [key, spec] of Object.entries(page.functions)) {
    if (!key.startsWith(`${page.file}:`)) continue;
    const rows = new Map();
    for (let n = spec.first; n <= spec.last; n++) {
      const element = document.getElementById(`L${n}`);
      if (element) rows.set(n, { element });
    }
    bodies.push(new Body(key, rows, () => about(callsOf.get(key) || [])[0]));
  }
  indexCalls();
  baseCalls = callsOf;
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme").addEventListener("click", () => KEYS.t[1]());
  document.getElementById("help-button").addEventListener("click", () => KEYS["?"][1]());
  document.getElementById("keys").append(...[["1 to 8", "follow an attempt"], ...Object.entries(KEYS).map(([key, [what]]) => [key, what])]
    .map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))));
  addEventListener("hashchange", showPlace);
  addEventListener("scroll", hideCard, { passive: true });
  drawAll();
  showPlace();
}

start();
