// The README's picture (docs/make/hero.py): a group as one table above two charts, and its story as frames.

const { group, sentence, step: mark, records, truth } = JSON.parse($("group").textContent);

/** A chart of shares by step. A line is { label, points: [[step, share]], tone, dots, at }; `at` places its label: [step, share]. */
function chart(title, lines) {
  const [width, height, left, top] = [420, 190, 44, 10], last = Math.max(...lines.flatMap(({ points }) => points.map(([step]) => step)));
  const x = (step) => left + ((width - left - 8) * step) / last, y = (share) => top + (height - top - 26) * (1 - share);
  const text = (at, words, name, anchor) => h("text", { x: at[0], y: at[1], class: name, "text-anchor": anchor }, words);
  const level = (share) => [h("line", { x1: left, x2: width - 8, y1: y(share), y2: y(share) }), text([left - 8, y(share) + 4], percent(share), "note", "end")];
  const said = lines.filter(({ points }) => points.length).map(({ label, points }) => `${label}: ${percent(points[0][1])} at step ${points[0][0]}, ${percent(points.at(-1)[1])} at step ${points.at(-1)[0]}`).join("; ");
  return h("figure", { class: "chart" }, h("figcaption", {}, title), h("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${said}` },
    [0, 0.5, 1].map(level), [0, 20, 40, 60].filter((step) => step <= last).map((step) => text([x(step), height - 6], step, "note", "middle")),
    h("line", { x1: x(mark), x2: x(mark), y1: top, y2: y(0), class: "mark" }), text([x(mark) - 5, top + 10], `step ${mark}`, "note", "end"),
    lines.filter(({ points }) => points.length).map(({ label, points, tone, dots, at }) => [
      h("polyline", { class: `curve ${tone}`, pathLength: 1, points: points.map(([step, share]) => `${x(step)},${y(share)}`).join(" ") }),
      dots ? points.map(([step, share]) => h("circle", { cx: x(step), cy: y(share), r: 4, class: tone })) : null,
      text([x(at[0]), y(at[1])], label, tone, "end"),
    ])));
}

/** Of a group as many attempts above its mean as below, the shortest ones. */
function some(group, count) {
  const { attempts, ...rest } = prepare(group);
  const short = attempts.toSorted((a, b) => a.tokens.length - b.tokens.length), half = (sign) => short.filter(({ advantage }) => advantage * sign > 0).slice(0, count / 2);
  return { ...rest, attempts: [...half(1), ...half(-1)] };
}

const curve = (name) => records.filter((record) => name in record).map((record) => [record.step, record[name]]);
const heldOut = curve("eval/pass@1"), end = heldOut.at(-1)[0];
const charts = [
  chart("Problems solved at the first try", [
    { label: "training problems", points: curve("reward/answer"), tone: "thin", at: [end, 0.42] },
    { label: `${percent(heldOut[0][1], 1)} → ${percent(heldOut.at(-1)[1], 1)} of held-out problems`, points: heldOut, tone: "good", dots: true, at: [end, 0.28] }]),
  chart("How often the model writes “yes”", [
    { label: "after a right result", points: truth[0], tone: "good", at: [end, 0.88] },
    { label: "after a wrong result", points: truth[1], tone: "bad", at: [end, 0.08] }]),
];

const count = group.attempts.length, shown = Number(location.hash.slice(1)) || count, words = { 4: "Four", 8: "Eight" };
$("view").append(h("h1", {}, `${words[count] ?? count} attempts at one problem, step ${mark} of GRPO`),
  groupFigure(shown < count ? { ...some(group, shown), title: `${group.title} (${shown} of ${count} attempts)` } : group),
  h("p", { class: "sentence" }, sentence), h("div", { class: "charts" }, charts));
document.querySelector(".play").remove();

const drawn = (part) => document.documentElement.style.setProperty("--drawn", part), table = document.querySelector(".attempts");
const story = storyOf(table);
story[0] = [() => { storyOf(table)[0][0](); drawn(0); }, 0.4];
story.push(...[0.2, 0.4, 0.6, 0.8, 1].map((part) => [() => drawn(part), part < 1 ? 0.12 : 4]));
document.documentElement.dataset.drawn = "1"; // for tests
