// A completion as its tokens, coloured by what the update did to them; the numbers of each token on hover.

// A colour's next shade begins at each of these changes, in nats. Signs differ by hue and by the line below the token (whole or dotted), so no colour vision is needed.
const CUTS = getComputedStyle(document.documentElement).getPropertyValue("--cuts").trim().split(" ").map(Number);

/** The class of a change: "up-3", "down-1", "unknown", or "" near 0. */
function shade(change) {
  if (!isNumber(change)) return "unknown";
  const size = CUTS.filter((cut) => Math.abs(change) >= cut).length;
  return size ? `${change > 0 ? "up" : "down"}-${size}` : "";
}

/** Tokens as pieces of text. Their bytes are the characters U+0000 to U+00FF. A character may be split over tokens: its text is that of the token that completes it. */
function piecesOf(tokens, special) {
  const decoder = new TextDecoder();
  return tokens.map((token, place) => {
    const own = special.includes(token), bytes = Uint8Array.from(own ? "" : token, (letter) => letter.charCodeAt(0));
    return { text: decoder.decode(bytes, { stream: place + 1 < tokens.length }), special: own ? token : null };
  });
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
      if (special) span.dataset.label = span.dataset.special = special;
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

/** The tokens of an attempt (page/table.js), coloured if what the update did to them was recorded. */
function tokensOf(attempt) {
  const holder = textOf(attempt.pieces);
  if (!attempt.change) return holder;
  holder.attempt = attempt;
  holder.classList.add("recorded");
  attempt.change.forEach((change, k) => { holder.children[k].className = `token ${shade(change)}`.trim(); });
  return holder;
}

/** "73.0% → 77.0%": before and after the update, with digits enough to tell them apart. */
function chances(logProb, change, least = 1) {
  const [before, after] = [logProb, logProb + change].map((x) => Math.min(1, Math.exp(x)));
  const digits = [0, 1, 2, 3, 4].find((n) => n >= least && percent(before, n) !== percent(after, n)) ?? least;
  return isNumber(change) ? `${percent(before, digits)} → ${percent(after, digits)}` : percent(before, 1);
}

/** "rose", "fell" or "hardly moved", of a change in nats. */
const hardly = (change) => Math.abs(change) < CUTS[0];
const movement = (change) => (hardly(change) ? "hardly moved" : change > 0 ? "rose" : "fell");

/** What is known of a token, as lines of the tooltip; the numbers of the loss only if all is asked for. */
function tokenFacts(span, all = false) {
  const { attempt } = span.parentElement, k = [...span.parentElement.querySelectorAll(".token")].indexOf(span), change = attempt.change[k], moved = isNumber(change);
  return [
    [JSON.stringify(span.textContent || span.dataset.label).slice(0, 60), chances(attempt.log_probs[k], change)],
    !moved ? "It was not part of the update." : hardly(change) ? "Its probability hardly moved." : `Its probability ${movement(change)}.`,
    moved && !hardly(change) && change * attempt.advantage < 0 ? "The token moved against its advantage, because one update comes from all attempts of the step." : null,
    "wrong" in span.dataset ? "It is part of wrong arithmetic." : null,
    ...(!attempt.facts ? [] : all ? attempt.facts(k) : ["Click for more."]),
  ];
}

document.addEventListener("mouseover", ({ target }) => {
  if (target.matches?.(".recorded .token")) showTooltip(target, tokenFacts(target));
});
