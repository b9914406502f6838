// Lines of code with what they computed: beside each its values, below it on request all of them and the calls.

const keyOf = (call) => `${call.file}:${call.name}`;
let callsOf = new Map(); // "FILE:NAME" -> its calls in this run, those of the evaluation last
const bodies = []; // of the file's own functions

function indexCalls() {
  const late = [];
  callsOf = new Map();
  const add = (call) => callsOf.set(keyOf(call), [...(callsOf.get(keyOf(call)) || []), call]);
  const walk = (call, inEvaluation) => {
    if (inEvaluation) late.push(call);
    else add(call);
    const inner = [...call.visits.flatMap((visit) => visit.calls || []), ...(call.calls || [])];
    inner.forEach((one) => walk(one, inEvaluation || call.name === "evaluate" || one.name === "evaluate"));
  };
  walk(page.runs[state.run].call, false);
  late.forEach(add);
}

/** Of several records the one about the followed completion; else the first about all. */
function about(records) {
  if (state.follow !== null) {
    const own = records.filter((one) => one.who?.includes(state.follow));
    if (own.length) return own;
  }
  const all = records.filter((one) => !one.who || one.who.length);
  return all.length ? all : records;
}

/** The values of a visit: [[name, value], ...]. */
const valuesOf = (visit) => visit.set.map(([name, at]) => [name === "return" ? "returns" : name, page.values[at]]);

/** One function's lines for one call; in the file itself, or opened below a line. */
class Body {
  constructor(key, rows, choose) {
    Object.assign(this, { key, rows, choose, opened: new Set() });
    this.spec = page.functions[key];
    this.spec.statements.forEach(([first, last], s) => {
      const row = rows.get(first), end = rows.get(last);
      if (!row) return;
      row.statement = s;
      row.end = end;
    });
    for (const row of rows.values()) if (row.statement !== undefined) this.listen(row);
  }

  listen(row) {
    const toggle = () => this.toggle(row.statement, "values");
    row.side = row.element.appendChild(h("button", { type: "button", class: "side", "aria-expanded": false, onclick: toggle }));
    row.element.querySelector("code").addEventListener("click", () => !getSelection().toString() && this.visit(row) && toggle());
    row.element.addEventListener("mouseenter", () => matchMedia("(hover: hover)").matches && this.hover(row));
    row.element.addEventListener("mouseleave", hideCard);
  }

  get call() { return this.choose(); }
  visits(row) { return about((this.call?.visits || []).filter((visit) => visit.s === row.statement)); }
  visit(row) { return this.visits(row)[0]; }

  hover(row) {
    const visit = this.visit(row);
    if (visit && !veiled(this.key, row.statement) && !this.opened.has(`${row.statement} values`) && !prediction(this.key, row.statement)) showCard(row.element, visitElement(visit));
  }

  toggle(s, what) {
    const name = `${s} ${what}`;
    if (this.opened.has(name)) this.opened.delete(name);
    else this.opened.add(name);
    hideCard();
    this.draw();
  }

  draw() {
    for (const row of this.rows.values()) if (row.statement !== undefined) this.drawRow(row);
  }

  drawRow(row) {
    const visits = this.visits(row), visit = visits[0];
    row.below?.remove();
    row.below = null;
    row.side.replaceChildren();
    row.side.hidden = !visit;
    row.element.toggleAttribute("data-ran", Boolean(visit));
    row.chips?.remove();
    if (!visit) return;
    const asked = prediction(this.key, row.statement);
    row.side.append(...(asked || veiled(this.key, row.statement) ? [h("span", { class: "ask" }, "predict first")] : summary(visit)));
    row.side.toggleAttribute("data-differs", !this.nested && differs(this.key, row.statement, visit));
    row.side.setAttribute("aria-expanded", this.opened.has(`${row.statement} values`));
    this.drawChips(row, visit);
    const told = answers(this.key, row.statement), below = told ? [told] : [];
    if (asked || this.opened.has(`${row.statement} values`)) below.push(asked ? question(asked, drawAll) : visitElement(visit, visits));
    for (const [name, call] of calledBy(visit)) {
      if (this.opened.has(`${row.statement} ${name}`)) below.push(callElement(this, row.statement, name, call));
    }
    if (below.length) row.end.element.after(row.below = h("div", { class: "below" }, below));
  }

  drawChips(row, visit) {
    const names = calledBy(visit).map(([name]) => name);
    if (!names.length) return;
    row.chips = h("span", { class: "chips" }, names.map((name) => h("button", {
      type: "button", "aria-expanded": this.opened.has(`${row.statement} ${name}`), onclick: (event) => {
        event.stopPropagation();
        this.toggle(row.statement, name);
      },
    }, short(name))));
    row.end.element.querySelector("code").append(row.chips);
  }
}

const short = (name) => name.replace(/\.__init__$/, "").replace(/^.*\./, "");

/** [[name, call], ...] of a visit: of several calls of a function the one about the followed completion. */
function calledBy(visit) {
  const names = [...new Set((visit.calls || []).map((call) => call.name))];
  return names.map((name) => [name, about(visit.calls.filter((call) => call.name === name))[0]]);
}

function summary(visit) {
  const parts = valuesOf(visit).slice(0, 3).map(([name, value]) => {
    const mark = rowOf(value) ? h("span", { class: "mark" }, MARKS[state.follow]) : null;
    return h("span", { class: "one" }, h("b", {}, name), " ", mark, brief(value) || typeOf(value));
  });
  if (visit.taken !== undefined) parts.push(h("span", { class: "one" }, visit.taken ? "yes" : "no"));
  for (const [name, at] of visit.read || []) parts.push(h("span", { class: "one read" }, `${name} = ${brief(page.values[at]) || typeOf(page.values[at])}`));
  return parts.length ? parts : [h("span", { class: "one read" }, "done")];
}

/** All that is known of a visit; of a loop over something else than completions, each of its first rounds. */
function visitElement(visit, visits = [visit]) {
  const some = visits.filter((one) => String(one.who) === String(visit.who)).slice(0, 3);
  const holder = h("div", { class: "visit" });
  for (const one of some) {
    for (const [name, value] of valuesOf(one)) {
      holder.append(h("div", { class: "variable" }, h("p", { class: "head" }, h("b", {}, name), h("span", { class: "type" }, typeOf(value)),
        rowOf(value) && h("span", { class: "mark" }, `attempt ${MARKS[state.follow]}`)), details(value)));
    }
  }
  if (visit.taken !== undefined) holder.append(h("p", { class: "head" }, visit.taken ? "True: its lines run" : "False: its lines do not run"));
  for (const [name, at] of visit.read || []) {
    holder.append(h("p", { class: "head" }, h("b", {}, name), h("span", {}, brief(page.values[at]) || typeOf(page.values[at]))));
  }
  const rounds = visit.times.at(-1);
  if (visit.times.length && !(state.follow !== null && visit.who?.includes(state.follow))) {
    holder.append(h("p", { class: "note" }, rounds ? `round ${rounds + 1} of its loop` : "the first round of its loop"));
  }
  if (!holder.childElementCount) holder.append(h("p", { class: "note" }, "It set nothing that has a name."));
  return holder;
}
