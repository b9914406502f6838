// A step: what its loss is made of, the tokens that its update pushed most, its groups, its metrics.

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
        step ? [balance(step, record), pushedOf(step), groupList(step)] : notHere(run),
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

const TERMS = { // how report/payload.py names the parts of a loss
  up: ["made more likely", () => "advantage above 0"],
  down: ["made less likely", () => "advantage below 0"],
  not: ["not pushed", (step) => `advantage 0: ${step.groups.filter((group) => group.equal).reduce((sum, group) => sum + group.members.length, 0)} are in groups without signal, and the others are at their group's mean`],
};

/** Why the loss is nearly 0: the parts of the completions cancel; their gradients do not. */
function balance(step, record) {
  if (!isNumber(step.loss)) return null;
  const digits = Math.min(8, Math.max(3, 2 - Math.floor(Math.log10(Math.abs(step.loss) || 1)))), n = step.rows.length;
  const line = (name, value, note, strong) => h("tr", { class: strong }, h("th", { scope: "row" }, name), h("td", { class: "number", "data-term": name !== "gradient norm" }, value), h("td", { class: "note" }, note));
  const rows = step.terms.filter(([key, value]) => TERMS[key] || value).map(([key, value, count]) => {
    const [name, why] = TERMS[key] || [key, null];
    return line(name, signed(value, digits), why ? `${count} of ${plural(n, "completion")}, ${why(step)}` : `${count} × the completions' mean k3`);
  });
  return h("section", { class: "card balance", "aria-label": "what the loss is made of" },
    h("h2", {}, `Why is the loss ${show(step.loss, digits)}?`),
    partsOf(step),
    h("div", { class: "ends", "aria-hidden": "true" }, h("span", {}, "← made more likely"), h("span", {}, "made less likely →")),
    h("table", {}, h("tbody", {}, rows, line("loss", signed(step.loss, digits), "their sum", "total"), line("gradient norm", show(record?.grad_norm), "the gradient moves the weights"))),
    h("p", { class: "note" }, "The advantages of a group sum to 0, so the parts nearly cancel. Their gradients come from different completions and do not cancel."));
}

/** One bar of all completions' parts of the loss: to the left those made more likely. */
function partsOf(step) {
  const parts = step.parts.map((part, i) => [part, i]).sort(([a], [b]) => Math.abs(b) - Math.abs(a));
  const sums = [0, 0], reach = parts.reduce((sum, [part]) => sum + Math.abs(part), 0) / 2 + Math.abs(step.loss);
  return h("svg", { class: "terms", role: "img", "aria-label": "each completion's part of the loss" }, parts.map(([part, i]) => {
    const side = part > 0 ? 1 : 0, width = (50 * Math.abs(part)) / (reach || 1), x = side ? 50 + sums[1] : 50 - sums[0] - width;
    sums[side] += width;
    return h("rect", { x: `${x}%`, width: `${Math.max(0, width - 0.05)}%`, height: "100%", class: side ? "pushed-down" : "pushed-up",
      "data-tip": `group ${Math.floor(i / step.run.group_size) + 1}, completion ${(i % step.run.group_size) + 1}: ${signed(part, 5)}` });
  }), h("line", { x1: "50%", x2: "50%", y1: 0, y2: "100%" }));
}

/** The text before and after token k of completion i, cut to what fits into a line. */
function around(step, i, k) {
  const pieces = step.completion(i), visible = (text) => text.replaceAll("\n", "↵"), text = (list) => [...visible(list.map((piece) => piece.text).join(""))];
  const before = text(pieces.slice(0, k)), after = text(pieces.slice(k + 1));
  return [(before.length > 26 ? "…" : "") + before.slice(-26).join(""), visible(pieces[k].text) || pieces[k].special || "…", after.slice(0, 12).join("") + (after.length > 12 ? "…" : "")];
}

function pushedOf(step) {
  if (!step.pushed) return tokensNote(step.run);
  const list = (title, tokens, tone) => h("div", {}, h("h3", {}, title), h("ol", { class: "pushed" }, tokens.map(([i, k, times]) => {
    const [before, own, after] = around(step, i, k), at = step.starts[i] + k, group = Math.floor(i / step.run.group_size) + 1, completion = (i % step.run.group_size) + 1;
    return h("li", {}, h("a", { href: hashOf({ view: "group", group, completion, token: k + 1 }), "data-pushed": at },
      h("span", { class: "words" }, h("bdi", {}, before), h("bdi", { class: `token ${tone}` }, own), h("bdi", {}, after)),
      h("b", {}, chances(step.log_probs[at], step.change[at])),
      h("small", {}, `group ${group}, ${times > 1 ? `${times} completions` : `completion ${completion}`}, advantage ${signed(step.rows[i].advantage, 2)}`)));
  })));
  return h("section", { class: "card", "aria-label": "tokens most pushed" },
    h("h2", {}, "Most pushed by this update"),
    h("p", { class: "note" }, "These tokens have the largest changes. Each line shows how likely the token was at its place, before and after the update."),
    h("div", { class: "columns" }, list("made more likely", step.pushed[0], "up-3"), list("made less likely", step.pushed[1], "down-3")));
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
    h("p", { class: "legend note" }, "A darker cell means a higher reward. ✓ means correct, and … means cut off."),
    h("ol", { class: "group-list" }, shown.map((group) => h("li", {}, groupRow(step, group)))));
}

function groupRow(step, group) {
  const facts = [`${group.correct} of ${group.members.length} correct`, group.equal && "no signal", group.cutOff && `${group.cutOff} cut off`, group.badFormat && `${group.badFormat} wrong format`];
  return h("a", { class: "group-row", href: hashOf({ view: "group", group: group.number, completion: 0 }), "data-group": group.number },
    h("span", { class: "place" }, group.number), h("span", { class: "problem" }, group.problem),
    h("span", { class: "strip" }, group.members.map((i) => rewardCell(step, i))), h("span", { class: "facts" }, facts.filter(Boolean).join(" · ")));
}

/** A completion's reward as a cell. */
function rewardCell(step, i) {
  const rewards = step.rows.map((row) => row.reward), low = Math.min(...rewards), high = Math.max(...rewards), row = step.rows[i];
  const level = high > low ? Math.round((4 * (row.reward - low)) / (high - low)) : 0;
  return h("span", { class: `cell level-${level}`, role: "img", "aria-label": `reward ${show(row.reward, 2)}` }, row.answer_reward === 1 ? "✓" : row.cut_off ? "…" : "");
}
