// A step: its groups, the tokens that moved most, what its loss is made of, its metrics.

const FILTERS = {
  all: ["all", () => true],
  signal: ["with signal", (group) => !group.equal],
  equal: ["no signal", (group) => group.equal],
  cut: ["cut off", (group) => group.cutOff > 0],
  format: ["wrong format", (group) => group.badFormat > 0],
};
const TILES = ["reward", "reward/answer", "reward/format", "completions/mean_length", "completions/clipped_ratio", "frac_reward_zero_std", "entropy", "grad_norm"];

function stepView(steps) {
  return [
    h("h1", {}, `Step ${state.step}`),
    columns((run) => {
      const step = steps[run.number], record = run.byStep.get(state.step);
      return [
        record ? tiles(record) : null,
        step ? [groupList(step), movedMost(step), balance(step, record)] : notHere(run),
        record ? settingsOf("All metrics of the step", record) : null,
      ];
    }),
  ];
}

const notHere = (run) => h("p", { class: "note" }, "The completions of this step are not in this file. ", stepsInFile(run));
const stepsInFile = (run) => `The file has ${run.steps.length} of ${plural(run.recorded, "recorded step")}; --steps chooses others.`;

/** The numbers of the step that one looks at first. */
const tiles = (record) => h("dl", { class: "tiles" }, TILES.filter((name) => name in record).map((name) =>
  h("div", {}, h("dt", {}, term(...report.metrics[name])), h("dd", { "data-metric": name }, /answer|ratio|frac/.test(name) ? percent(record[name]) : show(record[name], 2)))));

/** Why the loss is nearly 0: the parts of the attempts cancel; their gradients do not. */
function balance(step, record) {
  if (!isNumber(step.loss)) return null;
  const digits = Math.min(8, Math.max(3, 2 - Math.floor(Math.log10(Math.abs(step.loss) || 1)))), n = step.rows.length, { kl_coef: beta } = step.run.config;
  const line = (name, value, note, strong) => h("tr", { class: strong }, h("th", { scope: "row" }, name), h("td", { class: "number", "data-term": name !== "gradient norm" }, value), h("td", { class: "note" }, note));
  const sums = { "pushed up": [0, 0, "advantage above 0"], "pushed down": [0, 0, "advantage below 0"], "not pushed": [0, 0, "advantage 0"] };
  for (const { advantage } of step.rows) {
    const sum = sums[Math.abs(advantage) < 5e-4 ? "not pushed" : advantage > 0 ? "pushed up" : "pushed down"];
    sum[0] -= advantage / n;
    sum[1] += 1;
  }
  const penalty = step.loss - Object.values(sums).reduce((all, [value]) => all + value, 0);
  return h("details", { class: "card balance" },
    h("summary", {}, `Where the loss ${show(step.loss, digits)} comes from`),
    partsOf(step),
    h("div", { class: "ends", "aria-hidden": "true" }, h("span", {}, "← pushed up"), h("span", {}, "pushed down →")),
    h("table", {}, h("tbody", {}, Object.entries(sums).map(([name, [value, count, why]]) => line(name, signed(value, digits), `${count} of ${plural(n, "attempt")}, ${why}`)),
      beta ? line("KL penalty", signed(penalty, digits), `${beta} × the attempts' mean k3`) : null,
      line("loss", signed(step.loss, digits), "their sum", "total"), line("gradient norm", show(record?.grad_norm), "the gradient moves the weights"))),
    h("p", { class: "note" }, "The loss pushes an attempt up or down by its advantage. The advantages of a group sum to 0, so the parts nearly cancel. Their gradients come from different attempts and do not cancel."));
}

/** One bar of all attempts' parts of the loss: to the left those that it pushes up. A click goes to the attempt. */
function partsOf(step) {
  const parts = step.parts.map((part, i) => [part, i]).sort(([a], [b]) => Math.abs(b) - Math.abs(a));
  const sums = [0, 0], reach = parts.reduce((sum, [part]) => sum + Math.abs(part), 0) / 2 + Math.abs(step.loss);
  return h("svg", { class: "terms", role: "img", "aria-label": "each attempt's part of the loss" }, parts.map(([part, i]) => {
    const side = part > 0 ? 1 : 0, width = (50 * Math.abs(part)) / (reach || 1), x = side ? 50 + sums[1] : 50 - sums[0] - width;
    sums[side] += width;
    return h("rect", { x: `${x}%`, width: `${Math.max(0, width - 0.05)}%`, height: "100%", class: side ? "pushed-down" : "pushed-up",
      onclick: () => go(placeOfAttempt(step, i)), "data-tip": `group ${Math.floor(i / step.run.group_size) + 1}, attempt ${(i % step.run.group_size) + 1}: ${signed(part, 5)}` });
  }), h("line", { x1: "50%", x2: "50%", y1: 0, y2: "100%" }));
}

/** The text before and after token k of completion i, cut to what fits into a line. */
function around(step, i, k) {
  const pieces = step.completion(i), visible = (text) => text.replaceAll("\n", "↵"), text = (list) => [...visible(list.map((piece) => piece.text).join(""))];
  const before = text(pieces.slice(0, k)), after = text(pieces.slice(k + 1));
  return [(before.length > 26 ? "…" : "") + before.slice(-26).join(""), visible(pieces[k].text) || pieces[k].special || "…", after.slice(0, 12).join("") + (after.length > 12 ? "…" : "")];
}

