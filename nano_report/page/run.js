// The run as a whole: from what to what, one problem through training, warnings, curves, time, settings.

function runView() {
  const { runs } = report;
  return [
    runs.length > 1 ? differences(runs) : null,
    columns((run) => [outcome(run), problemsOf(run), warningsOf(run)]),
    h("section", { "aria-label": "curves" },
      h("h2", {}, "Curves"),
      h("p", { class: "note" }, "Hover for numbers, drag to zoom, double-click to zoom out, click to go to that step."),
      curvesOf(runs, (step) => go({ view: "step", step: nearest(step) }))),
    columns((run) => settingsOf("Settings", run.config)),
  ];
}

/** What the settings of two runs differ in. */
function differences([a, b]) {
  const names = Object.keys({ ...a.config, ...b.config }).filter((name) => !["out", "name"].includes(name) && JSON.stringify(a.config[name]) !== JSON.stringify(b.config[name]));
  const rows = names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), [a, b].map((run) => h("td", {}, String(run.config[name] ?? "–")))));
  return h("section", { class: "card differs", "aria-label": "what differs" },
    h("h1", {}, "What differs"),
    names.length ? h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "setting"), [a, b].map((run) => h("th", { scope: "col" }, run.name)))), h("tbody", {}, rows)) : h("p", { class: "note" }, "No setting differs, so the difference comes from the code or from chance."));
}

/** One column for each run, with its name above if there are two. */
function columns(make) {
  const made = report.runs.map(make), name = (i) => h("p", { class: "run-name" }, h("b", { class: `tag run-${i + 1}` }, "AB"[i]), ` ${report.runs[i].name}`);
  if (!made.some(Boolean) || made.length === 1) return made[0];
  made.forEach((parts, i) => [parts].flat(9).forEach((part) => { // no two sections of a name
    if (part?.ariaLabel) part.ariaLabel += `, ${"AB"[i]}`;
  }));
  return h("div", { class: "columns" }, made.map((parts, i) => h("div", { class: "column" }, name(i), parts)));
}

const TASKS = { // in a sentence
  countdown: "Countdown: reach the target from the given numbers with + - * /, each number once.",
  gsm8k: "Word problems of arithmetic: the answer is a number.",
  math: "Competition mathematics: the answer is in a box.",
};

/** Held-out accuracy before and after. */
function outcome(run) {
  const evaluations = run.evaluated, first = evaluations[0], last = evaluations.at(-1), { config } = run, done = run.trained.at(-1)?.step ?? 0;
  const about = [config.model, `${plural(done, "step")} of ${config.steps ?? "?"}`, config.prompts_per_step && `${config.prompts_per_step} problems × ${config.group_size} attempts per step`, timeOf(run)];
  return h("section", { class: "outcome", "aria-label": "result" },
    first ? h("h1", { class: "headline" }, last === first ? null : `${percent(first["eval/pass@1"], 1)} → `, h("strong", {}, percent(last["eval/pass@1"], 1)),
      h("small", {}, " of ", plural(last["eval/problems"], "held-out problem"), " ", term("solved at the first try", report.metrics["eval/pass@1"][1])))
      : h("h1", {}, "No evaluation is recorded"),
    h("p", { class: "lead" }, about.filter(Boolean).join(" · ")),
    TASKS[config.task] ? h("p", { class: "lead" }, TASKS[config.task]) : null);
}

const KINDS = { // of problems: from the first to the last evaluation
  gained: ["wrong, then correct", (first, last) => !first && last],
  lost: ["correct, then wrong", (first, last) => first && !last],
  kept: ["correct in both", (first, last) => first && last],
  never: ["wrong in both", (first, last) => !first && !last],
};
const solved = (row) => row.answer_reward === 1;

