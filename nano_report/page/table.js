// A group as one table: of each completion its tokens, verdict, reward and advantage, and what the
// update did to it. Report, lesson, notebooks and the README's picture draw it with this file.
//
// A group is { title, special, completions }, from payload.py. A completion is a row of episodes/;
// if its update was recorded, it has tokens, and for each token its log_probs and change.

const LONG = 110; // characters of a completion, above which its middle is folded
const HEAD = 24; // characters that stay at its beginning
const TAIL = 76; // and at its end

/** The table with its caption and ▶. */
function groupFigure(group, options) {
  const table = groupTable(prepare(group), options);
  const note = [explained(group), colours(group)];
  return h(
    "figure",
    { class: "told" },
    h("figcaption", {}, h("p", { class: "problem" }, group.title), noteOf(note)),
    playButton(() => storyOf(table)),
    table,
  );
}

/** What group, reward and advantage are, with the best completion's numbers if they are usual. */
function explained({ mean, std, completions }) {
  const [{ reward, advantage }] = completions;
  const parts = completions.every((c) => c.reward === c.format_reward + c.answer_reward);
  const rewards = parts ? ": up to 1 for its format, and 1 more for a correct answer" : "";
  const text = `The completions of one problem are a group. A program rewards each${rewards}. `;
  if (!isNumber(advantage))
    return `${text}This run had an advantage for each segment or token, or none; the files
      lack it. `;
  const usual = advantage !== 0 && Math.abs((reward - mean) / std - advantage) < 0.005;
  if (!usual) return `${text}The advantage says how strongly the update pushes a completion. `;
  const formula = `(${+reward.toFixed(2)} − ${show(mean, 2)}) / ${show(std, 2)}`;
  return `${text}The advantage is the reward minus the group’s mean, divided by the rewards’
    standard deviation: ${formula} = ${signed(advantage, 2)}. `;
}

/** What the colours of the tokens mean. */
function colours({ completions }) {
  if (!completions.some((c) => c.change)) return null;
  const mark = (name, text) => h("span", { class: `token ${name}` }, text);
  const tool = completions.some((c) => c.written < c.length);
  return [
    "The update made ",
    mark("up-2", "blue tokens"),
    " more likely and ",
    mark("down-2", "orange ones"),
    " less. ",
    tool ? [mark("unknown", "Grey tokens"), " were written by a tool."] : null,
  ];
}

let telling = 0; // number of the newest story; an older one stops

/** ▶ plays frames, [what changes, seconds until the next]; ■ goes to their end, or `stays`. */
function playButton(framesOf, stays = false) {
  const play = h("button", { class: "play" }, "▶ play");
  play.onclick = async () => {
    const mine = ++telling;
    if (play.textContent.startsWith("■")) return;
    play.textContent = "■ stop";
    hideTooltip();
    for (const [change, seconds] of framesOf()) {
      if (stays && mine !== telling) break;
      change();
      if (mine === telling) await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    }
    play.textContent = "▶ play";
  };
  return play;
}

/** Sorts the completions, and adds what is computed of the group and of each of them. */
function prepare(group) {
  const { completions, special } = group;
  const rewards = completions.map(({ reward }) => reward);
  group.mean = sum(rewards) / rewards.length;
  const squares = rewards.map((reward) => (reward - group.mean) ** 2);
  group.std = Math.sqrt(sum(squares) / Math.max(1, rewards.length - 1));
  completions.forEach((c, k) => {
    c.number ??= k + 1;
    c.pieces ??= c.tokens ? piecesOf(c.tokens, special) : [{ text: c.completion }];
    if (c.change) c.moved = sum(c.change.filter(isNumber));
  });
  completions.sort((a, b) => b.reward - a.reward || b.advantage - a.advantage);
  return group;
}

/**
 * The table of a prepared group. `current` is the number of a completion whose text is open; `link`
 * makes the address of one, and `last` the content of the last column.
 */
function groupTable(group, { current = null, link = null, last = movedOf } = {}) {
  const { mean, std, completions } = group;
  const scale = {
    full: Math.max(1, ...completions.map(({ reward }) => reward)),
    reach: Math.max(1, ...completions.map(({ advantage }) => Math.abs(advantage) || 0)),
  };
  const head = (name, ...words) =>
    h("th", { scope: "col", role: "columnheader", class: name }, words);
  const small = (text) => h("small", {}, text);
  const rows = completions.map((c) => {
    const cells = rowOf(c, scale, link, last);
    const open = c.number === current ? "open current" : null;
    const row = h("tr", { role: "row", class: open, tabindex: -1, "data-number": c.number }, cells);
    foldMiddle(row.querySelector(".tokens"), () => row.classList.add("open"));
    return row;
  });
  const heads = [
    head("which", h("span", { "aria-label": "number" }, "#")),
    head("text", "what the model wrote"),
    head("reward", "reward"),
    head("push", "advantage ", small(`mean ${show(mean, 2)}, std ${show(std, 2)}`)),
    head("moved", last === movedOf ? ["probability ", small("of the text")] : null),
  ];
  return h(
    "table",
    { class: "group", role: "table" },
    h("thead", {}, h("tr", { role: "row" }, heads)),
    h("tbody", {}, rows),
  );
}

