// What a step's loss is made of: its terms, as the loss puts its tokens together, and one token's with its numbers.

// Settings of variants.py as nano_r1.py has them fixed.
const LESSON = {
  loss_type: "grpo_clip", loss_agg_mode: "seq-mean-token-mean", baseline: "group_mean", scale_rewards: "group", kl_estimator: "k3",
  credit: "completion", epochs: 1, minibatches: 1, max_num_gen_batches: 1, overlong_buffer: 0, tis_cap: 0, entropy_coef: 0,
  binary_reward: false, mask_truncated_completions: false, vine_segments: 4, vine_samples: 4, cliprange: 0.2,
};
const settingsWithLesson = (run) => ({ ...LESSON, ...run.config });
const sum = (values) => values.reduce((a, b) => a + b, 0);

/** How many completions of the step the loss is a mean of: dynamic sampling has drawn more. */
const completionsOf = (step) => (step.run.config.prompts_per_step * step.groupSize) || step.reward.length;

/** What each token's loss is divided by in the step's: [number, in words], for completion i; null where it is not known. */
function divisor(step, i) {
  const { loss_agg_mode: mode, max_tokens: limit, minibatches, mask_truncated_completions: masks } = settingsWithLesson(step.run);
  const n = completionsOf(step); // those to train on come first
  if (mode === "seq-mean-token-mean") return [n * step.length[i], `${n} completions × ${step.length[i]} tokens`];
  if (mode === "seq-mean-token-sum-norm") return [n * limit, `${n} completions × ${limit} tokens at most`];
  if (minibatches > 1) return null;
  const tokens = sum(step.length.filter((_, k) => k < n && !(masks && step.finish[k] === "length")));
  return tokens ? [tokens, `${count(tokens)} tokens of the step`] : null;
}

/**
 * The terms of a step's loss: parts of the policy gradient by completion, sums of the KL penalty and of the entropy bonus.
 * `known`: the terms are told apart, which an older record or a loss of one's own does not allow; then `policy` has the whole parts.
 * `formula`: and the loss is the one of the settings, not one of one's own.
 */
function lossTerms(step) {
  const c = settingsWithLesson(step.run), parts = step.loss.map((part) => part ?? 0); // null: it has no gradient, and was not scored
  const term = (values, weight) => parts.map((_, i) => {
    const by = divisor(step, i);
    return weight && isNumber(values?.[i]) ? (by ? (weight * values[i] * step.length[i]) / by[0] : NaN) : 0;
  });
  const kl = term(step.kl, c.kl_coef || 0), entropy = term(step.entropyMean, -c.entropy_coef);
  const policy = parts.map((part, i) => part - kl[i] - entropy[i]);
  const recorded = !(c.kl_coef || c.entropy_coef) || step.kl?.some(isNumber) || step.entropyMean?.some(isNumber);
  // Where pi_old is the policy itself and advantages are by completion, the policy's term of each is known: -A.
  const plain = c.epochs * c.minibatches === 1 && c.credit === "completion" && !c.tis_cap && !/reinforce|no_baseline/.test(c.loss_type);
  const fits = (part, i) => {
    const by = divisor(step, i), wanted = by && isNumber(step.loss[i]) ? (-step.advantage[i] * step.length[i]) / by[0] : 0;
    return !isNumber(step.loss[i]) || part === 0 || Math.abs(part - wanted) < 1e-3 * Math.abs(wanted) + 1e-6;
  };
  const formula = !plain || policy.every(fits), known = Boolean(recorded) && policy.every(isNumber) && (formula || !(c.kl_coef || c.entropy_coef));
  return { known, formula: known && formula, parts, policy: known ? policy : parts, kl: known ? sum(kl) : 0, entropy: known ? sum(entropy) : 0, total: sum(parts) };
}

/** Numbers rounded so that they add up to the last of them as it is shown, with so many digits that it has three. */
function addingUp(values, total) {
  const digits = Math.min(9, Math.max(3, 2 - Math.floor(Math.log10(Math.abs(total) || 1e-9)))), unit = 10 ** digits;
  const whole = values.map((value) => Math.round(value * unit)), largest = whole.reduce((at, v, i) => (Math.abs(v) > Math.abs(whole[at]) ? i : at), 0);
  whole[largest] += Math.round(total * unit) - sum(whole);
  return [...whole, Math.round(total * unit)].map((value) => (value > 0 ? "+" : "") + (value / unit).toFixed(digits).replace(/^-/, "−"));
}