/** Every held-out problem at every evaluation as a square: the same problems, and the same seeds. A chosen problem has its attempts below. */
function problemsOf(run) {
  const { problems, attempts, steps } = run.evaluation;
  if (!problems.length) return null;
  const kindOf = (rows) => Object.keys(KINDS).find((kind) => KINDS[kind][1](solved(rows[0]), solved(rows.at(-1))));
  const kinds = attempts.map(kindOf), believed = attempts.findIndex((rows, i) => kinds[i] === "gained" && rows[0].completion?.includes(" yes")); // wrongly, at first
  const chosen = Math.min(state.problem || 1 + Math.max(believed < 0 ? kinds.indexOf("gained") : believed, 0), problems.length) - 1, count = (kind) => kinds.filter((one) => one === kind).length;
  const next = (kind) => 1 + ((at) => (at < 0 ? kinds.indexOf(kind) : at))(kinds.indexOf(kind, chosen + 1));
  const shown = steps.map((_, e) => e).filter((e) => steps.length < 5 || e === steps.length - 1 || e % Math.ceil((steps.length - 1) / 3) === 0);
  return h("section", { class: "problems", "aria-label": "held-out problems" },
    h("h2", {}, "Every held-out problem"),
    h("p", { class: "note" }, "Each square is a problem, at the same place in each picture. It is filled if the model’s attempt was correct. The brackets have the 95% interval. A red frame marks a problem that was correct before training and is wrong here. Click a square to read the attempts."),
    h("div", { class: "walls" }, shown.map((e) => wallOf(run, e, kinds, chosen))),
    h("div", { class: "chips", role: "group", "aria-label": "choose a problem" }, Object.entries(KINDS).filter(([kind]) => count(kind)).map(([kind, [label]]) =>
      h("button", { type: "button", "data-kind": kind, "aria-pressed": kinds[chosen] === kind, onclick: () => go({ problem: next(kind) }) }, label, h("small", {}, ` ${count(kind)}`)))),
    h("p", { class: "problem big", "data-chosen": chosen + 1 }, `${chosen + 1}. ${problems[chosen]}`),
    h("div", { class: "completions" }, shown.map((e) => {
      const row = attempts[chosen][e];
      return h("article", { class: `card completion${solved(row) ? "" : " wrong"}`, "data-evaluation": steps[e] },
        h("header", {}, h("b", {}, whenOf(steps[e])), verdict(row)),
        h("p", { class: "note" }, lengthOf(row)),
        row.completion === null ? h("p", { class: "note" }, "The text is not in this file.") : textOf([{ text: row.completion.trim() }]));
    })));
}

const whenOf = (step) => (step ? `after ${plural(step, "step")}` : "before training");

/** The squares of one evaluation, and its accuracy with the 95% interval. */
function wallOf(run, e, kinds, chosen) {
  const { problems, attempts, steps } = run.evaluation, columns = Math.ceil(Math.sqrt(2 * problems.length)), record = run.byStep.get(steps[e]) ?? {};
  const [value, low, high] = ["", "_low", "_high"].map((end) => percent(record[`eval/pass@1${end}`], 1));
  const number = attempts.filter((rows) => solved(rows[e])).length;
  const square = (rows, i) => h("rect", { x: 10 * (i % columns) + 1, y: 10 * Math.floor(i / columns) + 1, width: 8, height: 8, rx: 1.5, "data-problem": i + 1,
    class: `${solved(rows[e]) ? "solved" : solved(rows[0]) ? "lost" : "unsolved"}${i === chosen ? " chosen" : ""}`, "data-tip": `${problems[i]}: ${rows[e].why}` });
  return h("figure", { class: "wall" },
    h("figcaption", {}, h("b", {}, whenOf(steps[e])), ` ${value} `, h("small", {}, isNumber(record["eval/pass@1_low"]) ? `[${low}, ${high}]` : "")),
    h("svg", { viewBox: `0 0 ${10 * columns} ${10 * Math.ceil(problems.length / columns)}`, role: "img", "aria-label": `${whenOf(steps[e])}: ${number} of ${plural(problems.length, "problem")} correct`,
      onclick: ({ target }) => target.dataset.problem && go({ problem: Number(target.dataset.problem) }) }, attempts.map(square)));
}

/** "✓ correct" or "✗ equals 138, not 53", and where a completion ended. */
const verdict = (row) => h("span", { class: row.answer_reward === 1 ? "verdict correct" : "verdict" }, `${row.answer_reward === 1 ? "✓" : "✗"} ${row.why}`);
const lengthOf = (row) => plural(row.length, "token") + (row.cut_off ? ", cut off at the limit" : "");

function warningsOf(run) {
  const found = report.alarms.map(([name, limit, text]) => [text, run.trained.filter((record) => !((record[name] ?? 0) <= limit)).map((record) => record.step)]);
  const alarms = found.filter(([, steps]) => steps.length), link = (step) => h("a", { href: hashOf({ view: "step", step: nearest(step) }) }, ` ${step}`);
  return alarms.length ? h("section", { class: "card warnings", "aria-label": "warnings" }, h("h2", {}, "Warnings"),
    h("ul", {}, alarms.map(([text, steps]) => h("li", {}, `${text} At ${plural(steps.length, "step")}:`, steps.slice(0, 12).map(link))))) : null;
}

/** How long the training took. */
function timeOf(run) {
  const seconds = run.trained.reduce((sum, record) => sum + (record["time/step"] || 0), 0);
  return seconds ? `${show(seconds / 60, 1)} minutes of training` : null;
}

/** Names and values, folded. */
const settingsOf = (title, values) => h("details", {}, h("summary", {}, title), h("dl", { class: "settings" }, Object.entries(values).map(([name, value]) =>
  h("div", {}, h("dt", {}, term(name, report.metrics[name]?.[1])), h("dd", { "data-name": name }, String(isNumber(value) ? +value.toPrecision(6) : value))))));
