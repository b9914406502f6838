// A group as one table: each attempt with its tokens, its verdict, its reward, its advantage, and what the update did to it.
//
// A group is { title, special, full, attempts }, from nano_report/payload.py: its attempts are rows of episodes/. A reward of `full` fills its box.
// An attempt whose update was recorded has tokens, and for each token its log_probs and change.
// Report, lesson, notebooks and the README's picture draw it with this function: a report has hundreds of groups, so they cannot be drawn before.

const LONG = 110; // characters of an attempt, above which its middle is folded
const HEAD = 24, TAIL = 76; // characters that stay at its ends

/** The table with its caption, its exception and ▶; `after` is called when the story has been told. */
function groupFigure(group, { after = null, ...options } = {}) {
  const table = groupTable(group, options), recorded = group.attempts.some((attempt) => attempt.change), mark = (tone, text) => h("span", { class: `token ${tone}` }, text);
  const play = h("button", { type: "button", class: "play", onclick: () => tell(storyOf(table), after) }, "▶ play");
  return h("figure", { class: "group" },
    h("figcaption", {}, h("p", { class: "problem" }, group.title),
      h("p", { class: "note" }, explained(group), recorded ? ["The update made ", mark("up-2", "blue tokens"), " more likely and ", mark("down-2", "orange ones"), " less. Attempts share tokens, so a row also has tokens of the other color."] : null)),
    play, table, exceptionOf(group));
}

/** What group, reward and advantage are, with the numbers of the best attempt if they are the usual ones. */
function explained(group) {
  const { mean, std, attempts } = group, [{ reward, advantage }] = byReward(group);
  const parts = attempts.every((attempt) => attempt.reward === attempt.format_reward + attempt.answer_reward);
  const usual = advantage !== 0 && Math.abs((reward - mean) / std - advantage) < 0.005;
  return `All attempts (completions) at one problem are a group. A program rewards each attempt${parts ? ": up to 1 for its format, and 1 more for a correct answer" : ""}. The advantage ${usual
    ? `is the reward minus the group’s mean, divided by the rewards’ standard deviation: (${+reward.toFixed(2)} − ${show(mean, 2)}) / ${show(std, 2)} = ${signed(advantage, 2)}. `
    : "says how strongly the update pushes the attempt up or down. "}`;
}

let telling = 0; // number of the newest story; an older one stops

