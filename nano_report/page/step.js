// A step: its numbers and its groups.

const TILES = `reward reward/answer reward/format completions/mean_length
  completions/clipped_ratio frac_reward_zero_std entropy grad_norm`.split(/\s+/);
const SHARES = /pass@1|answer|format|ratio|frac/; // metrics that are shown in percent

function stepView(step) {
  const record = recordAt(state.step);
  return [
    h("h1", {}, `Step ${state.step}`),
    record && tiles(record),
    step ? groupList(step) : notHere(),
    record && settingsOf("All metrics of the step", record),
  ];
}

function notHere() {
  return noteOf("The completions of this step are not shown. ", shown());
}

function shown() {
  const count = plural(report.recorded, "recorded step");
  return `This file has ${report.steps.length} of ${count}.`;
}

/** The numbers of the step that one looks at first. */
function tiles(record) {
  const made = TILES.filter((name) => name in record).map((name) => {
    const value = SHARES.test(name) ? percent(record[name]) : show(record[name], 2);
    return h("div", {}, h("dt", {}, term(...report.metrics[name])), h("dd", {}, value));
  });
  return h("dl", { class: "tiles" }, made);
}

/** Where tokens are recorded, if they are not here. */
function tokensNote() {
  const near = nearest(state.step, report.tokenSteps);
  const link = h("a", { href: hashOf({ step: near }) }, `step ${near}`);
  const text = "The tokens of this step were not recorded (--record_tokens_every).";
  return noteOf(text, near ? [" The nearest such: ", link, "."] : null);
}

/** The step's groups, those with a signal first. */
function groupList({ groups, rows }) {
  const made = groups.map(({ title, completions }, g) => {
    const [{ reward }] = completions;
    const equal = completions.length > 1 && completions.every((c) => c.reward === reward);
    return { equal, row: groupRow(title, completions, g + 1, equal, rows) };
  });
  made.sort((a, b) => a.equal - b.equal);
  const note = "A cell is a completion; darker is a higher reward, ✓ correct, … cut off.";
  const list = made.map(({ row }) => row);
  return sectionOf("groups", "Groups", note, h("ol", { class: "group-list" }, list));
}

function groupRow(title, completions, group, equal, rows) {
  const count = (test, words) => {
    const found = completions.filter(test).length;
    return found && `${found} ${words}`;
  };
  const correct = completions.filter(solved).length;
  const facts = [
    `${correct} of ${completions.length} correct`,
    equal && "no signal",
    count((c) => c.cut_off, "cut off"),
    count((c) => c.format_reward < 1, "wrong format"),
  ];
  const href = hashOf({ view: "group", group, completion: 0 });
  return h(
    "li",
    { class: "group-row" },
    h("a", { href, "data-group": group }, h("b", {}, group), title),
    h(
      "span",
      { class: "strip" },
      completions.map((c, k) => rewardCell(rows, c, group, k + 1)),
    ),
    h("span", { class: "note" }, facts.filter(Boolean).join(" · ")),
  );
}

/** A completion's reward as a cell. */
function rewardCell(rows, row, group, completion) {
  const rewards = rows.map(({ reward }) => reward);
  const low = Math.min(...rewards);
  const level = Math.round((4 * (row.reward - low)) / (Math.max(...rewards) - low || 1));
  const correct = solved(row);
  const label = `completion ${completion}: reward ${show(row.reward, 2)}`;
  const about = {
    class: `cell level-${level}`,
    href: hashOf({ view: "group", group, completion }),
    tabindex: -1,
    "--level": `var(--level-${level})`,
    "aria-label": correct ? `${label}, correct` : label,
  };
  return h("a", about, correct ? "✓" : row.cut_off && "…");
}
