// Charts by step, for the report and the README's picture. One cursor moves over all of them.

const WIDTH = 360;
const HEIGHT = 170;
const EDGES = { left: 44, right: 8, top: 8, bottom: 22 };

/** Round numbers from low to high, about three. */
function ticksOf(low, high) {
  const rough = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough);
  const first = Math.ceil(low / apart - 1e-9);
  const count = Math.floor(high / apart + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, k) => (first + k) * apart);
}

/** The numbers' texts, with digits enough to tell them apart. */
function labelsOf(ticks) {
  const digits = Math.max(0, -Math.floor(Math.log10((ticks[1] ?? 1) - ticks[0]) + 1e-9));
  return ticks.map((tick) => (digits > 4 ? tick.toExponential() : show(tick, digits)));
}

/** An evaluation's interval, a line and its points. */
function curveOf({ points, tone, dots, band = [] }, x, y) {
  const place = ([step, value]) => `${x(step)},${y(value)}`;
  const highs = band.map(([step, , high]) => [step, high]).reverse();
  const around = [...band, ...highs].map(place);
  return [
    band.length > 0 && h("path", { class: `band ${tone}`, d: `M${around.join("L")}Z` }),
    h("polyline", { class: `curve ${tone}`, points: points.map(place).join(" ") }),
    (dots || points.length < 3) &&
      points.map(([step, value]) => h("circle", { cx: x(step), cy: y(value), r: 3, class: tone })),
  ];
}

/**
 * A chart. A line is { label, points: [[step, value]], tone, dots, band: [[step, low, high]] };
 * `share` has an axis from 0 to 100%; `onstep` is called with the step that is clicked; `scatter`
 * draws below the lines.
 */
function chart(title, lines, { share, onstep, scatter, mark }) {
  const { left, right, top, bottom } = EDGES;
  const steps = lines.flatMap(({ points }) => points.map(([step]) => step));
  const values = lines.flatMap(({ points, band = [] }) => [
    ...points.map(([, value]) => value),
    ...band.flatMap(([, ...edges]) => edges),
  ]);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  let [low, high] = share ? [0, 1] : [Math.min(...values), Math.max(...values)];
  if (low === high)
    [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const x = (step) => left + ((WIDTH - left - right) * (step - first)) / (last - first || 1);
  const y = (value) => top + ((HEIGHT - top - bottom) * (high - value)) / (high - low);
  const text = (at, words, anchor) =>
    h("text", { x: at[0], y: at[1], "text-anchor": anchor }, words);
  const ticks = share ? [0, 0.5, 1] : ticksOf(low, high);
  const labels = share ? ["0%", "50%", "100%"] : labelsOf(ticks);
  const grid = ticks.map((tick, k) => [
    h("line", { x1: left, x2: WIDTH - right, y1: y(tick), y2: y(tick) }),
    text([left - 6, y(tick) + 4], labels[k], "end"),
  ]);
  const below = ticksOf(first, last === first ? first + 1 : last)
    .filter((step) => Number.isInteger(step) && step <= last)
    .map((step) => text([x(step), HEIGHT - 6], step, "middle"));
  const cursor = h("line", { class: "cursor", y1: top, y2: y(low), x1: -9, x2: -9 });
  const at = (points, step) => points.find((point) => point[0] === step) ?? points.at(-1);
  const said = ([step, value], line) => {
    const edges = line.band?.find((edge) => edge[0] === step)?.slice(1) ?? [];
    const all = [value, ...edges].map((one) =>
      share ? percent(one, 1) : show(one, one < 100 ? 3 : 1),
    );
    return edges.length ? `${all[0]} [${all[1]}, ${all[2]}]` : all[0];
  };
  const ends = lines.map((line) => {
    const [from, to] = [line.points[0], line.points.at(-1)];
    return `${line.label} from ${said(from, line)} at step ${from[0]} to ${said(to, line)}`;
  });
  const numbers = lines.map(({ tone, label }) =>
    h("span", { class: `key ${tone}` }, `${label} `, h("b", {})),
  );
  const svg = h(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": ends.join("; "),
    },
    grid,
    below,
    isNumber(mark) && h("line", { class: "mark", x1: x(mark), x2: x(mark), y1: top, y2: y(low) }),
    scatter?.(x, y),
    lines.map((line) => curveOf(line, x, y)),
    cursor,
  );
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, title), svg, numbers);
  figure.point = (step) => {
    const place = step === null ? -9 : x(step);
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    lines.forEach((line, k) => {
      numbers[k].lastChild.textContent = said(at(line.points, step), line);
    });
  };
  figure.point(null);
  const stepAt = ({ clientX }) => {
    const box = svg.getBoundingClientRect();
    const place = ((clientX - box.left) / box.width) * WIDTH;
    const far = (step) => Math.abs(x(step) - place);
    return steps.reduce((a, b) => (far(b) < far(a) ? b : a));
  };
  if (onstep) {
    const all = (step) => document.querySelectorAll(".chart").forEach((one) => one.point(step));
    svg.addEventListener("pointermove", (event) => all(stepAt(event)));
    svg.addEventListener("pointerleave", () => all(null));
    svg.addEventListener("click", (event) => onstep(stepAt(event)));
  }
  return figure;
}

/** Every check that the model wrote, at its P(yes), by step; `onclick` gets the place of a dot. */
function checksChart(title, checks, { onclick, ...options }) {
  const tones = ["bad", "good"];
  const lines = ["after another result", "after the target"].map((label, hit) => ({
    label,
    tone: tones[hit],
    points: checks.map(({ step, means }) => [step, means[hit]]),
  }));
  const scatter = (x, y) =>
    checks.map(({ step, dots }, column) =>
      dots.map(([share, hit, group, completion, text], k) =>
        h("circle", {
          cx: x(step) + ((k * 7) % 13) / 2 - 3,
          cy: y(share),
          r: 1.3,
          class: `dot ${tones[hit]}`,
          "data-column": column,
          "data-tip": `${text} yes: ${percent(share)}`,
          onclick: () => onclick({ step, group, completion }),
        }),
      ),
    );
  return chart(title, lines, { share: true, scatter, ...options });
}
