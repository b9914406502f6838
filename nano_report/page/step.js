// A step: its numbers, its groups, and the tokens that moved most.

const TILES = `reward reward/answer reward/format completions/mean_length
  completions/clipped_ratio frac_reward_zero_std entropy grad_norm`.split(/\s+/);
const SHARES = /pass@1|answer|format|ratio|frac/; // metrics that are shown in percent
const LISTED = 10; // tokens in each direction

function stepView(steps) {
  const made = columns((run) => {
    const step = steps[run.number];
    const record = run.byStep.get(state.step);
    return [
      record && tiles(record),
      step ? [groupList(step), movedMost(step)] : notHere(run),
      record && settingsOf("All metrics of the step", record),
    ];
  });
  return [h("h1", {}, `Step ${state.step}`), made];
}

function notHere(run) {
  return h("p", { class: "note" }, "The completions of this step are not shown. ", shown(run));
}

function shown(run) {
  const count = plural(run.recorded, "recorded step");
  return `This file has ${run.steps.length} of ${count}; --steps chooses others.`;
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

const placeOf = ({ run }, i) => ({
  view: "group",
  group: Math.floor(i / run.group_size) + 1,
  completion: (i % run.group_size) + 1,
});

/**
 * The tokens whose probability changed most upwards (sign 1) or downwards: [completion, token,
 * how often]. Within a group, the same token after the same tokens is listed once.
 */
function extremes(step, sign) {
  const gains = step.change.map((change, at) =>
    isNumber(change) ? sign * Math.exp(step.log_probs[at]) * Math.expm1(change) : 0,
  );
  const most = [...gains.keys()].sort((a, b) => gains[b] - gains[a]);
  const found = new Map();
  for (const at of most.slice(0, 20 * LISTED)) {
    const i = step.starts.findLastIndex((start) => start <= at);
    const key = `${placeOf(step, i).group}: ${step.token_ids.slice(step.starts[i], at + 1)}`;
    if (!found.has(key)) found.set(key, [i, at - step.starts[i], 0]);
    found.get(key)[2] += 1;
  }
  return [...found.values()].slice(0, LISTED);
}

function movedMost(step) {
  if (!step.token_ids) return tokensNote();
  const list = (title, tokens, tone) =>
    h("div", {}, h("h3", {}, title), h("ol", { class: "pushed" }, tokens.map(line(step, tone))));
  const note = `How likely a token was at its place before and after the update. All completions
    share the weights, so the update also moves tokens that it did not push, or against the push.`;
  return h(
    "section",
    { class: "card", "aria-label": "tokens that moved most" },
    h("h2", {}, "Tokens that moved most"),
    h("p", { class: "note" }, note),
    h(
      "div",
      { class: "columns" },
      list("rose", extremes(step, 1), "up-2"),
      list("fell", extremes(step, -1), "down-2"),
    ),
  );
}

/** A token that moved, between the texts before and after it. */
function line(step, tone) {
  return ([i, k, times]) => {
    const place = placeOf(step, i);
    const { pieces, log_probs, change, advantage } = step.completion(i);
    const text = (list) => list.map((piece) => piece.text.replaceAll("\n", "↵")).join("");
    const own = text([pieces[k]]) || pieces[k].special || "…";
    const who = times > 1 ? plural(times, "completion") : `completion ${place.completion}`;
    const link = {
      href: hashOf({ ...place, token: k + 1 }),
      "data-pushed": step.starts[i] + k,
    };
    const words = [
      h("bdi", {}, [...text(pieces.slice(0, k))].slice(-26).join("")),
      h("bdi", { class: `token ${tone}` }, own),
      h("bdi", {}, [...text(pieces.slice(k + 1))].slice(0, 12).join("")),
    ];
    const about = `group ${place.group}, ${who}, advantage ${signed(advantage, 2)}`;
    const moved = h("b", {}, chances(log_probs[k], change[k], 0));
    const cells = [h("span", { class: "words" }, words), moved, h("small", {}, about)];
    return h("li", {}, h("a", link, cells));
  };
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
      group.rows.map((row, k) => rewardCell(step, row, group.first + k)),
    ),
    h("span", { class: "note" }, facts.filter(Boolean).join(" · ")),
  );
}

/** A completion's reward as a cell. */
function rewardCell(step, row, i) {
  const rewards = step.rows.map(({ reward }) => reward);
  const low = Math.min(...rewards);
  const level = Math.round((4 * (row.reward - low)) / (Math.max(...rewards) - low || 1));
  const place = placeOf(step, i);
  const correct = row.answer_reward === 1;
  const label = `completion ${place.completion}: reward ${show(row.reward, 2)}`;
  const about = {
    class: `cell level-${level}`,
    href: hashOf(place),
    tabindex: -1,
    "aria-label": correct ? `${label}, correct` : label,
  };
  return h("a", about, correct ? "✓" : row.cut_off && "…");
}
