// The blocks of the file: JSON, gzip, base64. nano_report/payload.py makes them.

let report = null; // what is always needed: { runs, metrics, panels, alarms }
const loaded = new Map(); // id of a step's block -> a promise of the step

/** A block as an object, unpacked by the browser itself. */
async function readBlock(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function loadReport() {
  report = await readBlock("head");
  const names = new Set(report.runs.flatMap((run) => run.records.flatMap((record) => Object.keys(record).filter((name) => isNumber(record[name])))));
  for (const name of names) if (!report.metrics[name] && name !== "step" && !/_(low|high)$/.test(name)) { // a metric of the run's own
    report.metrics[name] = [name, "A metric of this run's own."];
    report.panels.push([name, [name]]);
  }
  report.runs.forEach((run, number) => {
    run.number = number;
    const recorded = run.steps;
    run.steps = Object.keys(recorded).map(Number).sort((a, b) => a - b); // those whose completions are in the file
    run.tokenSteps = run.steps.filter((step) => recorded[step]); // and whose tokens are
    run.byStep = new Map(run.records.map((record) => [record.step, record]));
    run.trained = run.records.filter((record) => record.step > 0);
    run.evaluated = run.records.filter((record) => isNumber(record["eval/pass@1"]));
  });
  const all = (name) => [...new Set(report.runs.flatMap((run) => run[name]))].sort((a, b) => a - b);
  Object.assign(report, { steps: all("steps"), tokenSteps: all("tokenSteps") });
}

/** A step of a run, or null if the file has none of it. */
function loadStep(run, step) {
  if (!run.steps.includes(step)) return Promise.resolve(null);
  const id = `run${run.number}-step${step}`;
  if (!loaded.has(id)) {
    loaded.set(id, readBlock(id).then((block) => new Step(run, block)));
    if (loaded.size > 40) loaded.delete(loaded.keys().next().value); // it is read again if it is needed
  }
  return loaded.get(id);
}

/** A step's completions, groups and tokens. */
class Step {
  constructor(run, block) {
    Object.assign(this, block, { run });
    for (const [name, unit] of Object.entries(this.units || {})) this[name] = this[name].map((whole) => (whole === null ? NaN : whole * unit));
    // The part of attempt i of N in nano_r1.py's loss. If the parts do not add up to the step's loss, it is another one: `loss` is null.
    const beta = run.config.kl_coef ?? 0, loss = run.byStep.get(this.step)?.loss ?? NaN;
    this.parts = this.rows.map((row) => (beta * (row.kl ?? 0) - row.advantage) / this.rows.length);
    this.formula = `−min(ρA, clip(ρ, 1 − ε, 1 + ε)A)${beta ? ` + ${beta}(exp(d) − 1 − d)` : ""}`;
    const total = this.parts.reduce((a, b) => a + b, 0);
    this.loss = Math.abs(total - loss) < 1e-7 + 0.02 * Math.abs(loss) ? total : null;
    this.starts = [0]; // of each completion among the step's tokens
    for (const row of this.rows) this.starts.push(this.starts.at(-1) + row.length);
    this.groups = this.problems.map((problem, g) => {
      const members = this.rows.map((_, i) => i).slice(g * run.group_size, (g + 1) * run.group_size), rows = members.map((i) => this.rows[i]);
      const count = (test) => rows.filter(test).length, equal = rows.every((row) => row.reward === rows[0].reward);
      return {
        number: g + 1, problem, members, equal: rows.length > 1 && equal,
        correct: count((row) => row.answer_reward === 1), cutOff: count((row) => row.cut_off), badFormat: count((row) => row.format_reward < 1),
      };
    });
  }

  /** An array of completion i's tokens; [] if it was not recorded. */
  part(name, i) {
    return (this[name] || []).slice(this.starts[i], this.starts[i + 1]);
  }

  /** Token ids as pieces of text. */
  pieces(ids) {
    const { vocabulary, special } = this.run;
    return piecesOf(ids.map((id) => vocabulary[id]), special.map((id) => vocabulary[id]));
  }

  /** Completion i as pieces, one for each token; without tokens it is a single piece. */
  completion(i) {
    return this.token_ids ? this.pieces(this.part("token_ids", i)) : [{ text: this.rows[i].completion }];
  }

  /** A group as table.js draws it. */
  table({ problem, members }) {
    const recorded = (i) => this.token_ids && { log_probs: this.part("log_probs", i), change: this.part("change", i), facts: (k) => this.facts(i, k) };
    return { title: problem, full: Math.max(1, ...this.rows.map((row) => row.reward)), attempts: members.map((i) => ({ ...this.rows[i], pieces: this.completion(i), ...recorded(i) })) };
  }

  /** More lines for the tooltip of a token of completion i. */
  facts(i, k) {
    const at = this.starts[i] + k, d = this.reference[at], A = this.rows[i].advantage, k3 = isNumber(d) ? Math.expm1(d) - d : 0, formula = this.loss === null || !isNumber(this.change[at]) ? null : this.formula;
    return [
      ["its log-prob changed by", `${signed(this.change[at], 4)} nats`],
      ["A, advantage", signed(A)],
      ...(formula ? [[`L = ${formula}\n  = ${show((this.run.config.kl_coef ?? 0) * k3 - A, 4)}`], ["ρ, policy / policy that sampled", "1 (one update per batch)"]] : []),
      isNumber(d) ? ["d, log (reference / policy)", signed(d, 4)] : null,
      formula ? ["divided by", `${this.rows.length} attempts × ${this.rows[i].length} tokens`] : null,
      ["position, token id", `${k + 1}, ${this.token_ids[at]}`],
    ];
  }
}
