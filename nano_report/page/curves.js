// The curves of the run, drawn by uPlot: one cursor over all of them, drag to zoom, click to go to a step.

const charts = []; // those on the page

/** All panels that have something to show. */
function curvesOf(runs, goTo) {
  charts.splice(0).forEach((chart) => chart.destroy());
  const has = (name) => runs.some((run) => run.records.some((record) => isNumber(record[name])));
  const panels = report.panels.filter(([, names]) => names.some(has));
  const drawn = panels.map(([title, names]) => panel(title, names.filter(has), runs, goTo)), box = (list) => h("div", { class: "curves" }, list);
  return [box(drawn.slice(0, 6)), drawn.length > 6 ? h("details", {}, h("summary", {}, "More curves"), box(drawn.slice(6))) : null];
}

/** Two runs differ by their hue; the curves of one by theirs, or if there are two runs by their line. An evaluation has its interval around it. */
function panel(title, names, runs, goTo) {
  const steps = [...new Set(runs.flatMap((run) => run.records.map((record) => record.step)))].sort((a, b) => a - b);
  const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(name).trim();
  const data = [steps], series = [{}], bands = [], two = runs.length > 1;
  const values = (run, name) => steps.map((step) => {
    const value = run.byStep.get(step)?.[name];
    return isNumber(value) ? value : null; // a gap if it was not measured, or is not finite
  });
  runs.forEach((run, r) => names.forEach((name, c) => {
    const evaluated = name.startsWith("eval/"), hue = 1 + (two ? r : c), label = report.metrics[name][0];
    const low = values(run, `${name}_low`), high = values(run, `${name}_high`);
    const text = (u, value, s, at) => (isNumber(low[at]) ? `${show(value, 2)} [${show(low[at], 2)}, ${show(high[at], 2)}]` : show(value));
    data.push(values(run, name));
    series.push({ label: two ? `${"AB"[r]} ${label}` : label, stroke: colour(`--curve-${hue}`), width: evaluated ? 2.2 : 1.5, spanGaps: evaluated, value: text,
      dash: two && c && !evaluated ? [5, 4] : null, points: { show: evaluated || steps.length < 3, size: 6, fill: colour(`--curve-${hue}`) } });
    if (!low.some(isNumber)) return;
    bands.push({ series: [data.length + 1, data.length], fill: colour(`--band-${hue}`) });
    for (const edge of [low, high]) {
      data.push(edge);
      series.push({ stroke: "transparent", spanGaps: true, points: { show: false } });
    }
  }));

  const ends = names.map((name) => runs.map((run) => run.records.map((record) => record[name]).filter(isNumber)).map((all) => `${report.metrics[name][0]} from ${show(all[0])} to ${show(all.at(-1))}`));
  const holder = h("div", { class: "plot", role: "img", "aria-label": `${title}, by step: ${ends.flat().join("; ")}` });
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  let down = null, waiting = null; // a click waits for its second one, which zooms out
  const chart = new uPlot({
    width: 320, height: 150, series, bands, padding: [8, 10, 0, 0],
    scales: { x: { time: false, range: steps.length < 2 ? [steps[0] - 1, steps[0] + 1] : undefined },
      y: data.slice(1).flat().some(Boolean) ? {} : { range: [0, 1] } }, // not to 100 if all is 0
    axes: [{ ...axis, size: 28, space: 50, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 46, space: 30, values: (_, ticks) => ticks.map((t) => (t && Math.abs(t) < 1e-3 ? t.toExponential() : +t.toPrecision(3))) }],
    cursor: {
      y: false, sync: { key: "steps", scales: ["x", null] }, points: { size: 6 },
      bind: { // a click without a drag goes to the step below it
        mousedown: (u, target, handler) => (event) => { down = event.clientX; clearTimeout(waiting); return handler(event); },
        mouseup: (u, target, handler) => (event) => {
          const step = u.data[0][u.cursor.idx];
          if (down !== null && Math.abs(event.clientX - down) < 4 && event.detail < 2 && step !== undefined) waiting = setTimeout(() => holder.isConnected && goTo(step), 300);
          down = null;
          return handler(event);
        },
      },
    },
    legend: { live: true, markers: { width: 0 } },
    hooks: { setCursor: [restLegend], ready: [restLegend] },
  }, data, holder);
  charts.push(chart);
  holder.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
    row.hidden = !series[i].label; // the step, the edges of an interval
    row.style.setProperty("--hue", series[i].label ? series[i].stroke : "transparent");
    row.classList.toggle("dashed", Boolean(series[i].dash));
  });
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width) chart.setSize({ width: Math.floor(contentRect.width), height: 150 });
  }).observe(holder);
  const terms = names.map((name) => term(names.length > 1 ? report.metrics[name][0] : title, report.metrics[name][1]));
  return h("figure", { class: "card" }, h("figcaption", {}, terms.length > 1 ? [`${title}: `, terms[0], ", ", terms[1]] : terms), holder);
}

/** Without a pointer the legend has the last number of each curve. */
function restLegend(u) {
  const at = u.data[0].length - 1;
  if (u.cursor.left >= 0 || u.legend.idx === at) return;
  u.setLegend({ idx: at, idxs: u.data.map((values) => Math.max(0, values.findLastIndex((value) => value !== null))) });
}
