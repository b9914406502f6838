// The blocks of the file: JSON, then arrays of numbers; gzip, base64. plumbing/report/payload.py packs them.

const NOT_COMPUTED = -(2 ** 15);

/** The bytes of a block, unpacked by the browser itself. */
async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** A block as an object: its JSON, and each array as numbers under its name; NaN is "not computed". */
async function readBlock(id) {
  const bytes = await unpack(id);
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const block = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  let start = 4 + length;
  for (const { name, count, width, unit } of block.arrays) {
    const numbers = unit === null ? new Uint32Array(count) : new Float64Array(count);
    for (let i = 0; i < count; i++) {
      let whole = 0;
      for (let plane = 0; plane < width; plane++) whole += bytes[start + plane * count + i] * 256 ** plane;
      if (unit === null) numbers[i] = whole;
      else {
        if (whole >= 2 ** 15) whole -= 2 ** 16;
        numbers[i] = whole === NOT_COMPUTED ? NaN : whole * unit;
      }
    }
    block[name] = numbers;
    start += count * width;
  }
  return block;
}

let report = null; // what is always needed: { runs, explanations }
const loaded = new Map(); // id of a step's block -> a promise of it

/** A step of a run with its completions, or null where the file has none of it. */
function loadStep(run, step) {
  if (!run.steps.includes(step)) return Promise.resolve(null);
  const id = `run${run.number}-step${step}`;
  if (!loaded.has(id)) {
    loaded.set(id, readBlock(id).then((block) => new Step(run, block)));
    if (loaded.size > 40) loaded.delete(loaded.keys().next().value); // what was looked at first is read again if needed
  }
  return loaded.get(id);
}

/** A step's completions and groups. */
class Step {
  constructor(run, block) {
    Object.assign(this, block, { run, groupSize: run.groupSize });
    this.starts = [0]; // of each completion among the step's tokens
    for (const length of this.length) this.starts.push(this.starts.at(-1) + length);
    this.groups = this.problems.map((_, g) => this.summary(g));
    this.rewardRange = [Math.min(...this.reward), Math.max(...this.reward)];
  }

  /** Numbers of the completions of group g: its place in the step's lists. */
  members(g) {
    const first = g * this.groupSize;
    return Array.from({ length: Math.min(this.groupSize, this.reward.length - first) }, (_, i) => first + i);
  }

  /** What the list of groups shows, filters and sorts by. */
  summary(g) {
    const members = this.members(g), some = (test) => members.filter(test).length;
    const changes = members.map((i) => this.meanChange(i)).filter(isNumber);
    return {
      number: g,
      members,
      noSignal: members.length > 1 && members.every((i) => this.reward[i] === this.reward[members[0]]),
      right: some((i) => this.answer[i] === 1),
      cutOff: some((i) => this.finish[i] === "length"),
      badForm: some((i) => this.format[i] !== 1),
      wrongSums: members.reduce((sum, i) => sum + this.wrong[i].length, 0),
      longest: Math.max(...members.map((i) => this.length[i])),
      change: changes.length ? mean(changes) : null,
    };
  }

  /** Mean size of what the update did to a token of completion i, in nats; null where it was not computed. */
  meanChange(i) {
    const changes = this.part("change", i);
    return changes && !changes.some(Number.isNaN) && changes.length ? mean(Array.from(changes, Math.abs)) : null;
  }

  /** One of the arrays, of completion i alone; null where the run did not record it. */
  part(name, i) {
    return this[name] ? this[name].subarray(this.starts[i], this.starts[i + 1]) : null;
  }

  /** Completion i as pieces of text, one for each token; a run without tokens has a single piece. */
  pieces(i) {
    if (!this.tokens) return [{ text: this.text[i] }];
    // A character may be split over tokens: its text is that of the token that completes it.
    const decoder = new TextDecoder(), length = this.starts[i + 1] - this.starts[i];
    return Array.from(this.part("tokens", i), (token, place) => {
      const special = this.run.isSpecial.has(token);
      const bytes = Uint8Array.from(special ? "" : this.run.vocabulary[token], (letter) => letter.charCodeAt(0));
      const text = decoder.decode(bytes, { stream: place + 1 < length });
      return { text, token, special: special ? this.run.vocabulary[token] : null };
    });
  }
}

/** Read what is always needed. */
async function loadReport() {
  report = await readBlock("head");
  report.runs.forEach((run, number) => {
    run.number = number;
    run.isSpecial = new Set(run.special);
    run.stepRecords = run.records.filter((record) => record.step > 0);
    run.byStep = new Map(run.records.map((record) => [record.step, record]));
  });
  report.tokenSteps = [...new Set(report.runs.flatMap((run) => run.tokenSteps))].sort((a, b) => a - b);
  report.steps = [...new Set(report.runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
  return report;
}
