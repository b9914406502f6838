// The run as a whole: from what to what, every completion, when yes got its meaning, held-out
// problems, curves, settings.

function runView() {
  return [
    outcome(report),
    glanceOf(report),
    dotsOf(report),
    watchedOf(report),
    problemsOf(report),
    curvesOf(report),
    settingsOf("Settings", report.config),
  ];
}

/** A part of a view, below its title and a sentence. */
function sectionOf(label, title, note, ...parts) {
  const heads = [h("h2", {}, title), note && noteOf(note)];
  return h("section", { "aria-label": label }, heads, parts);
}

const TASKS = {
  countdown: "Countdown: reach the target from the given numbers with + - * /, each number once.",
  gsm8k: "Word problems of arithmetic: the answer is a number.",
  math: "Competition mathematics: the answer is in a box.",
};

/** Held-out accuracy before and after, and the way to the group that shows most. */
function outcome(run) {
  const { config } = run;
  const [first, last] = [run.evaluated[0], run.evaluated.at(-1)];
  const done = run.trained.at(-1)?.step ?? 0;
  const seconds = sum(run.trained.map((record) => record["time/step"] ?? 0));
  const about = [
    config.model,
    `${plural(done, "step")} of ${config.steps ?? "?"}`,
    config.prompts_per_step &&
      `${config.prompts_per_step} problems × ${config.group_size} completions a step`,
    seconds && `${show(seconds / 60, 1)} minutes of training`,
  ];
  const value = (record) => percent(record["eval/pass@1"], 1);
  let title = h("h1", {}, "No evaluation is recorded");
  if (first) {
    const solved = term("solved at the first try", report.metrics["eval/pass@1"][1]);
    const when = done > last.step && last.step ? ` after ${plural(last.step, "step")}` : "";
    const of = plural(last["eval/problems"], "held-out problem");
    const from = last === first ? "" : `${value(first)} → `;
    const rest = h("small", {}, ` of ${of} `, solved, when);
    title = h("h1", { class: "headline" }, from, h("strong", {}, value(last)), rest);
  }
  const [step, group] = run.start;
  const link = h("a", { href: hashOf({ view: "group", step, group }) }, `one update in one group`);
  return h(
    "section",
    { "aria-label": "result" },
    title,
    noteOf(about.filter(Boolean).join(" · ")),
    h("p", {}, TASKS[config.task], " How it learns: ", link, "."),
  );
}

/** Every completion of the run as a cell: a column is a step, sorted by group. */
function glanceOf(run) {
  if (run.glance.length < 2) return null;
  const n = run.group_size;
  const ordered = run.glance.map(([step, levels]) => {
    const groups = [];
    for (let first = 0; first < levels.length; first += n) {
      const cells = [...levels.slice(first, first + n)].map(Number);
      groups.push({ group: first / n + 1, cells: cells.sort((a, b) => b - a) });
    }
    groups.sort((a, b) => sum(b.cells) - sum(a.cells));
    return { step, groups };
  });
  const [wide, high] = [1120, 280];
  const canvas = h("canvas", { width: wide, height: high, class: "glance", role: "img" });
  canvas.ariaLabel = "every completion of the run: format comes first, correct answers later";
  const probe = h("i", {});
  document.body.append(probe);
  const colours = ["--level-0", "--level-2", "--level-4"].map((name) => {
    probe.style.color = `var(${name})`; // resolves light-dark()
    return getComputedStyle(probe).color;
  });
  probe.remove();
  const context = canvas.getContext("2d");
  const width = wide / ordered.length;
  ordered.forEach(({ groups }, column) => {
    const height = high / (groups.length * n);
    groups.forEach(({ cells }, row) =>
      cells.forEach((level, k) => {
        const bottom = high - (row * n + k + 1) * height;
        context.fillStyle = colours[level];
        context.fillRect(column * width, bottom, width - 1.5, height - (k === n - 1 ? 1.5 : 0));
      }),
    );
  });
  canvas.onclick = (event) => {
    const at = (list, share) => list[Math.min(list.length - 1, Math.floor(share * list.length))];
    const { step, groups } = at(ordered, event.offsetX / canvas.clientWidth);
    const { group } = at(groups, 1 - event.offsetY / canvas.clientHeight);
    go({ view: "group", step: nearest(step), group, completion: 0 });
  };
  const [from, to] = [ordered[0].step, ordered.at(-1).step];
  const note = `A column is a step, from ${from} to ${to}; a cell is a completion. Dark: correct.
    Middle: wrong, in the right format. Pale: wrong format. A click goes to the group.`;
  return sectionOf("every completion", "Every completion of the run", note, canvas);
}

/** Every check that the model wrote, at its P(yes), by step. */
function dotsOf(run) {
  if (!run.checks.length) return null;
  const note = `A dot is a line that the model ended with yes or no: how likely “yes” was, after a
    result that is the target and after another one. A click shows its completion.`;
  const onclick = (place) => go({ view: "group", ...place });
  const drawn = checksChart("P(yes)", run.checks, { onclick });
  return sectionOf("checks", "When did yes start to mean yes?", note, drawn);
}

/** Some completions of step 1 as the model reads them at any step. */
function watchedOf(run) {
  const film = filmOf(run.watched);
  const title = "The same lines, read again after every update";
  return film && sectionOf("the same lines", title, null, film);
}

const solved = (row) => row.answer_reward === 1;

/** Of two attempts at a problem, the first and the last evaluation's. */
function kindOf(rows) {
  const [first, last] = [rows[0], rows.at(-1)].map(solved);
  if (first) return last ? "correct in both" : "correct, then wrong";
  return last ? "wrong, then correct" : "wrong in both";
}

