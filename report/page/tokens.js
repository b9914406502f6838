// A completion as its tokens, coloured on fixed scales; the numbers of each token on hover.

// Of each colouring: its array, where a new shade begins, its ends in words, and whether it has a sign. Signs differ by hue
// and by the line below the token (whole or dotted), so no colour vision is needed.
const COLOURS = {
  update: { label: "what the update did", array: "change", get cuts() { return report.cuts; }, sign: true, unit: "nats", ends: ["made less likely", "made more likely"] },
  advantage: { label: "advantage", array: "advantages", cuts: [0.05, 0.5, 1, 1.5], sign: true, ends: ["below the group", "above the group"] },
  logprob: { label: "log-prob", array: "log_probs", cuts: [0.1, 0.7, 2.3, 4.6], unit: "nats below 0", ends: ["likely", "unlikely"] },
};

/** The class of a value: "up-3", "down-1", "shade-2", "unknown", or "" near 0. */
function shade({ cuts, sign }, value) {
  if (!isNumber(value)) return "unknown";
  const size = cuts.filter((cut) => Math.abs(value) >= cut).length;
  return size ? `${sign ? (value > 0 ? "up" : "down") : "shade"}-${size}` : "";
}

const SUM = /(?<![\d.,])(?<![-+*\/()^] {0,3})(?=((\d{1,15}) {0,3}([-+*\/]) {0,3}(\d{1,15}) {0,3}= {0,3}(\d{1,15})(?!\d|\.\d|,\d{3}))(?: {0,3}\/ {0,3}(\d{1,15}))?)/g;

/** [start, end] of each written `a + b = c` that is wrong. The end of a longer expression, 1+2+3=6, is not judged. */
function wrongArithmetic(text) {
  const found = [];
  for (const { index, 1: whole, 2: a, 3: symbol, 4: b, 5: result, 6: divisor } of text.matchAll(SUM)) {
    const [left, right, c] = [a, b, result].map(BigInt);
    const value = { "+": left + right, "-": left - right, "*": left * right, "/": left }[symbol], unit = symbol === "/" ? right : 1n; // value / unit
    const holds = (over) => value * over === c * unit; // the result may be a fraction: 6/4=3/2
    if (!holds(1n) && !holds(BigInt(divisor || 1))) found.push([index, index + whole.length]);
  }
  return found;
}

/** Pieces of a completion as elements: a token each. A whole completion is cut where wrong arithmetic, or a line that ends with yes, begins or ends. */
function textOf(pieces, attributes = {}) {
  const found = pieces.length > 1 ? [] : [...pieces[0].text.matchAll(/^.* yes$/gm)].map(({ index, 0: line }) => [index, index + line.length]);
  const wrong = wrongArithmetic(pieces.map((piece) => piece.text).join("")), holder = h("p", { class: "tokens", dir: "ltr", ...attributes });
  let start = 0; // of the piece in the text
  for (const { text, special } of pieces) {
    const end = start + text.length, cuts = pieces.length > 1 ? [] : [...wrong, ...found].flat().filter((cut) => cut > 0 && cut < end);
    let from = start;
    for (const to of [...new Set([...cuts, end])].sort((a, b) => a - b)) {
      const piece = text.slice(from - start, to - start), at = from;
      const span = h("span", { class: "token", "data-wrong": wrong.some(([a, b]) => a < to && b > at), "data-found": found.some(([a, b]) => a < to && b > at) }, piece);
      if ("wrong" in span.dataset) span.dataset.tip = "wrong arithmetic";
      if (special) span.dataset.label = special;
      else if (!piece) span.dataset.label = "…"; // the first bytes of a character
      else if (/[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/.test(piece)) span.dataset.label = "⟨invisible⟩";
      else if (pieces.length > 1 && piece.includes("\n")) span.dataset.label = "↵";
      holder.append(span);
      from = to;
    }
    start = end;
  }
  return holder;
}

/** Completion i, coloured. */
function tokensOf(step, i) {
  const holder = textOf(step.completion(i)), colour = COLOURS[state.colour];
  if (!step.token_ids) return holder;
  holder.source = { step, i };
  holder.classList.add("recorded");
  step.part(colour.array, i).forEach((value, k) => { holder.children[k].className = `token ${shade(colour, value)}`.trim(); });
  return holder;
}

/** "73.0% → 77.0%": before and after the update, with digits enough to tell them apart. */
function chances(logProb, change) {
  const [before, after] = [logProb, logProb + change].map((x) => Math.min(1, Math.exp(x)));
  const digits = [1, 2, 3, 4].find((n) => percent(before, n) !== percent(after, n)) ?? 1;
  return isNumber(change) ? `${percent(before, digits)} → ${percent(after, digits)}` : percent(before, 1);
}

/** "made more likely", "made less likely" or "hardly moved", of a change in nats. */
const hardly = (change) => Math.abs(change) < report.cuts[1];
const movement = (change) => (hardly(change) ? "hardly moved" : change > 0 ? "made more likely" : "made less likely");

/** All that is known of a token, as lines of the tooltip. */
function tokenFacts(span) {
  const { step, i } = span.parentElement.source, k = [...span.parentElement.children].indexOf(span), at = step.starts[i] + k, { rows } = step, formula = step.loss === null ? null : step.formula;
  const change = step.change[at], A = step.advantages[at], d = step.reference[at], moved = isNumber(change);
  return [
    [JSON.stringify(span.textContent || span.dataset.label).slice(0, 60), chances(step.log_probs[at], change)],
    moved ? `${movement(change)} by the update: ${signed(change, 4)} nats` : "It was not part of the update.",
    moved && !hardly(change) && change * A < 0 ? `The token moved against its advantage, because one update comes from all ${rows.length} completions of the step.` : null,
    ...(formula && moved ? [[`L = ${formula}\n  = ${show(step.token_loss[at], 4)}`], ["ρ, policy / policy that sampled", "1 (one update per batch)"]] : []),
    ["A, advantage", signed(A)],
    isNumber(d) ? ["d, log (reference / policy)", signed(d, 4)] : null,
    formula && moved ? ["divided by", `${rows.length} completions × ${rows[i].length} tokens`] : null,
    ["position, token id", `${k + 1}, ${step.token_ids[at]}`],
    "wrong" in span.dataset ? "It is part of wrong arithmetic." : null,
  ];
}

document.addEventListener("mouseover", ({ target }) => {
  if (target.matches?.(".recorded .token")) showTooltip(target, tokenFacts(target));
});

/** What the colours mean. */
function colourLegend() {
  const { label, cuts, sign, unit, ends } = COLOURS[state.colour];
  const box = (tone, text) => h("span", { class: "step" }, h("span", { class: `token ${tone}`, "aria-hidden": "true" }, "ab"), h("small", {}, text));
  const boxes = (tone, mark) => cuts.map((cut, i) => box(`${tone}-${i + 1}`, mark + cut));
  return h("p", { class: "legend note" }, `${label}${unit ? `, ${unit}` : ""}: ${ends[0]} `, sign ? boxes("down", "−").reverse() : null, box("", "0"),
    boxes(sign ? "up" : "shade", sign ? "+" : ""), ` ${ends[1]}`, box("unknown", "not computed"),
    h("span", { class: "step" }, h("span", { class: "token", "data-wrong": true, "aria-hidden": "true" }, "1+1=3"), h("small", {}, "wrong arithmetic")));
}
