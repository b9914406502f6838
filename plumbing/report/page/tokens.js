// A completion as its tokens, coloured on fixed scales; the numbers of each on hover.

// Of each way to colour: what it shows, where a new shade begins, and whether it has a sign. Signs differ by hue, and by
// the line below the token (whole or dotted), so that no colour vision is needed.
const COLOURS = {
  update: { label: "what the update did", cuts: [0.002, 0.01, 0.05, 0.2], sign: true, unit: "nats", array: "change",
    ends: ["made less likely", "made more likely"] },
  advantage: { label: "advantage", cuts: [0.05, 0.5, 1, 1.5], sign: true, unit: "", array: "advantages", ends: ["below the group", "above the group"] },
  entropy: { label: "entropy", cuts: [0.05, 0.3, 1, 2], unit: "nats", array: "entropy", ends: ["sure", "unsure"] },
  logprob: { label: "log-prob", cuts: [0.1, 0.7, 2.3, 4.6], unit: "nats below 0", array: "logProb", ends: ["likely", "unlikely"] },
  none: { label: "no colour", cuts: [] },
};

/** The class of a value under a way to colour: "up-3", "down-1", "shade-2", "unknown", or "" for nearly 0. */
function shade(name, value) {
  const { cuts, sign } = COLOURS[name];
  if (!cuts.length) return "";
  if (!isNumber(value)) return "unknown";
  const size = cuts.filter((cut) => Math.abs(value) >= cut).length;
  return size ? `${sign ? (value > 0 ? "up" : "down") : "shade"}-${size}` : "";
}

/** Values of completion i's tokens under a way to colour; `advantage` replaces the recorded one (the lab's). */
function valuesOf(step, i, name, advantage = null) {
  const { array } = COLOURS[name], length = step.starts[i + 1] - step.starts[i];
  if (name === "advantage" && (advantage !== null || !step.advantages)) return new Array(length).fill(advantage ?? step.advantage[i]);
  return (array && step.part(array, i)) || new Array(length).fill(NaN);
}

/** Completion i as text in which every token is an element of its own. */
function tokensOf(step, i) {
  const spans = [];
  let end = 0;
  for (const { text, special } of step.pieces(i)) {
    for (const [piece, wrong] of cutAtSums(text, end, step.wrong[i], !step.tokens)) {
      const span = h("span", { class: "token" }, piece);
      if (wrong) span.dataset.wrong = "";
      if (special !== null && special !== undefined) span.dataset.label = special;
      else if (!text) span.dataset.label = "…"; // the first bytes of a character
      else if (/[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/.test(piece)) span.dataset.label = "⟨invisible⟩";
      else if (step.tokens && piece.includes("\n")) span.dataset.label = "↵"; // a whole completion has its line breaks
      spans.push(span);
    }
    end += text.length;
  }
  const holder = h("p", { class: "tokens", dir: "ltr" }, spans);
  holder.source = { step, i };
  return holder;
}

/** A piece of text that begins at `start`, marked where it is part of a wrong sum; cut there if `cut`. */
function cutAtSums(text, start, sums, cut) {
  const end = start + text.length, within = sums.filter(([a, b]) => a < end && b > start);
  if (!cut || !within.length) return [[text, within.length > 0]];
  const edges = [...new Set([start, end, ...within.flat().map((x) => Math.min(end, Math.max(start, x)))])].sort((a, b) => a - b);
  return edges.slice(1).map((edge, k) => [text.slice(edges[k] - start, edge - start), within.some(([a, b]) => edges[k] >= a && edge <= b)]);
}

/** Colour the tokens of a completion. */
function paint(holder, name, advantage = null) {
  const { step, i } = holder.source;
  if (!step.tokens) { // a piece may be a whole completion
    const tone = name === "advantage" ? shade(name, advantage ?? step.advantage[i]) : name === "none" ? "" : "unknown";
    for (const span of holder.children) span.className = `token ${tone}`;
    return;
  }
  const values = valuesOf(step, i, name, advantage);
  for (let k = 0; k < holder.children.length; k++) holder.children[k].className = `token ${shade(name, values[k])}`.trim();
}

/** Everything that is known of a token, as lines for the tooltip. */
function tokenFacts(span) {
  const holder = span.parentElement, { step, i } = holder.source, k = [...holder.children].indexOf(span);
  const wrong = "wrong" in span.dataset ? ["part of a sum that is wrong"] : [];
  if (!step.tokens) return wrong.concat(["Single tokens were not recorded at this step."]);
  const logProb = step.part("logProb", i)[k], entropy = step.part("entropy", i)[k], change = step.part("change", i)[k];
  const text = JSON.stringify(span.textContent || span.dataset.label || "").slice(0, 60), A = valuesOf(step, i, "advantage")[k];
  const against = isNumber(change) && Math.abs(change) >= COLOURS.update.cuts[0] && change * A < 0;
  return [
    [text, isNumber(change) ? chances(logProb, change) : isNumber(logProb) ? chance(Math.exp(logProb)) : "not computed"],
    !isNumber(change) ? "what the update did was not computed"
      : `${Math.abs(change) < COLOURS.update.cuts[0] ? "hardly moved" : change > 0 ? "made more likely" : "made less likely"} by the update: ${signed(change, 4)} nats`,
    against ? `That is against its own completion's advantage: one update comes from all ${count(step.reward.length)} completions of the step.` : null,
    ...tokenLoss(step, i, k),
    ["entropy, where it was drawn", isNumber(entropy) ? `${show(entropy)} nats` : "not computed"],
    ["place, id", `${k + 1}, ${step.run.tokenIds[step.part("tokens", i)[k]]}`],
    ...wrong,
  ].filter(Boolean);
}

document.addEventListener("mouseover", ({ target }) => {
  if (target instanceof Element && target.matches(".tokens .token")) tooltip.show(target, tokenFacts(target));
});

/** What the colours mean. */
function colourLegend(name) {
  const { cuts, sign, unit, ends, label } = COLOURS[name];
  if (!cuts.length) return h("p", { class: "legend note" }, "Tokens without colour.");
  const box = (tone, text) => h("span", { class: "step" }, h("span", { class: `token ${tone}`, "aria-hidden": "true" }, "ab"), h("small", {}, text));
  const sizes = cuts.map((cut, i) => [i + 1, String(cut)]);
  const down = sign ? sizes.toReversed().map(([i, cut]) => box(`down-${i}`, `−${cut}`)) : [];
  const up = sizes.map(([i, cut]) => box(`${sign ? "up" : "shade"}-${i}`, `${sign ? "+" : ""}${cut}`));
  return h("p", { class: "legend note", "data-legend": name }, `${label}${unit ? `, ${unit}` : ""}: `, ends[0], " ", down, box("", "0"), up, " ", ends[1],
    h("span", { class: "step" }, h("span", { class: "token unknown", "aria-hidden": "true" }, "ab"), h("small", {}, "not computed")),
    h("span", { class: "step" }, h("span", { class: "token", "data-wrong": "", "aria-hidden": "true" }, "1+1=3"), h("small", {}, "wrong sum")));
}
