// The README's pictures (docs/make/hero.py). The story has frames.

const { group, sentence, step, checks, watched } = JSON.parse($("group").textContent);

/** Two completions above the group's mean and two below it, the shortest ones. */
function four({ completions, ...rest }) {
  const short = completions.toSorted((a, b) => a.tokens.length - b.tokens.length);
  const some = (sign) => short.filter(({ advantage }) => advantage * sign > 0).slice(0, 2);
  return { ...rest, completions: [...some(1), ...some(-1)] };
}

const table = groupTable(four(prepare(group)));
const count = group.completions.length;
const figure = (title, note, ...parts) =>
  h("figure", { class: "told" }, h("h1", {}, title), h("p", { class: "note" }, note), parts);
const about = `${group.title}: 4 of ${count} completions. Blue tokens became more likely.`;
const note = "A dot is a line that ends with yes or no, at its P(yes).";
const drawn = checksChart("", checks, { mark: checks.length ? step : null });
if (location.hash === "#lines") {
  const [text] = textsOf(watched);
  if (text) $("view").append(linesTable(text, text.frames.length - 1));
} else
  $("view").append(
    figure(`One update, step ${step}`, about, table),
    figure(
      "All updates: yes comes to mean yes",
      note,
      drawn,
      h("p", { class: "sentence" }, sentence),
    ),
  );

const showColumns = (many) => () => {
  for (const dot of document.querySelectorAll(".dot"))
    dot.style.visibility = Number(dot.dataset.column) < many ? "visible" : "hidden";
  for (const curve of document.querySelectorAll(".curve"))
    curve.style.visibility = many > checks.length ? "visible" : "hidden";
};
const [[hide, pause], ...frames] = storyOf(table);
const story = [
  [() => [hide, showColumns(0)].forEach((act) => act()), pause],
  ...frames.filter(([, seconds]) => seconds > 0),
  ...checks.map((_, column) => [showColumns(column + 1), 0.25]),
  [showColumns(checks.length + 1), 4],
];
document.documentElement.dataset.drawn = "1"; // for tests
