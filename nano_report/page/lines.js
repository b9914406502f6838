// Completions of step 1, as the model reads them after each update: P(yes) of each line.

/** First come those that reject their own solution, and then accept a mistake. */
function textsOf(watched) {
  const rank = ({ frames: [[, lines]] }) =>
    lines.some(([line, hit]) => hit && line.endsWith(" no")) && 2 - lines.at(-1)[1];
  const texts = watched.filter(({ frames }) => frames[0][1].length);
  return texts.sort((a, b) => rank(b) - rank(a));
}

/** A text's lines with P(yes) before the first update, and in another frame. */
function linesTable({ title, frames }, place) {
  const [[, first], [step, now]] = [frames[0], frames[place]];
  const bar = ([, hit, yes]) => {
    const box = h("span", { class: hit ? "box" : "box miss", "--part": percent(yes) });
    box.append(h("b", {}, percent(yes)));
    return h("td", {}, box);
  };
  const heads = [title, "before training", `after ${plural(step, "step")}`];
  const head = heads.map((words) => h("th", { scope: "col" }, words));
  const rows = first.map((line, k) =>
    h("tr", {}, h("th", { scope: "row" }, h("code", {}, line[0])), bar(line), bar(now[k])),
  );
  return h("table", { class: "lines" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}
