// The blocks of the file: JSON, gzip, base64. payload.py makes them.

let report = null; // what is always needed of the run, with the metrics' labels and panels
const loaded = new Map(); // id of a step's block -> a promise of the step

/** A block as an object, unpacked by the browser itself. */
async function readBlock(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function loadReport() {
  report = await readBlock("head");
  report.best = report.steps; // { step: its group that shows most, 0 without recorded tokens }
  report.steps = Object.keys(report.best).map(Number);
  report.byStep = new Map(report.records.map((record) => [record.step, record]));
  report.trained = report.records.filter((record) => record.step > 0);
  report.evaluated = report.records.filter((record) => isNumber(record["eval/pass@1"]));
  report.tokenSteps = report.steps.filter((step) => report.best[step]);
}

/** A step, or null if the file has none of it. */
function loadStep(step) {
  if (!report.steps.includes(step)) return Promise.resolve(null);
  const id = `step${step}`;
  if (!loaded.has(id)) {
    const made = readBlock(id).then((block) => new Step(block));
    loaded.set(id, made);
    if (loaded.size > 40) loaded.delete(loaded.keys().next().value);
  }
  return loaded.get(id);
}

/** A step's completions, groups and tokens. */
class Step {
  constructor(block) {
    Object.assign(this, block);
    this.groups = this.problems.map((problem, g) => {
      const first = g * report.group_size;
      const rows = this.rows.slice(first, first + report.group_size);
      const count = (test) => rows.filter(test).length;
      return {
        number: g + 1,
        problem,
        rows,
        equal: rows.length > 1 && rows.every((row) => row.reward === rows[0].reward),
        correct: count((row) => row.answer_reward === 1),
        cutOff: count((row) => row.cut_off),
        badFormat: count((row) => row.format_reward < 1),
      };
    });
  }

  /** Token ids as pieces of text. */
  pieces(ids) {
    const { vocabulary, special } = report;
    const named = (list) => list.map((id) => vocabulary[id]);
    return piecesOf(named(ids), named(special));
  }

  /** A group as table.js draws it. */
  table({ problem, rows }) {
    const textOfRow = ({ token_ids }) => token_ids && this.pieces(token_ids);
    const completions = rows.map((row) => ({ ...row, pieces: textOfRow(row) }));
    return prepare({ title: problem, completions });
  }
}
