// The run as a whole: from what to what, warnings, curves, time, settings.

function runView() {
  const { runs } = report;
  return [
    runs.length > 1 ? differences(runs) : null,
    columns(runs, (run) => outcome(run)),
    columns(runs, (run) => warningsOf(run)),
    h("section", { "aria-label": "curves" },
      h("h2", {}, "Curves"),
      h("p", { class: "note" }, "Hover for numbers, drag to zoom, double-click to zoom out, click to go to that step."),
      curvesOf(runs, (step) => go({ view: "step", step: nearest(step) }))),
    columns(runs, (run) => timeOf(run)),
    columns(runs, (run) => settingsOf(run)),
  ];
}

/** What two runs differ in: first of all their settings, then how it ended. */
function differences(runs) {
  const [a, b] = runs.map(settingsWithLesson), own = "name out resume wandb report save_every keep_checkpoints record_tokens_every".split(" ");
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((name) => !own.includes(name) && JSON.stringify(a[name]) !== JSON.stringify(b[name]));
  const last = (run) => run.evaluations.filter((e) => isNumber(e.value)).at(-1);
  const rows = names.map((name) => [name, ...[a, b].map((settings) => String(settings[name] ?? "–"))]);
  const ends = ["pass@1 at the end", ...runs.map((run) => (last(run) ? `${show(last(run).value)} (${show(last(run).low)} to ${show(last(run).high)})` : "–"))];
  return h("section", { class: "card differs", "aria-label": "what differs" },
    h("h1", {}, "What differs"),
    names.length ? null : h("p", { class: "note" }, "No setting: what differs is in the code, or chance."),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "settings that differ" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), runs.map((run, i) => h("th", { scope: "col" }, runTag(i), ` ${run.name}`)))),
      h("tbody", {}, [...rows, ends].map(([name, ...values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value) => h("td", {}, value))))))));
}

/** A run's letter, with its colour in the curves. */
const runTag = (i) => h("b", { class: `tag run-${i + 1}` }, "AB"[i]);

/** One column for each run, with its name above where there are two. */
function columns(runs, make) {
  const made = runs.map((run) => make(run));
  if (!made.some(Boolean)) return null;
  const two = runs.length > 1, parts = runs.map((run, i) =>
    h("div", { class: "column" }, two ? h("p", { class: "run-name" }, runTag(i), ` ${run.name}`) : null, made[i]));
  if (two) parts.forEach((part, i) => part.querySelectorAll("section").forEach((section) => // no two of a name
    section.setAttribute("aria-label", `${section.getAttribute("aria-label")}, ${"AB"[i]}`)));
  return h("div", { class: two ? "columns" : "" }, parts);
}

/** Held-out accuracy before and after, and the untrained model at other temperatures, on one scale with intervals. */
function outcome(run) {
  const evaluations = run.evaluations.filter((e) => isNumber(e.value));
  const first = evaluations[0], last = evaluations.at(-1), { temperature } = run.config;
  const rows = run.base.map((e) => ({ ...e, label: e.temperature ? `base at temperature ${e.temperature}` : "base, greedy" }));
  const best = rows.reduce((a, b) => (a && a.value >= b.value ? a : b), null);
  if (best) best.label += " (its best)";
  if (first) rows.unshift({ ...first, label: first.step ? `after ${plural(first.step, "step")}` : `before training, temperature ${temperature}` });
  if (last && last !== first) rows.push({ ...last, label: `after ${plural(last.step, "step")}, temperature ${temperature}`, main: true });
  const done = run.stepRecords.at(-1)?.step ?? 0;
  return h("section", { class: "outcome", "aria-label": "result" },
    report.runs.length > 1 ? null : h("h1", {}, run.name),
    h("p", { class: "lead" }, [run.config.model, run.config.task && `on ${run.config.task}`, `${plural(done, "step")} of ${run.config.steps ?? "?"}`,
      run.config.prompts_per_step && `${run.config.prompts_per_step} prompts × ${run.config.group_size} completions a step`]
      .filter(Boolean).join(" · ")),
    first ? h("p", { class: "headline" }, last === first ? null : `${show(first.value, 2)} → `, h("span", { class: "strong" }, show(last.value, 2)),
      h("small", {}, " ", term("eval/pass@1", "pass@1"), ` on ${plural(last.problems, "held-out problem")}`)) : h("p", { class: "note" }, "No evaluation is recorded."),
    rows.length ? h("div", { class: "intervals" }, rows.map((row) => intervalRow(row)), scale()) : null,
    run.base.length || !first ? null : h("details", {}, h("summary", {}, "Is it more than a lower temperature would bring?"),
      h("p", { class: "note" }, "Evaluate the untrained model beside this run, and make this report again: it then stands here."),
      h("pre", { "data-commands": "" }, run.commands.join("\n"))));
}

