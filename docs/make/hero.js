// The README's pictures (docs/make/hero.py).

const { group, sentence, step, checks, watched } = JSON.parse($("group").textContent);

/** Is the answer a wrong result, after which it wrote yes? */
const wrongYes = ({ completion, why }) => completion.includes(`=${why.split(/equals |,/)[1]} yes`);

/** The shortest ones above the group's mean and below it, there with a wrong yes if any. */
function two({ completions, ...rest }) {
  const short = completions.toSorted((a, b) => a.tokens.length - b.tokens.length);
  const above = short.find(({ advantage }) => advantage > 0);
  const below = short.filter(({ advantage }) => advantage < 0);
  const shown = [above, below.find(wrongYes) ?? below[0]];
  return { ...rest, completions: shown.filter(Boolean) };
}

const table = groupTable(two(prepare(group)));
const count = group.completions.length;
const figure = (title, note, ...parts) =>
  h("figure", { class: "told" }, h("h1", {}, title), noteOf(note), parts);
const about = `${group.title}: 2 of ${count} completions. Blue tokens became more likely.`;
const note = `A dot is a line, at the probability of yes after it. Dashed: step ${step}.`;
const drawn = checks.length > 0 && checksChart("", checks, { mark: step });

/** Points of the first so many recorded steps; the means after them. */
const showColumns = (many) => () => {
  for (const dot of document.querySelectorAll(".dot"))
    dot.style.visibility = Number(dot.dataset.column) < many ? "visible" : "hidden";
  for (const curve of document.querySelectorAll(".curve"))
    curve.style.visibility = many > checks.length ? "visible" : "hidden";
};

/** The frames of hero.gif: [[what to draw, seconds]]. */
function heroStory() {
  const [[hide, pause], ...frames] = storyOf(table);
  const start = () => {
    hide();
    showColumns(0)();
  };
  return [
    [start, pause],
    ...frames,
    ...checks.map((_, column) => [showColumns(column + 1), 0.25]),
    [showColumns(checks.length + 1), 4],
  ];
}

/** The frames of lines.gif: the lines as the model reads them after each update. */
function linesStory({ frames, title }) {
  const draw = (place) => () => $("view").replaceChildren(linesTable({ frames, title }, place));
  return frames.map((_, place) => [draw(place), place < frames.length - 1 ? 0.15 : 4]);
}

let story = null;
if (location.hash === "#lines") {
  story = linesStory(textsOf(watched)[0]);
  story.at(-1)[0]();
} else {
  $("view").append(
    figure(`One update, step ${step}`, about, table),
    figure("All updates: yes comes to mean yes", note, drawn, h("p", {}, sentence)),
  );
  story = heroStory();
}
document.documentElement.dataset.drawn = "1"; // for tests
