// The blocks of the file: JSON, gzip, base64. payload.py makes them.

let report = null; // what is always needed of the run, with the metrics' labels and panels

/** A block as an object, unpacked by the browser itself. */
async function readBlock(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const recordAt = (step) => report.records.find((record) => record.step === step);

async function loadReport() {
  report = await readBlock("head");
  report.steps = Object.keys(report.best).map(Number);
  report.trained = report.records.filter((record) => record.step > 0);
  report.evaluated = report.records.filter((record) => isNumber(record["eval/pass@1"]));
  report.tokenSteps = report.steps.filter((step) => report.best[step]);
}

/** A step's completions by group, or null if the file has none of it. */
async function loadStep(step) {
  if (!report.steps.includes(step)) return null;
  const rows = await readBlock(`step${step}`);
  const groups = [];
  for (let first = 0; first < rows.length; first += report.group_size) {
    const completions = rows.slice(first, first + report.group_size);
    const [{ problem, prompt }] = completions;
    groups.push({ title: problem, prompt, completions, special: report.special });
  }
  return { rows, groups };
}
