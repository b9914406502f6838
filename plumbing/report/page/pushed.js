// The tokens of a step that its update pushed most, up and down, each with the words around it.

/** A probability as a percentage. */
const chance = (p, digits = 1) => `${show(100 * Math.min(1, p), digits)}%`;

/** "73.0% → 77.0%": before and after the update, with digits enough to tell them apart. */
function chances(logProb, change) {
  const [before, after] = [logProb, logProb + change].map(Math.exp);
  let digits = 1;
  while (digits < 4 && change !== 0 && chance(before, digits) === chance(after, digits)) digits++;
  if (chance(before, digits) === chance(after, digits)) return `${chance(before)}, as before`;
  return `${chance(before, digits)} → ${chance(after, digits)}`;
}

/** {up, down}: up to `most` tokens each as {i, k, gain, times}; the same words before and the same token count once. */
function pushedTokens(step, most = 10) {
  const found = [], ends = step.starts;
  for (let i = 0; i < step.length.length; i++) {
    for (let at = ends[i]; at < ends[i + 1]; at++) {
      const before = Math.exp(step.logProb[at]), gain = before * Math.expm1(step.change[at]);
      if (isNumber(gain)) found.push({ i, k: at - ends[i], gain });
    }
  }
  const pick = (order, wanted) => {
    const seen = new Map();
    for (const token of order) {
      if (!wanted(token.gain)) break;
      const key = `${Math.floor(token.i / step.groupSize)}:${step.tokens.subarray(ends[token.i], ends[token.i] + token.k + 1).join()}`;
      if (seen.has(key)) seen.get(key).times++;
      else if (seen.size < most) seen.set(key, { ...token, times: 1 });
      else if (order.indexOf(token) > 50 * most) break;
    }
    return [...seen.values()];
  };
  found.sort((a, b) => b.gain - a.gain);
  return { up: pick(found, (gain) => gain > 0), down: pick(found.toReversed(), (gain) => gain < 0) };
}

/** The text before and after token k of completion i, cut to what fits into a line. */
function around(step, i, k) {
  const pieces = step.pieces(i), visible = (text) => text.replaceAll("\n", "↵");
  const text = (list) => visible(list.map((piece) => piece.text).join(""));
  const { text: own, special } = pieces[k], before = [...text(pieces.slice(0, k))], after = [...text(pieces.slice(k + 1))];
  return [(before.length > 26 ? "…" : "") + before.slice(-26).join(""), visible(own) || special || "…", after.slice(0, 12).join("") + (after.length > 12 ? "…" : "")];
}

function pushedOf(step) {
  if (!step.tokens) return tokensNote(step.run);
  const { up, down } = pushedTokens(step);
  if (!up.length && !down.length) return null;
  const list = (title, tokens, tone) => h("div", {}, h("h3", {}, title), h("ol", { class: "pushed" }, tokens.map(({ i, k, gain, times }) => {
    const [before, own, after] = around(step, i, k), at = step.starts[i] + k, group = Math.floor(i / step.groupSize) + 1, completion = (i % step.groupSize) + 1;
    return h("li", {}, h("a", { href: hashOf({ view: "group", group, completion, token: k + 1, colour: "update" }), "data-gain": gain },
      h("span", { class: "words" }, h("bdi", {}, before), h("bdi", { class: `token ${tone}` }, own), h("bdi", {}, after)),
      h("span", { class: "number" }, chances(step.logProb[at], step.change[at])),
      h("small", {}, `group ${group}, ${times > 1 ? `${times} completions` : `completion ${completion}`}, advantage ${signed(step.advantage[i], 2)}`)));
  })));
  return h("section", { class: "card", "aria-label": "tokens most pushed" },
    h("h2", {}, "Most pushed by this update"),
    h("p", { class: "note" }, "How likely each token was where it stands, before and after; largest changes first. One update comes from all completions of the step: ",
      "a token can move against the advantage of its own."),
    h("div", { class: "columns" }, list("made more likely", up, "up-3"), list("made less likely", down, "down-3")));
}

/** Where tokens are recorded, if they are not here. */
function tokensNote(run) {
  const near = run.tokenSteps.toSorted((a, b) => Math.abs(a - state.step) - Math.abs(b - state.step)).slice(0, 3).sort((a, b) => a - b);
  if (!near.length) return h("p", { class: "note" }, "Single tokens were not recorded in this run (--record_tokens_every): only whole completions have colours.");
  return h("p", { class: "note" }, "Single tokens were not recorded at this step; the nearest that have them: ",
    near.map((step, n) => [n ? ", " : "step ", h("a", { href: hashOf({ step }) }, step)]), " (keys t and T).");
}