function intervalRow({ label, value, low, high, main }) {
  const at = (x) => `${100 * x}%`;
  return h("div", { class: main ? "interval main" : "interval" },
    h("span", { class: "name" }, label),
    h("span", { class: "track", "aria-hidden": "true" },
      h("span", { class: "range", style: { left: at(low), width: at(high - low) } }),
      h("span", { class: "point", style: { left: at(value) } })),
    h("span", { class: "number" }, show(value), h("small", {}, ` ${show(low)} to ${show(high)}`)));
}

const scale = () => h("div", { class: "interval scale", "aria-hidden": "true" }, h("span"),
  h("span", { class: "track" }, [0, 0.25, 0.5, 0.75, 1].map((x) => h("span", { style: { left: `${100 * x}%` } }, String(x)))),
  h("span", { class: "number" }, h("small", {}, "95% interval")));

function warningsOf(run) {
  const failed = run.stepRecords.filter((r) => typeof r.loss === "string" || typeof r.grad_norm === "string").map((r) => r.step);
  const all = failed.length ? [...run.warnings, { text: "loss or gradient norm is not finite", steps: failed }] : run.warnings;
  if (!all.length && !run.notes.length) return null;
  return h("section", { class: "card warnings", "aria-label": "warnings" },
    h("h2", {}, "Warnings"),
    h("ul", {}, all.map(({ text, steps }) => h("li", {}, `${text} — `,
      steps.slice(0, 12).map((step, i) => [i ? ", " : `${steps.length > 1 ? "steps" : "step"} `, stepLink(step)]),
      steps.length > 12 ? ` and ${steps.length - 12} more` : null)),
    run.notes.map((note) => h("li", {}, note))));
}

// A step of the file as a link.
const stepLink = (step) => (report.steps.includes(step)
  ? h("a", { href: hashOf({ view: "step", step }) }, step) : h("span", {}, step));

const PARTS = ["rollout", "reward", "vine", "update", "record", "sync"];

/** Where the time went: one bar, and its parts in words. */
function timeOf(run) {
  const seconds = (part) => run.stepRecords.reduce((sum, r) => sum + (isNumber(r[`time/${part}`]) ? r[`time/${part}`] : 0), 0);
  const total = seconds("step");
  if (!total) return null;
  const parts = PARTS.map((part, i) => ({ part, i, share: seconds(part) / total })).filter(({ share }) => share > 0);
  const other = 1 - parts.reduce((sum, { share }) => sum + share, 0);
  return h("section", { "aria-label": "time" },
    h("h2", {}, "Time"),
    h("p", {}, `${show(total / 60, 1)} minutes of training, ${show(total / run.stepRecords.length, 1)} s a step.`),
    h("div", { class: "stack", "aria-hidden": "true" }, parts.map(({ i, share }) =>
      h("span", { class: `part-${i}`, style: { width: `${100 * share}%` } }))),
    h("ul", { class: "keys" }, parts.map(({ part, i, share }) =>
      h("li", {}, h("span", { class: `swatch part-${i}` }), term(`time/${part}`, part), share < 0.0005 ? " under 0.1%" : ` ${show(100 * share, 1)}%`)),
    other > 0.005 ? h("li", {}, `rest ${show(100 * other, 1)}%`) : null));
}

function settingsOf(run) {
  const entries = Object.entries(run.config).filter(([name]) => name !== "resume");
  if (!entries.length) return null;
  return h("details", {}, h("summary", {}, "Settings"),
    h("dl", { class: "settings" }, entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))));
}
