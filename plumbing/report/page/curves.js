// The curves of the run, drawn by uPlot: one cursor over all of them, drag to zoom, click to go to a step.

// Of each panel: title, and [metric, label] of each curve; the evaluation's curve has its interval around it.
const PANELS = [
  ["accuracy", [["reward/answer", "training batch"], ["eval/pass@1", "evaluation, pass@1"]]],
  ["reward", [["reward", "total"], ["reward/format", "format"]]],
  ["completion length, tokens", [["completions/mean_length", "mean"]]],
  ["entropy, nats a token", [["entropy", "entropy"]]],
  ["gradient norm", [["grad_norm", "before clipping"]]],
  ["shares", [["frac_reward_zero_std", "groups without signal"], ["completions/clipped_ratio", "cut off"]]],
  ["KL from the base, nats a token", [["kl", "k3"]]],
  ["loss", [["loss", "loss"]]],
];
const HUES = ["--curve-1", "--curve-2"];
const charts = []; // those on the page

/** All panels that have something to show. Two runs differ by their hue, the curves of one by their line: whole and dashed. */
function curvesOf(runs, goTo) {
  charts.splice(0).forEach((chart) => chart.destroy());
  const panels = PANELS.map(([title, series]) => {
    const curves = series.filter(([name]) => runs.some((run) => run.records.some((r) => isNumber(r[name]))));
    return curves.length ? panel(title, curves, runs, goTo) : null;
  });
  return h("div", { class: "curves" }, panels);
}

function panel(title, curves, runs, goTo) {
  const steps = [...new Set(runs.flatMap((run) => run.records.map((record) => record.step)))].sort((a, b) => a - b);
  const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(name).trim();
  const data = [steps], series = [{ label: "step" }], bands = [], spoken = [];
  runs.forEach((run, r) => curves.forEach(([name, label], c) => {
    const values = (key) => steps.map((step) => {
      const value = run.byStep.get(step)?.[key];
      return isNumber(value) ? value : null; // a gap where it was not measured, or not finite
    });
    const main = values(name), evaluated = name.startsWith("eval/"), two = runs.length > 1;
    const hue = two ? r : evaluated ? 1 : c, stroke = colour(HUES[hue]);
    const known = main.filter(isNumber);
    if (!known.length) return;
    spoken.push(`${label} of ${run.name}: from ${show(known[0])} to ${show(known.at(-1))}`);
    data.push(main);
    series.push({
      label: two ? `${"AB"[r]} ${label}` : label, stroke, width: evaluated ? 2.2 : two ? 1.2 : 1.5,
      dash: two && c && !evaluated ? [5, 4] : null, spanGaps: evaluated, value: (_, value) => show(value),
      points: { show: evaluated || steps.length < 3, size: 6, fill: stroke },
    });
    if (evaluated) {
      data.push(values(`${name}_low`), values(`${name}_high`));
      const hidden = { stroke: "transparent", spanGaps: true, points: { show: false }, value: (_, value) => show(value) };
      series.push({ ...hidden, label: "95% from" }, { ...hidden, label: "to" });
      bands.push({ series: [data.length - 1, data.length - 2], fill: colour(hue ? "--band" : "--band-1") });
    }
  }));

  const holder = h("div", { class: "plot", role: "img", "aria-label": `${title}, by step. ${spoken.join("; ")}.` });
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  let down = null;
  const chart = new uPlot({
    width: 320, height: 150, series, bands, padding: [8, 10, 0, 0],
    scales: { x: { time: false, range: steps.length < 2 ? [steps[0] - 1, steps[0] + 1] : undefined } },
    axes: [{ ...axis, size: 28, space: 50, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 46, space: 30, values: (_, ticks) => ticks.map((t) => +t.toPrecision(3)) }],
    cursor: {
      sync: { key: "steps" }, points: { size: 6 },
      bind: { // a click without a drag goes to the step below it
        mousedown: (u, target, handler) => (event) => { down = event.clientX; return handler(event); },
        mouseup: (u, target, handler) => (event) => {
          if (down !== null && Math.abs(event.clientX - down) < 4 && u.cursor.idx !== null) goTo(u.data[0][u.cursor.idx]);
          down = null;
          return handler(event);
        },
      },
    },
    legend: { live: true, markers: { width: 0 } },
    hooks: { draw: [(u) => markStep(u, colour("--ink"))], setCursor: [restLegend], ready: [restLegend] },
  }, data, holder);
  charts.push(chart);
  for (const [i, row] of [...holder.querySelectorAll(".u-legend .u-series")].entries()) {
    const curve = series[i];
    row.hidden = runs.length > 1 && ["to", "95% from"].includes(curve.label); // there is no room for two
    if (curve.stroke && curve.stroke !== "transparent") row.style.setProperty("--hue", curve.stroke);
    if (curve.dash) row.classList.add("dashed");
  }
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width) chart.setSize({ width: Math.floor(contentRect.width), height: 150 });
  }).observe(holder);
  const [name] = curves[0];
  return h("figure", { class: "card" }, h("figcaption", {}, term(name, title)), holder);
}

/** Without a pointer the legend has the numbers of the step that the slider is on. */
function restLegend(u) {
  const at = u.data[0].indexOf(state.step);
  if (u.cursor.left < 0 && at >= 0 && u.legend.idx !== at) u.setLegend({ idx: at, idxs: u.series.map(() => at) });
}

/** After the slider has moved. */
function markAgain(u) {
  u.redraw(false);
  restLegend(u);
}

/** A line at the step that the slider is on. */
function markStep(u, colour) {
  const x = u.valToPos(state.step, "x", true);
  if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
  u.ctx.save();
  u.ctx.strokeStyle = colour;
  u.ctx.globalAlpha = 0.55;
  u.ctx.setLineDash([]);
  u.ctx.beginPath();
  u.ctx.moveTo(x, u.bbox.top);
  u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
  u.ctx.stroke();
  u.ctx.restore();
}
