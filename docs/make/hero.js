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
const note = "A dot is a line, at the probability of yes after it, by training step.";
const drawn = checksChart("", checks, { mark: checks.length ? step : null });
const [text] = textsOf(watched);
const lines = h("div", { class: "film" });
/** The same lines, as the model reads them after the last update up to this step. */
function showLines(step) {
  if (!text) return;
  const place = text.frames.findLastIndex(([at]) => at <= step);
  lines.replaceChildren(linesTable(text, place));
}
showLines(Infinity);
if (location.hash === "#lines") $("view").append(lines);
else
  $("view").append(
    figure(`One update, step ${step}`, about, table),
    figure(
      "All updates: yes comes to mean yes",
      note,
      drawn,
      location.hash === "#hero_phone" ? null : lines,
      h("p", { class: "sentence" }, sentence),
    ),
  );

const showColumns = (many) => () => {
  showLines(checks[many - 1]?.step ?? (many ? Infinity : 0));
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