/** Why the loss is nearly 0: the completions' parts, to the left those that are pushed up, cancel; gradients do not. */
function balance(step, record) {
  if (!step.loss.some(isNumber) || step.loss.some((part) => typeof part === "string")) return null; // not recorded; NaN
  const terms = lossTerms(step), { kl_coef: beta, entropy_coef: bonus, epochs } = settingsWithLesson(step.run);
  const up = terms.policy.filter((part) => part < -1e-8), down = terms.policy.filter((part) => part > 1e-8); // 0 but for rounding is neither
  const what = terms.known ? "policy gradient" : "parts";
  const some = (part) => `${part.length} of ${terms.parts.length} completions`;
  const rows = [[`${what}: pushed up`, sum(up), some(up)], [`${what}: pushed down`, sum(down), some(down)]];
  const meanOfMeans = beta ? terms.kl / beta : 0;
  if (beta && terms.known) rows.push(["KL penalty", terms.kl, `${beta} × ${show(meanOfMeans, 6)}${isNumber(record.kl) ? `; as a mean over tokens, the metric, KL is ${show(record.kl, 6)}` : ""}`]);
  if (bonus && terms.known) rows.push(["entropy bonus", terms.entropy, `−${bonus} × entropy`]);
  const shown = addingUp(rows.map(([, value]) => value), terms.total);
  const off = Math.abs(terms.total - record.loss) > 1e-6 + 1e-4 * Math.abs(record.loss);
  return h("section", { class: "card balance", "aria-label": "what the loss is made of" },
    h("h2", {}, "Why is the loss ", h("span", { class: "number" }, shown.at(-1).replace("+", "")), "?"),
    partsOf(step, terms.parts),
    h("div", { class: "ends", "aria-hidden": "true" }, h("span", {}, "← made more likely"), h("span", {}, "made less likely →")),
    h("table", {}, h("tbody", {}, rows.map(([name, , note], k) =>
      h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number", "data-term": name }, shown[k]), h("td", { class: "note" }, note))),
    h("tr", { class: "total" }, h("th", { scope: "row" }, term("loss", "loss")), h("td", { class: "number strong", "data-term": "loss" }, shown.at(-1)),
      h("td", { class: "note" }, off && isNumber(record.loss) ? `of the first of ${plural(epochs, "pass")}; the record's mean is ${show(record.loss, 6)}` : "their sum, and what the record says")),
    h("tr", {}, h("th", { scope: "row" }, term("grad_norm", "gradient norm")), h("td", { class: "number strong" }, show(record.grad_norm, 3)),
      h("td", { class: "note" }, "what moves the weights")))),
    h("p", { class: "note" }, "The advantages of a group sum to 0, so the parts nearly cancel. Their gradients are of different completions, and do not cancel.",
      terms.known ? null : " The penalty's part is within: it was not recorded apart."));
}

/** One bar of all completions' parts. */
function partsOf(step, parts) {
  const order = parts.map((value, i) => [value, i]).filter(([value]) => value !== 0).sort(([a], [b]) => a - b);
  const below = -sum(parts.filter((p) => p < 0)), above = sum(parts.filter((p) => p > 0)), reach = Math.max(below, above, 1e-12);
  let left = 0, right = 0;
  const bars = order.map(([value, i]) => {
    const width = (50 * Math.abs(value)) / reach, x = value < 0 ? 50 - (left += width) : 50 + ((right += width) - width);
    return h("rect", { x: `${x}%`, y: 0, width: `${Math.max(0.05, width - 0.05)}%`, height: "100%", class: value < 0 ? "pushed-up" : "pushed-down",
      "data-tip": `completion ${(i % step.groupSize) + 1} of group ${Math.floor(i / step.groupSize) + 1}: ${signed(value, 5)}` });
  });
  return h("svg", { class: "terms", role: "img", "aria-label": `parts of the loss: ${show(-below)} and ${signed(above)}` }, bars,
    h("line", { x1: "50%", x2: "50%", y1: 0, y2: "100%" }));
}

/** The loss of token k of completion i, as lines of a tooltip; [] where the formula is not the run's or was not recorded. */
function tokenLoss(step, i, k) {
  step.terms ??= lossTerms(step);
  if (!step.terms.formula || !isNumber(step.loss[i])) return [];
  const c = settingsWithLesson(step.run), A = valuesOf(step, i, "advantage")[k], d = step.part("reference", i)?.[k];
  const logProb = step.part("logProb", i)[k], beta = c.kl_coef || 0, by = divisor(step, i);
  if (beta && !isNumber(d)) return [];
  const [low, high] = [1 - c.cliprange, 1 + (c.cliprange_high ?? c.cliprange)].map((x) => +x.toPrecision(6));
  const a = show(A), reinforce = /reinforce|no_baseline/.test(c.loss_type);
  let [formula, numbers, value] = [`−min(ρA, clip(ρ, ${low}, ${high})A)`, `−min(1 × ${a}, 1 × ${a})`, -A];
  if (c.loss_type === "grpo_no_clip") [formula, numbers] = ["−ρA", `−1 × ${a}`];
  if (reinforce) [formula, numbers, value] = ["−A log π", `−(${a}) × ${show(logProb)}`, -A * logProb];
  const estimates = { k3: ["(exp(d) − 1 − d)", Math.expm1(d) - d], k2: ["d²/2", (d * d) / 2], k1: ["(−d)", -d] };
  if (beta) {
    const [written, kl] = estimates[c.kl_estimator];
    formula += ` + β${written}`;
    numbers += ` + ${beta} × ${show(kl, 5)}`;
    value += beta * kl;
  }
  const several = c.epochs * c.minibatches > 1 ? ", at the first optimizer step" : "";
  return [
    [`L = ${formula}\n  = ${numbers}\n  = ${show(value, 4)}`],
    reinforce ? null : ["ρ, policy / sampling policy", `1${several}`],
    ["A, advantage", signed(A)],
    beta ? ["d, log (base / policy)", signed(d, 4)] : null,
    beta ? ["the base gives it", chance(Math.exp(logProb + d))] : null,
    by ? ["divided by", by[1]] : null,
  ].filter(Boolean);
}
