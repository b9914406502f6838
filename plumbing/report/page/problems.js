// Held-out problems through training: the same problem, the same seed, from the base to the last evaluation.

function problemsView() {
  const most = Math.max(...report.runs.map((run) => run.heldOut.length));
  if (!most) return [h("h1", {}, "Held-out problems"),
    h("p", { class: "note" }, "This run has not kept the completions of its evaluations; newer ones do, of the first eight problems.")];
  return [
    h("h1", {}, "One problem through training"),
    h("p", { class: "note" }, "The same held-out problem and the same seed at every evaluation: only the weights differ. Below, a sign for each evaluation: ✓ right, · not right."),
    h("ol", { class: "chips problems", "aria-label": "problems" }, Array.from({ length: most }, (_, k) =>
      h("li", {}, h("button", { type: "button", "aria-pressed": state.problem === k + 1, "data-problem": k + 1, onclick: () => go({ problem: k + 1 }) },
        `${k + 1} `, report.runs.map((run) => h("span", { class: "marks" }, (run.heldOut[k]?.rows || []).map((row) => (row.answer_reward === 1 ? "✓" : "·")).join(""), " ")))))),
    columns(report.runs, (run) => problemOf(run.heldOut[state.problem - 1])),
  ];
}

function problemOf(problem) {
  if (!problem) return h("p", { class: "note" }, "Not recorded in this run.");
  const current = problem.rows.reduce((found, row) => (row.step <= state.step ? row.step : found), problem.rows[0].step);
  return [
    h("p", { class: "problem big" }, problem.problem),
    h("div", { class: "completions" }, problem.rows.map((row) =>
      h("article", { class: `card completion${row.step === current ? " current" : ""}`, "data-evaluation": row.step, "aria-label": `after step ${row.step}` },
        h("header", {},
          h("span", { class: "place" }, row.step ? `after step ${row.step}` : "base"),
          h("span", { class: row.answer_reward === 1 ? "verdict right" : "verdict" }, row.answer_reward === 1 ? "✓ right" : "not right"),
          h("span", { class: "number" }, "reward ", h("b", {}, show(row.reward, 2)))),
        h("p", { class: "why" }, row.why),
        h("p", { class: "note" }, `${plural(row.length, "token")}, ${row.finish_reason === "length" ? "cut off at the limit" : "ended by itself"}`),
        h("p", { class: "tokens plain", dir: "ltr" }, cutAtSums(row.completion, 0, row.wrong, true).map(([text, wrong]) =>
          h("span", wrong ? { class: "token", "data-wrong": "" } : { class: "token" }, text)))))),
  ];
}