/** The cells of a completion. */
function rowOf(c, { full, reach }, link, last) {
  const cell = (name, ...parts) => h("td", { class: name, role: "cell" }, parts);
  const name = `completion ${c.number}`;
  const which = link && h("a", { href: link(c.number), "aria-label": name }, c.number);
  const part = Math.min(1, Math.max(0, c.reward / full));
  const reward = h("b", {}, +c.reward.toFixed(2));
  let side = "none";
  if (Math.abs(c.advantage) >= 5e-4) side = c.advantage > 0 ? "above" : "below";
  const length = `${(46 * Math.abs(c.advantage)) / reach}%`;
  return [
    cell("which", which ?? c.number),
    cell("text", tokensOf(c), h("div", { class: "judged" }, verdict(c), mostMoved(c))),
    cell("reward", h("span", { class: "box", "--part": `${100 * part}%` }, reward)),
    cell(
      "push",
      h("span", { class: `number ${side}`, "data-advantage": true }, signed(c.advantage, 2)),
      side !== "none" && h("span", { class: `bar ${side}`, "--part": length }),
    ),
    cell("moved", last(c)),
  ];
}

/** "✓ correct" or "✗ equals 138, not 53". */
function verdict({ answer_reward, why }) {
  const correct = answer_reward === 1;
  const name = correct ? "verdict correct" : "verdict";
  return h("span", { class: name }, `${correct ? "✓" : "✗"} ${why}`);
}

const SHARED = "All completions of a step share the weights, so the others can pull harder.";

/** ▲ ×1.19: how many times as likely the update has made the whole completion. */
function movedOf({ moved, advantage }) {
  if (!isNumber(moved)) return null;
  const times = show(Math.exp(moved), 2);
  let [name, mark] = moved > 0 ? ["rose", "▲ "] : ["fell", "▼ "];
  if (hardly(moved)) [name, mark] = ["hardly-moved", ""];
  const label = `${name.replace("-", " ")}: ${times} times as likely`;
  return [
    h("b", { class: name, role: "img", "aria-label": label }, `${mark}×${times}`),
    isAgainst(moved, advantage) && h("small", {}, term("against its advantage", SHARED)),
  ];
}

/** The token whose probability changed most in the direction of the advantage: yes 18% → 16%. */
function mostMoved({ pieces, log_probs, change, advantage }) {
  const gains = (change ?? []).map((x, k) => {
    const counts = isNumber(x) && pieces[k].text.trim();
    return counts ? Math.exp(log_probs[k]) * Math.expm1(x) * Math.sign(advantage) : 0;
  });
  const k = gains.indexOf(Math.max(...gains));
  if (!(gains[k] >= 0.005)) return null;
  const token = h("code", {}, pieces[k].text.trim());
  const mark = h("bdi", { class: `token ${shade(change[k])}` }, token);
  return h("span", { class: "note" }, "token ", mark, ` ${chances(log_probs[k], change[k], 0)}`);
}

/** Folds the middle of a long completion, at the ends of lines if there are any. */
function foldMiddle(holder, open) {
  const tokens = [...holder.children];
  const ends = [0]; // characters before each token
  for (const token of tokens) ends.push(ends.at(-1) + token.textContent.length);
  const places = [...tokens.keys()];
  const lines = places.filter((k) => k > 1 && tokens[k - 1].textContent.includes("\n"));
  const inHead = (k) => ends[k] <= HEAD;
  const inTail = (k) => ends.at(-1) - ends[k] <= TAIL;
  const first = lines.findLast(inHead) ?? places.findLast(inHead);
  const last = lines.find(inTail) ?? places.find(inTail);
  if (ends.at(-1) <= LONG || !(last > first)) return;
  const middle = tokens.slice(first, last);
  middle.forEach((token) => token.classList.add("folded"));
  const left = lines.filter((k) => k > first && k <= last).length;
  const what = left ? plural(left, "line") : plural(middle.length, "token");
  const button = h("button", { class: "fold", onclick: open }, `… ${what} …`);
  holder.insertBefore(button, tokens[last]);
}

/**
 * The table's story, as frames: completions appear, rewards fill, bars leave the mean, tokens
 * get their colours.
 */
function storyOf(table) {
  const rows = [...table.tBodies[0].rows];
  const set = (name) => (part) => [() => table.style.setProperty(name, part), 0.1];
  const pause = (seconds) => [() => {}, seconds];
  const hide = () => {
    rows.forEach((row) => row.classList.add("unseen"));
    table.classList.add("plain", "unjudged", "untold");
    table.style.setProperty("--filled", 0);
    table.style.setProperty("--pushed", 0);
  };
  const shown = (name) => () => table.classList.remove(name);
  const thirds = [1 / 3, 2 / 3, 1];
  return [
    [hide, 0.3],
    ...rows.map((row) => [() => row.classList.remove("unseen"), 0.15]),
    [shown("unjudged"), 0.6],
    ...thirds.map(set("--filled")),
    pause(1.3),
    [shown("untold"), 0.1],
    ...thirds.map(set("--pushed")),
    pause(1.5),
    [shown("plain"), 2.5],
  ];
}
