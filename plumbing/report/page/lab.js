// The advantage lab: group_advantages of nano_r1.py and its relatives of variants.py, on rewards that the reader may change.

const PRESETS = {
  "GRPO": { baseline: "group_mean", scale: "group" },
  "GRPO, biased std": { baseline: "group_mean", scale: "group_biased" },
  "Dr. GRPO": { baseline: "group_mean", scale: "none" },
  "RLOO": { baseline: "leave_one_out", scale: "none" },
  "MaxRL": { baseline: "group_mean", scale: "mean" },
  "batch std": { baseline: "group_mean", scale: "batch" },
  "no baseline": { baseline: "none", scale: "none" },
};

/** Standard deviation of numbers, with n - 1 in the denominator, or n if biased. */
function deviation(values, biased = false) {
  const middle = mean(values), squares = values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
  return Math.sqrt(squares / (values.length - (biased ? 0 : 1)));
}

/**
 * Advantages of a group: A_i = (r_i - baseline) / (divisor + eps), or without a scale r_i - baseline.
 * The divisor is a standard deviation or, with the scale "mean", the mean of the group's rewards.
 * `batch`: the rewards of the whole step, for their standard deviation; `baseline` "none": nothing is subtracted.
 */
function advantages(rewards, { baseline, scale }, eps, batch = rewards) {
  const n = rewards.length, middle = mean(rewards);
  const equal = rewards.every((reward) => reward === rewards[0]); // then exactly 0, whatever the rounding of the mean
  let result = baseline === "none" ? rewards.slice() : rewards.map((reward) => (equal ? 0 : reward - middle));
  if (baseline === "leave_one_out") result = result.map((a) => (a * n) / (n - 1));
  if (scale === "none") return result;
  if (scale === "mean") return result.map((a) => a / (middle + eps));
  const std = scale === "batch" ? deviation(batch) : n > 1 ? deviation(rewards, scale === "group_biased") : 0;
  return result.map((a) => a / (std + eps));
}

/** The run's own formula as [name, formula]: a preset, or "the run's" where none is the same. */
function ownFormula(config) {
  let own = { baseline: config.baseline, scale: config.scale_rewards };
  if (config.loss_type === "no_baseline") own = PRESETS["no baseline"];
  else if (config.scale_rewards === undefined) own = PRESETS["GRPO"]; // nano_r1.py has no such setting
  const same = ([, preset]) => preset.baseline === own.baseline && preset.scale === own.scale;
  return Object.entries(PRESETS).find(same) || ["the run's", own];
}

/** The lab of group g; `changed(advantages or null)` is told what it shows, null where that is the run's own. */
function labOf(step, g, changed) {
  const members = step.members(g), recorded = members.map((i) => step.advantage[i]);
  const [own, formulaOfRun] = ownFormula(step.run.config), eps = step.run.config.advantage_eps ?? 1e-4;
  const formulas = { ...PRESETS, [own]: formulaOfRun };
  let rewards = members.map((i) => step.reward[i]), preset = own;

  const choose = h("div", { class: "chips", role: "group", "aria-label": "how advantages are computed" });
  const buttons = Object.keys(formulas).map((name) => h("button", {
    type: "button", onclick: () => { preset = name; update(); },
  }, name));
  choose.append(...buttons);
  const inputs = members.map((_, k) => h("input", {
    type: "number", step: "any", value: rewards[k], "aria-label": `reward of completion ${k + 1}`,
    oninput: ({ target }) => {
      if (Number.isFinite(target.valueAsNumber)) { rewards[k] = target.valueAsNumber; update(); }
    },
  }));
  const results = members.map(() => h("td", { class: "number result" }));
  const bars = members.map(() => h("td", { class: "bar" }));
  const formula = h("p", { class: "note formula", "aria-live": "polite" });
  const reset = h("button", { type: "button", onclick: () => {
    rewards = members.map((i) => step.reward[i]);
    inputs.forEach((input, k) => { input.value = rewards[k]; });
    preset = own;
    update();
  } }, "back to the run's own");

  function update() {
    const batch = step.reward.slice();
    members.forEach((i, k) => { batch[i] = rewards[k]; });
    const same = preset === own && rewards.every((reward, k) => reward === step.reward[members[k]]);
    const values = same ? recorded : advantages(rewards, formulas[preset], eps, batch);
    const largest = Math.max(1e-9, ...values.map(Math.abs), ...recorded.map(Math.abs));
    buttons.forEach((button) => button.setAttribute("aria-pressed", button.textContent === preset));
    values.forEach((value, k) => {
      results[k].textContent = signed(value);
      bars[k].replaceChildren(diverging(value / largest));
    });
    const { baseline, scale } = formulas[preset];
    const divisors = { group: "std", group_biased: "std (biased)", batch: "std of the batch", mean: "mean" };
    const what = { none: "reward", group_mean: "reward − mean", leave_one_out: "reward − mean of the others" }[baseline];
    formula.textContent = `advantage = ${scale === "none" ? what : `(${what}) / (${divisors[scale]} + ${eps})`}` +
      `, mean ${show(mean(rewards))}, std ${show(rewards.length > 1 ? deviation(rewards) : 0)}, sum of advantages ${show(+values.reduce((a, b) => a + b, 0).toFixed(6))}`;
    reset.disabled = same;
    changed(same ? null : values);
  }

  update();
  return h("section", { class: "card lab", "aria-label": "advantage lab" },
    h("h2", {}, "Advantage lab"),
    h("p", { class: "note" }, "Change a reward or the formula: what would this group have taught the model?"),
    choose,
    h("table", {},
      h("thead", {}, h("tr", {}, ["completion", "reward", "in the run", "here", ""].map((name, i) =>
        i < 4 ? h("th", { scope: "col" }, name) : h("td", {})))),
      h("tbody", {}, members.map((_, k) => h("tr", {},
        h("th", { scope: "row" }, k + 1), h("td", {}, inputs[k]),
        h("td", { class: "number" }, signed(recorded[k])), results[k], bars[k])))),
    formula, reset);
}

/** A bar to the left (negative, hatched) or to the right of a middle line; `share` from -1 to 1. */
function diverging(share) {
  const width = `${50 * Math.min(1, Math.abs(share))}%`;
  const bar = h("span", { class: share < 0 ? "down" : "up", style: share < 0 ? { right: "50%", width } : { left: "50%", width } });
  return h("span", { class: "diverging", "aria-hidden": "true" }, bar);
}
