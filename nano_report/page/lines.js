// Completions of step 1, as the model reads them after each update: P(yes) of each line.

/** First come those that reject their own solution, and then accept a mistake. */
function textsOf(watched) {
  const rank = ({ frames: [[, lines]] }) =>
    lines.some(([line, hit]) => hit && line.endsWith(" no")) && 2 - lines.at(-1)[1];
  const texts = watched.filter(({ frames }) => frames[0][1].length);
  return texts.sort((a, b) => rank(b) - rank(a));
}

/** A text's lines, without the model's own word, with P(yes) in the first and another frame. */
function linesTable({ title, frames }, place) {
  const [[, first], [step, now]] = [frames[0], frames[place]];
  const bar = ([, hit, yes]) => {
    const box = h("span", { class: hit ? "box" : "box miss", "--part": percent(yes) });
    box.append(h("b", {}, percent(yes)));
    return h("td", {}, box);
  };
  const heads = [title, "P(yes) before training", `after ${plural(step, "step")}`];
  const head = heads.map((words) => h("th", { scope: "col" }, words));
  const rows = first.map((line, k) => {
    const [text] = line[0].split(" ");
    return h("tr", {}, h("th", { scope: "row" }, h("code", {}, text)), bar(line), bar(now[k]));
  });
  return h("table", { class: "lines" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}

/** The first six texts, with a slider over the updates; null if there is none. */
function filmOf(watched) {
  const texts = textsOf(watched).slice(0, 6);
  if (!texts.length) return null;
  const [{ frames }] = texts;
  const last = frames.length - 1;
  const slider = h("input", { type: "range", max: last, value: last, "aria-label": "update" });
  const tables = h("div", { class: "curves" });
  const draw = (place) => {
    slider.value = place;
    tables.replaceChildren(...texts.map((text) => linesTable(text, place)));
  };
  slider.oninput = () => {
    telling += 1; // the film stops
    draw(slider.valueAsNumber);
  };
  const rest = () => {
    const from = slider.valueAsNumber % last || 0; // at the end: from the beginning
    return frames.slice(from).map((_, k) => [() => draw(from + k), 0.1]);
  };
  draw(last);
  const note = `The model wrote these lines in step 1. How likely was “yes” after each of them, then
    and later? Green: the result is the target.`;
  return h(
    "div",
    {},
    noteOf(note),
    h("div", { class: "stepper" }, slider, playButton(rest, true)),
    tables,
  );
}