const placeOfAttempt = ({ run }, i) => ({ view: "group", group: Math.floor(i / run.group_size) + 1, completion: (i % run.group_size) + 1 });

const LISTED = 10; // tokens in each direction

/** The tokens whose probability changed most upwards (sign 1) or downwards, each [completion, place, how often]. Within a group, the same token after the same tokens is listed once. */
function extremes(step, sign) {
  const gains = step.change.map((change, at) => (isNumber(change) ? sign * Math.exp(step.log_probs[at]) * Math.expm1(change) : 0)), found = new Map();
  for (const at of [...gains.keys()].sort((a, b) => gains[b] - gains[a]).slice(0, 20 * LISTED)) {
    const i = step.starts.findLastIndex((start) => start <= at), key = [placeOfAttempt(step, i).group, step.token_ids.slice(step.starts[i], at + 1)].join();
    if (!found.has(key)) found.set(key, [i, at - step.starts[i], 0]);
    found.get(key)[2] += 1;
  }
  return [...found.values()].slice(0, LISTED);
}

function movedMost(step) {
  if (!step.token_ids) return tokensNote(step.run);
  const list = (title, tokens, tone) => h("div", {}, h("h3", {}, title), h("ol", { class: "pushed" }, tokens.map(([i, k, times]) => {
    const [before, own, after] = around(step, i, k), at = step.starts[i] + k, { group, completion } = placeOfAttempt(step, i);
    return h("li", {}, h("a", { href: hashOf({ ...placeOfAttempt(step, i), token: k + 1 }), "data-pushed": at },
      h("span", { class: "words" }, h("bdi", {}, before), h("bdi", { class: `token ${tone}` }, own), h("bdi", {}, after)),
      h("b", {}, chances(step.log_probs[at], step.change[at], 0)),
      h("small", {}, `group ${group}, ${times > 1 ? `${times} attempts` : `attempt ${completion}`}, advantage ${signed(step.rows[i].advantage, 2)}`)));
  })));
  return h("section", { class: "card", "aria-label": "tokens that moved most" },
    h("h2", {}, "Tokens that moved most"),
    h("p", { class: "note" }, "Each line shows how likely a token was at its place, before and after the update."),
    h("div", { class: "columns" }, list("rose", extremes(step, 1), "up-2"), list("fell", extremes(step, -1), "down-2")));
}

/** Where tokens are recorded, if they are not here. */
function tokensNote({ tokenSteps }) {
  const near = tokenSteps.toSorted((a, b) => Math.abs(a - state.step) - Math.abs(b - state.step)).slice(0, 3).sort((a, b) => a - b);
  return h("p", { class: "note" }, "The tokens of this step were not recorded (--record_tokens_every).", near.length ? " The nearest steps with recorded tokens:" : null,
    near.map((step) => h("a", { href: hashOf({ step }) }, ` ${step}`)));
}

function groupList(step) {
  const shown = step.groups.filter(FILTERS[state.filter][1]);
  return h("section", { class: "groups", "aria-label": "groups" },
    h("h2", {}, "Groups"),
    h("div", { class: "chips", role: "group", "aria-label": "which groups" }, Object.entries(FILTERS).map(([key, [label, test]]) =>
      h("button", { type: "button", "aria-pressed": state.filter === key, "data-filter": key, onclick: () => go({ filter: key }) },
        label, h("small", {}, ` ${step.groups.filter(test).length}`)))),
    h("p", { class: "legend note" }, "A cell is an attempt. A darker cell means a higher reward, ✓ means correct, … means cut off."),
    h("ol", { class: "group-list" }, shown.map((group) => h("li", {}, groupRow(step, group)))));
}

function groupRow(step, group) {
  const facts = [`${group.correct} of ${group.members.length} correct`, group.equal && "no signal", group.cutOff && `${group.cutOff} cut off`, group.badFormat && `${group.badFormat} wrong format`];
  return h("div", { class: "group-row" },
    h("a", { href: hashOf({ view: "group", group: group.number, completion: 0 }), "data-group": group.number }, h("span", { class: "place" }, group.number), h("span", { class: "problem" }, group.problem)),
    h("span", { class: "strip" }, group.members.map((i) => rewardCell(step, i))), h("span", { class: "facts" }, facts.filter(Boolean).join(" · ")));
}

/** An attempt's reward as a cell. */
function rewardCell(step, i) {
  const rewards = step.rows.map((row) => row.reward), low = Math.min(...rewards), high = Math.max(...rewards), row = step.rows[i], place = placeOfAttempt(step, i);
  const level = high > low ? Math.round((4 * (row.reward - low)) / (high - low)) : 0;
  return h("a", { class: `cell level-${level}`, href: hashOf(place), tabindex: -1, "aria-label": `attempt ${place.completion}: reward ${show(row.reward, 2)}${row.answer_reward === 1 ? ", correct" : ""}` }, row.answer_reward === 1 ? "✓" : row.cut_off ? "…" : "");
}