/** Plays frames, [what changes, seconds until the next]. */
async function tell(frames, after = null) {
  const mine = ++telling;
  hideTooltip();
  for (const [change, seconds] of frames) {
    if (mine !== telling) return;
    change();
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
  if (mine === telling) after?.();
}

const byReward = ({ attempts }) => attempts.toSorted((a, b) => b.reward - a.reward || b.advantage - a.advantage);

/** Adds what is computed: the group's mean and standard deviation, and of each attempt its number, its pieces of text, and how far its log-prob moved. */
function prepare(group) {
  const { attempts, special } = group;
  group.mean ??= attempts.reduce((sum, { reward }) => sum + reward, 0) / attempts.length;
  group.std ??= Math.sqrt(attempts.reduce((sum, { reward }) => sum + (reward - group.mean) ** 2, 0) / Math.max(1, attempts.length - 1));
  group.full ??= Math.max(1, ...attempts.map(({ reward }) => reward));
  attempts.forEach((attempt, k) => {
    attempt.number ??= k + 1;
    attempt.pieces ??= attempt.tokens ? piecesOf(attempt.tokens, special) : [{ text: attempt.completion }];
    attempt.moved ??= attempt.change?.reduce((sum, change) => sum + (isNumber(change) ? change : 0), 0);
  });
  return group;
}

/** The table. `current` is the number of an attempt whose text is open; `link` makes an attempt's address. */
function groupTable(group, { current = null, link = null } = {}) {
  const { full, mean, std, attempts } = prepare(group), recorded = attempts.some((attempt) => attempt.change);
  const head = (name, ...words) => h("th", { scope: "col", role: "columnheader", class: name }, words);
  const scale = { full, reach: Math.max(1, ...attempts.map(({ advantage }) => Math.abs(advantage))) };
  return h("table", { class: "attempts", role: "table" },
    h("thead", {}, h("tr", { role: "row" }, head("which", h("span", { "aria-label": "number" }, "#")), head("text", "what the model wrote"), head("reward", "reward"),
      head("push", "advantage ", h("small", {}, `mean ${show(mean, 2)}, std ${show(std, 2)}`)), recorded ? head("moved", "probability ", h("small", {}, "of the text")) : null)),
    h("tbody", {}, byReward(group).map((attempt) => attemptRow(attempt, scale, recorded, attempt.number === current, link))));
}

function attemptRow(attempt, { full, reach }, recorded, open, link) {
  const { number, reward, advantage, why } = attempt, correct = attempt.answer_reward === 1, cell = (name, ...parts) => h("td", { class: name, role: "cell" }, parts);
  const text = tokensOf(attempt), side = Math.abs(advantage) < 5e-4 ? "none" : advantage > 0 ? "above" : "below";
  const row = h("tr", { role: "row", class: open ? "open current" : null, "data-completion": number, tabindex: -1 },
    cell("which", link ? h("a", { href: link(number), class: "place", "aria-label": `attempt ${number}` }, number) : number),
    cell("text", text, h("div", { class: "judged" }, h("span", { class: correct ? "verdict correct" : "verdict" }, `${correct ? "✓" : "✗"} ${why}`), mostMoved(attempt))),
    cell("reward", h("span", { class: "box", style: { "--part": `${100 * Math.min(1, Math.max(0, reward / full))}%` } }, h("b", { "data-reward": true }, +reward.toFixed(2)))),
    cell("push", h("span", { class: `number ${side}`, "data-advantage": true }, signed(advantage, 2)),
      side === "none" ? null : h("span", { class: `bar ${side}`, "aria-hidden": "true", style: { "--part": `${(46 * Math.abs(advantage)) / reach}%` } })),
    recorded ? cell("moved", movedOf(attempt)) : null);
  foldMiddle(text, () => row.classList.add("open"));
  return row;
}

/** ▲ ×1.19: how many times as likely the update has made the whole attempt. */
function movedOf({ moved, advantage }) {
  if (!isNumber(moved)) return null;
  const word = movement(moved), times = show(Math.exp(moved), 2), mark = { rose: "▲ ", fell: "▼ " }[word] ?? "";
  return [h("b", { class: word.replace(" ", "-"), role: "img", "aria-label": `${word}: ${times} times as likely` }, `${mark}×${times}`), isAgainst({ moved, advantage }) ? h("small", {}, "against its advantage") : null];
}

const isAgainst = ({ moved, advantage }) => isNumber(moved) && !hardly(moved) && moved * advantage < 0;

/** Two sentences if an attempt of the group moved against its advantage. */
function exceptionOf(group) {
  const numbers = byReward(group).filter(isAgainst).map(({ number }) => number);
  return numbers.length ? h("p", { class: "note" }, `${numbers.length > 1 ? "Attempts" : "Attempt"} ${numbers.join(", ")} moved against ${numbers.length > 1 ? "their" : "its"} advantage. `,
    "One update comes from all attempts of the step, and attempts share tokens, so the others can pull harder.") : null;
}

/** The token whose probability changed most in the direction of the advantage: yes 18% → 16%. */
function mostMoved({ pieces, log_probs, change, advantage }) {
  const gains = (change || []).map((c, k) => (isNumber(c) && pieces[k].text.trim() ? Math.exp(log_probs[k]) * Math.expm1(c) * Math.sign(advantage) : 0));
  const k = gains.indexOf(Math.max(...gains));
  return gains[k] >= 0.005 ? h("span", { class: "note" }, "token ", h("bdi", { class: `token ${shade(change[k])}` }, h("code", {}, pieces[k].text.trim())), ` ${chances(log_probs[k], change[k], 0)}`) : null;
}

/** Folds the middle of a long attempt, at the ends of lines if there are any. */
function foldMiddle(holder, open) {
  const tokens = [...holder.children], ends = [0]; // characters before each token
  for (const token of tokens) ends.push(ends.at(-1) + token.textContent.length);
  const places = [...tokens.keys()], lines = places.filter((k) => k > 1 && tokens[k - 1].textContent.includes("\n"));
  const inHead = (k) => ends[k] <= HEAD, inTail = (k) => ends.at(-1) - ends[k] <= TAIL;
  const first = lines.findLast(inHead) ?? places.findLast(inHead), last = lines.find(inTail) ?? places.find(inTail);
  if (ends.at(-1) <= LONG || !(last > first)) return;
  const middle = tokens.slice(first, last), left = lines.filter((k) => k > first && k <= last).length;
  middle.forEach((token) => token.classList.add("folded"));
  holder.insertBefore(h("button", { type: "button", class: "fold", onclick: open }, `… ${left ? plural(left, "line") : plural(middle.length, "token")} …`), tokens[last]);
}

/** The table's story in four beats, as frames [what changes, seconds until the next]: attempts appear, rewards fill, bars leave the mean, tokens colour. */
function storyOf(table) {
  const rows = [...table.tBodies[0].rows], css = (name, value) => table.style.setProperty(name, value), thirds = [1 / 3, 2 / 3, 1];
  const hidden = () => {
    rows.forEach((row) => row.classList.add("unseen"));
    table.classList.add("plain", "unjudged", "untold");
    css("--filled", 0);
    css("--pushed", 0);
  };
  return [
    [hidden, 0.3],
    ...rows.map((row) => [() => row.classList.remove("unseen"), 0.15]),
    [() => table.classList.remove("unjudged"), 0.6],
    ...thirds.map((part) => [() => css("--filled", part), part < 1 ? 0.1 : 1.4]),
    [() => table.classList.remove("untold"), 0.1],
    ...thirds.map((part) => [() => css("--pushed", part), part < 1 ? 0.1 : 1.6]),
    [() => table.classList.remove("plain"), 2.5],
  ];
}
