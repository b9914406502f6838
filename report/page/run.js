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
    columns((run) => [timeOf(run), settingsOf("Settings", run.config)]),
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

/** Held-out accuracy before and after, with its intervals. */
function outcome(run) {
  const evaluations = run.evaluated, first = evaluations[0], last = evaluations.at(-1), { config } = run, done = run.trained.at(-1)?.step ?? 0;
  const about = [config.model, config.task && `on ${config.task}`, `${plural(done, "step")} of ${config.steps ?? "?"}`,
    config.prompts_per_step && `${config.prompts_per_step} prompts × ${config.group_size} completions per step`];
  return h("section", { class: "outcome", "aria-label": "result" },
    first ? h("h1", { class: "headline" }, last === first ? null : `${percent(first["eval/pass@1"])} → `, h("strong", {}, percent(last["eval/pass@1"])),
      h("small", {}, " of ", plural(last["eval/problems"], "held-out problem"), " ", term("solved at the first try", report.metrics["eval/pass@1"][1])))
      : h("h1", {}, "No evaluation is recorded"),
    h("p", { class: "lead" }, about.filter(Boolean).join(" · ")),
    first ? h("div", { class: "intervals" }, [...new Set([first, last])].map(intervalRow), h("p", { class: "note" }, "The dots have 95% intervals, on a scale from 0% to 100%.")) : null);
}

function intervalRow(record) {
  const [value, low, high] = ["", "_low", "_high"].map((end) => record[`eval/pass@1${end}`]);
  return h("div", { class: "interval" },
    h("span", {}, record.step ? `after ${plural(record.step, "step")}` : "before training"),
    h("span", { class: "track", "aria-hidden": "true" },
      h("span", { class: "range", style: { left: `${100 * low}%`, width: `${100 * (high - low)}%` } }),
      h("span", { class: "point", style: { left: `${100 * value}%` } })),
    h("span", { class: "number" }, percent(value, 1), h("small", {}, ` [${percent(low, 1)}, ${percent(high, 1)}]`)));
}

/** A held-out problem at every evaluation: the same problem, and the same seed. */
function problemsOf(run) {
  const { problems, of, gained, lost } = run.evaluation;
  if (!problems.length) return null;
  const problem = problems[Math.min(state.problem, problems.length) - 1];
  return h("section", { class: "problems", "aria-label": "one problem through training" },
    h("h2", {}, "One problem through training"),
    h("p", { class: "note" }, `Only the weights differ between evaluations. From the first to the last evaluation, ${gained} of ${plural(of, "held-out problem")} went from wrong to correct and ${lost} went from correct to wrong.`,
      ` ${problems.length} problems are shown; those that became correct come first. Each cell is an evaluation: ✓ is correct, an empty cell wrong.`),
    h("div", { class: "chips" }, problems.map(({ rows }, k) =>
      h("button", { type: "button", "aria-pressed": problem === problems[k], "data-problem": k + 1, "aria-label": `problem ${k + 1}`, onclick: () => go({ problem: k + 1 }) },
        h("span", { class: "strip" }, rows.map((row) => h("span", { class: `cell level-${row.answer_reward === 1 ? 4 : 0}`, "aria-hidden": "true" }, row.answer_reward === 1 ? "✓" : "")))))),
    h("p", { class: "problem big" }, problem.title),
    h("div", { class: "completions" }, problem.rows.map((row) =>
      h("article", { class: "card completion", "data-evaluation": row.step },
        h("header", {}, h("b", {}, row.step ? `after ${plural(row.step, "step")}` : "before training"), verdict(row)),
        h("p", { class: "note" }, lengthOf(row)),
        textOf([{ text: row.completion.trim() }])))));
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
  return seconds ? h("p", { class: "note" }, `${show(seconds / 60, 1)} minutes of training, ${show(seconds / run.trained.length, 1)} s per step.`) : null;
}

/** Names and values, folded. */
const settingsOf = (title, values) => h("details", {}, h("summary", {}, title), h("dl", { class: "settings" }, Object.entries(values).map(([name, value]) =>
  h("div", {}, h("dt", {}, term(name, report.metrics[name]?.[1])), h("dd", { "data-name": name }, String(isNumber(value) ? +value.toPrecision(6) : value))))));
