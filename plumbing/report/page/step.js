// A step: what its loss is made of, its metrics, and all of its groups.

const FILTERS = {
  all: ["all", () => true],
  signal: ["signal", (group) => !group.noSignal],
  "no-signal": ["no signal", (group) => group.noSignal],
  right: ["all right", (group) => group.right === group.members.length],
  "cut-off": ["cut off", (group) => group.cutOff > 0],
  form: ["bad form", (group) => group.badForm > 0],
  sum: ["wrong sum", (group) => group.wrongSums > 0],
};
const SORTS = {
  number: ["in order", (a, b) => a.number - b.number],
  longest: ["longest first", (a, b) => b.longest - a.longest],
  update: ["largest update first", (a, b) => (b.change ?? -1) - (a.change ?? -1)],
  right: ["most right first", (a, b) => b.right - a.right],
};

function stepView(steps) {
  return [
    h("h1", {}, `Step ${state.step}`),
    columns(report.runs, (run) => {
      const step = steps[run.number], record = run.byStep.get(state.step);
      return [
        record ? summaryOf(run, record) : h("p", { class: "note" }, "This run has no metrics of this step."),
        step ? balance(step, record || {}) : null,
        step ? pushedOf(step) : null,
        step ? groupList(step) : h("p", { class: "note" }, `The completions of this step are not in this file. ${stepsInFile(run)}`),
        record ? metricsOf(record) : null,
      ];
    }),
  ];
}

const stepsInFile = (run) => (run.steps.length === run.recorded
  ? `It has all ${plural(run.recorded, "recorded step")}.`
  : `It has ${run.steps.length} of ${plural(run.recorded, "recorded step")}; --steps chooses others.`);

/** The numbers of the step that one looks at first. */
function summaryOf(run, record) {
  const tiles = [["reward", show(record.reward, 2)], ["reward/answer", percent(record["reward/answer"]), "right"],
    ["reward/format", percent(record["reward/format"]), "format"],
    ["completions/mean_length", show(record["completions/mean_length"], 0), "tokens a completion"],
    ["completions/clipped_ratio", percent(record["completions/clipped_ratio"]), "cut off"],
    ["frac_reward_zero_std", percent(record.frac_reward_zero_std), "groups without signal"],
    ["entropy", show(record.entropy, 2)], ["grad_norm", show(record.grad_norm, 2), "gradient norm"]];
  return h("dl", { class: "tiles" }, tiles.filter(([name]) => name in record).map(([name, value, label]) =>
    h("div", {}, h("dt", {}, term(name, label || name)), h("dd", {}, value))));
}

function groupList(step) {
  const [, keep] = FILTERS[state.filter], [, compare] = SORTS[state.sort];
  const shown = step.groups.filter(keep).sort(compare);
  return h("section", { class: "groups", "aria-label": "groups" },
    h("h2", {}, "Groups"),
    h("div", { class: "chips", role: "group", "aria-label": "which groups" }, Object.entries(FILTERS).map(([key, [label, test]]) =>
      h("button", { type: "button", "aria-pressed": state.filter === key, "data-filter": key, onclick: () => go({ filter: key }) },
        label, h("small", {}, ` ${step.groups.filter(test).length}`)))),
    h("label", { class: "sort" }, "sort ", h("select", { "data-sort": "", onchange: ({ target }) => go({ sort: target.value }) },
      Object.entries(SORTS).map(([key, [label]]) => h("option", { value: key, selected: state.sort === key }, label)))),
    rewardLegend(step),
    shown.length ? h("ol", { class: "group-list" }, shown.map((group) => h("li", {}, groupRow(step, group))))
      : h("p", { class: "note" }, "No group of this step is like that."));
}

function groupRow(step, group) {
  const tags = [group.noSignal && "no signal", group.cutOff && `${group.cutOff} cut off`, group.badForm && `${group.badForm} bad form`,
    group.wrongSums && plural(group.wrongSums, "wrong sum")].filter(Boolean);
  return h("a", { class: "group-row", href: hashOf({ view: "group", group: group.number + 1, completion: 1 }), "data-group": group.number + 1 },
    h("span", { class: "place" }, group.number + 1),
    h("span", { class: "problem" }, step.problems[group.number]),
    strip(step, group.members),
    h("span", { class: "facts" }, h("b", {}, `${group.right} of ${group.members.length} right`), ` · up to ${group.longest} tokens`,
      group.change === null ? null : ` · moved ${show(group.change)} nats a token`, tags.length ? h("em", {}, ` · ${tags.join(", ")}`) : null));
}

/** Rewards of a group as cells: dark is high, ✓ is right, … is cut off. */
function strip(step, members) {
  const words = members.map((i) => `${show(step.reward[i], 2)}${step.answer[i] === 1 ? " right" : ""}`).join(", ");
  return h("span", { class: "strip", role: "img", "aria-label": `rewards ${words}` }, members.map((i) => rewardCell(step, i)));
}

function rewardCell(step, i) {
  const [low, high] = step.rewardRange, level = high > low ? Math.round((4 * (step.reward[i] - low)) / (high - low)) : 0;
  const sign = step.answer[i] === 1 ? "✓" : step.finish[i] === "length" ? "…" : "";
  return h("span", { class: `cell level-${level}`, "aria-hidden": "true" }, sign);
}

function rewardLegend(step) {
  const [low, high] = step.rewardRange;
  return h("p", { class: "legend note" }, "reward ", show(low, 2), " ", h("span", { class: "strip", "aria-hidden": "true" },
    [0, 1, 2, 3, 4].map((level) => h("span", { class: `cell level-${level}` }))), " ", show(high, 2), " · ✓ right answer · … cut off");
}

function metricsOf(record) {
  const names = Object.keys(record).filter((name) => name !== "step");
  return h("details", {}, h("summary", {}, "All metrics of the step"),
    h("dl", { class: "settings" }, names.map((name) => h("div", {}, h("dt", {}, term(name)), h("dd", { "data-metric": name }, show(record[name], 4))))));
}
