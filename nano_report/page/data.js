// The blocks of the file: JSON, gzip, base64. payload.py makes them.

let report = null; // what is always needed of the run, with the metrics' labels and panels

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

/** A step's completions by group, or null if the file has none of it. */
async function loadStep(step) {
  if (!report.steps.includes(step)) return null;
  const { problems, prompts, rows } = await readBlock(`step${step}`);
  const groups = problems.map((title, g) => {
    const first = g * report.group_size;
    const completions = rows.slice(first, first + report.group_size);
    return { title, prompt: prompts[g], completions, special: report.special };
  });
  return { rows, groups };
}
