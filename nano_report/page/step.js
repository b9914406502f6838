// A step: its numbers and its groups.

const TILES = `reward reward/answer reward/format completions/mean_length
  completions/clipped_ratio frac_reward_zero_std entropy grad_norm`.split(/\s+/);
const SHARES = /pass@1|answer|format|ratio|frac/; // metrics that are shown in percent

function stepView(step) {
  const record = report.byStep.get(state.step);
  return [
    h("h1", {}, `Step ${state.step}`),
    record && tiles(record),
    step ? groupList(step) : notHere(),
    record && settingsOf("All metrics of the step", record),
  ];
}

function notHere() {
  return h("p", { class: "note" }, "The completions of this step are not shown. ", shown());
}

function shown() {
  const count = plural(report.recorded, "recorded step");
  return `This file has ${report.steps.length} of ${count}.`;
}

const metricText = (name, value, digits) =>
  SHARES.test(name) ? percent(value, digits - 1) : show(value, digits);

/** The numbers of the step that one looks at first. */
function tiles(record) {
  const made = TILES.filter((name) => name in record).map((name) => {
    const digits = SHARES.test(name) ? 1 : 2;
    const value = h("dd", { "data-metric": name }, metricText(name, record[name], digits));
    return h("div", {}, h("dt", {}, term(...report.metrics[name])), value);
  });
  return h("dl", { class: "tiles" }, made);
}

/** Where tokens are recorded, if they are not here. */
function tokensNote() {
  const near = nearest(state.step, report.tokenSteps);
  const link = h("a", { href: hashOf({ step: near }) }, `step ${near}`);
  const text = "The tokens of this step were not recorded (--record_tokens_every).";
  return h("p", { class: "note" }, text, near ? [" The nearest such: ", link, "."] : null);
}

/** The step's groups, those with a signal first. */
function groupList(step) {
  const groups = step.groups.toSorted((a, b) => a.equal - b.equal);
  const note = "A cell is a completion; darker is a higher reward, ✓ correct, … cut off.";
  return h(
    "section",
    { class: "groups", "aria-label": "groups" },
    h("h2", {}, "Groups"),
    h("p", { class: "note" }, note),
    h(
      "ol",
      { class: "group-list" },
      groups.map((group) => groupRow(step, group)),
    ),
  );
}

function groupRow(step, group) {
  const facts = [
    `${group.correct} of ${group.rows.length} correct`,
    group.equal && "no signal",
    group.cutOff && `${group.cutOff} cut off`,
    group.badFormat && `${group.badFormat} wrong format`,
  ];
  const href = hashOf({ view: "group", group: group.number, completion: 0 });
  return h(
    "li",
    { class: "group-row" },
    h("a", { href, "data-group": group.number }, h("b", {}, group.number), group.problem),
    h(
      "span",
      { class: "strip" },
      group.rows.map((row, k) => rewardCell(step, row, group.number, k + 1)),
    ),
    h("span", { class: "note" }, facts.filter(Boolean).join(" · ")),
  );
}

/** A completion's reward as a cell. */
function rewardCell(step, row, group, completion) {
  const rewards = step.rows.map(({ reward }) => reward);
  const low = Math.min(...rewards);
  const level = Math.round((4 * (row.reward - low)) / (Math.max(...rewards) - low || 1));
  const correct = row.answer_reward === 1;
  const label = `completion ${completion}: reward ${show(row.reward, 2)}`;
  const about = {
    class: `cell level-${level}`,
    href: hashOf({ view: "group", group, completion }),
    tabindex: -1,
    "aria-label": correct ? `${label}, correct` : label,
  };
  return h("a", about, correct ? "✓" : row.cut_off && "…");
}