/** Every held-out problem at every evaluation as a square; a chosen one has its texts below. */
function problemsOf(run) {
  const { attempts, steps } = run.evaluation;
  if (!attempts.length) return null;
  const kinds = attempts.map(kindOf);
  const first = Math.max(0, kinds.indexOf("wrong, then correct"));
  const chosen = Math.min(state.problem || first + 1, attempts.length) - 1;
  const next = (kind) => {
    const later = kinds.indexOf(kind, chosen + 1);
    return 1 + (later < 0 ? kinds.indexOf(kind) : later);
  };
  const chips = [...new Set(kinds)].sort().map((kind) => {
    const about = { "data-kind": kind, "aria-pressed": kinds[chosen] === kind };
    const count = h("small", {}, ` ${kinds.filter((one) => one === kind).length}`);
    return h("button", { ...about, onclick: () => go({ problem: next(kind) }) }, kind, count);
  });
  const note = `Each square is a problem, filled if the model’s completion was correct. A red frame
    marks a problem that was correct before training. The brackets have the 95% interval. Click a
    square to read the completions.`;
  const texts = attempts[chosen];
  const places = [...steps.keys()];
  return sectionOf(
    "held-out problems",
    "Every held-out problem",
    note,
    h(
      "div",
      { class: "walls" },
      places.map((e) => wallOf(run, e, chosen)),
    ),
    h("div", { class: "chips", role: "group", "aria-label": "choose a problem" }, chips),
    h("p", { class: "problem" }, `${chosen + 1}. ${texts[0].problem}`),
    h(
      "div",
      { class: "completions" },
      places.map((e) => completionOf(texts[e], steps[e], texts[e - 1])),
    ),
  );
}

const whenOf = (step) => (step ? `after ${plural(step, "step")}` : "before training");

/** A held-out problem's text, or that it is the one of the evaluation before. */
function completionOf(row, step, before) {
  if (row.completion === before?.completion) return noteOf(`${whenOf(step)}: the same text`);
  const length = plural(row.length, "token") + (row.cut_off ? ", cut off at the limit" : "");
  return h(
    "article",
    { class: "card completion" },
    h("header", {}, h("b", {}, whenOf(step)), verdict(row), h("small", {}, length)),
    textOf([{ text: row.completion.trim() }]),
  );
}

/** The squares of one evaluation, and its accuracy with the 95% interval. */
function wallOf(run, e, chosen) {
  const { attempts, steps } = run.evaluation;
  const wide = Math.ceil(Math.sqrt(2 * attempts.length));
  const record = recordAt(steps[e]) ?? {};
  const name = "eval/pass@1";
  const [low, high] = [record[`${name}_low`], record[`${name}_high`]];
  const squares = attempts.map((rows, i) => {
    const kind = solved(rows[e]) ? "solved" : solved(rows[0]) ? "lost" : "";
    return h("rect", {
      x: 10 * (i % wide) + 1,
      y: 10 * Math.floor(i / wide) + 1,
      width: 8,
      height: 8,
      rx: 1.5,
      "data-problem": i + 1,
      class: i === chosen ? `${kind} chosen` : kind,
      "data-tip": `${rows[e].problem}: ${rows[e].why}`,
    });
  });
  const number = attempts.filter((rows) => solved(rows[e])).length;
  const about = {
    viewBox: `0 0 ${10 * wide} ${10 * Math.ceil(attempts.length / wide)}`,
    role: "img",
    "aria-label": `${whenOf(steps[e])}: ${number} of ${plural(attempts.length, "problem")} correct`,
    onclick: ({ target: { dataset } }) =>
      dataset.problem && go({ problem: Number(dataset.problem) }),
  };
  const interval = isNumber(low) && h("small", {}, `[${percent(low, 1)}, ${percent(high, 1)}]`);
  const caption = [h("b", {}, whenOf(steps[e])), ` ${percent(record[name], 1)} `, interval];
  return h("figure", { class: "wall" }, h("figcaption", {}, caption), h("svg", about, squares));
}

/** All panels that have something to show. */
function curvesOf(run) {
  const drawn = report.panels.map(([title, names]) => {
    const lines = names.map((name, k) => {
      const valued = run.records.filter((record) => isNumber(record[name]));
      const rows = run.records.filter((record) => isNumber(record[`${name}_low`]));
      const edges = (record) => [record.step, record[`${name}_low`], record[`${name}_high`]];
      return {
        label: report.metrics[name][0],
        points: valued.map((record) => [record.step, record[name]]),
        tone: `tone-${k}`,
        dots: name.startsWith("eval/"),
        band: rows.map(edges),
      };
    });
    const filled = lines.filter(({ points }) => points.length);
    if (!filled.length) return null;
    const share = names.every((name) => SHARES.test(name));
    const tip = names.map((name) => report.metrics[name].join(": ")).join("\n");
    const onstep = (step) => go({ view: "step", step: nearest(step) });
    return chart(term(title, tip), filled, { share, onstep });
  });
  const note = "Hover for the numbers of a step; a click goes there.";
  return sectionOf("curves", "Curves", note, h("div", { class: "curves" }, drawn));
}

/** Names and values, folded. */
function settingsOf(title, values) {
  const items = Object.entries(values).map(([name, value]) => {
    const text = String(isNumber(value) ? +value.toPrecision(6) : value);
    const label = h("dt", {}, term(name, report.metrics[name]?.[1]));
    return h("div", {}, label, h("dd", {}, text));
  });
  return h("details", {}, h("summary", {}, title), h("dl", { class: "settings" }, items));
}
