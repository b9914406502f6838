// A completion as its tokens, coloured by what the update did to them.

// A colour's next shade begins at each of these changes, in nats. A rise and a fall differ by hue
// and by the line below the token (whole or dotted), so no colour vision is needed.
const CUTS = getComputedStyle(document.documentElement).getPropertyValue("--cuts");
const SHADES = CUTS.trim().split(" ").map(Number);

const hardly = (change) => Math.abs(change) < SHADES[0];

/** The class of a change: "up-3", "down-1", "unknown", or "" near 0. */
function shade(change) {
  if (!isNumber(change)) return "unknown";
  const size = SHADES.filter((cut) => Math.abs(change) >= cut).length;
  return size ? `${change > 0 ? "up" : "down"}-${size}` : "";
}

/**
 * Tokens as pieces of text. Their bytes are the characters U+0000 to U+00FF. A character may be
 * split over tokens: its text is that of the token that completes it.
 */
function piecesOf(tokens, special) {
  const decoder = new TextDecoder();
  return tokens.map((token, place) => {
    const name = special.includes(token) ? token : null;
    const bytes = Uint8Array.from(name ? "" : token, (letter) => letter.charCodeAt(0));
    return { text: decoder.decode(bytes, { stream: place + 1 < tokens.length }), special: name };
  });
}

const INVISIBLE = /[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/;

/** Pieces as elements, with a label where a reader would see nothing. */
function textOf(pieces) {
  const spans = pieces.map(({ text, special }) => {
    let label = special;
    if (!special && !text)
      label = "…"; // the first bytes of a character
    else if (INVISIBLE.test(text)) label = "⟨invisible⟩";
    else if (pieces.length > 1 && text.includes("\n")) label = "↵";
    return h("span", { class: "token", "data-label": label, "data-special": special }, text);
  });
  return h("p", { class: "tokens", dir: "ltr" }, spans);
}

/** The tokens of a completion (table.js), coloured if what the update did was recorded. */
function tokensOf(completion) {
  const holder = textOf(completion.pieces);
  if (!completion.change) return holder;
  holder.completion = completion;
  holder.classList.add("recorded");
  const hasTool = completion.written < completion.length;
  completion.change.forEach((change, k) => {
    const byTool = hasTool && !isNumber(change);
    holder.children[k].className = `token ${byTool ? "unknown tool" : shade(change)}`.trim();
  });
  return holder;
}

/** "73.0% → 77.0%": before and after the update, with digits enough to tell them apart. */
function chances(logProb, change, least = 1) {
  if (!isNumber(change)) return percent(Math.exp(logProb), 1);
  const pair = [logProb, logProb + change].map((x) => Math.min(1, Math.exp(x)));
  const differ = (digits) => percent(pair[0], digits) !== percent(pair[1], digits);
  const digits = [0, 1, 2, 3, 4].find((n) => n >= least && differ(n)) ?? least;
  return pair.map((share) => percent(share, digits)).join(" → ");
}

/** What is known of a token, for the tooltip. */
function tokenFacts(span) {
  const { completion } = span.parentElement;
  const k = [...span.parentElement.querySelectorAll(".token")].indexOf(span);
  const change = completion.change[k];
  const name = JSON.stringify(span.textContent || span.dataset.label).slice(0, 60);
  const facts = [`token ${k + 1}, ${name}: ${chances(completion.log_probs[k], change)}`];
  if (span.classList.contains("tool")) facts.push("A tool wrote it, so no update pushes it.");
  else if (!isNumber(change)) facts.push("It was not part of the update.");
  else facts.push(`Its log-prob changed by ${signed(change, 4)} nats.`);
  if (isAgainst(change, completion.advantage))
    facts.push("It moved against its advantage: all completions of a step share the weights.");
  return facts.join("\n");
}

const isAgainst = (change, advantage) => !hardly(change) && change * advantage < 0;

document.addEventListener("mouseover", ({ target }) => {
  if (target.matches?.(".recorded .token")) showTooltip(target, tokenFacts(target));
});
