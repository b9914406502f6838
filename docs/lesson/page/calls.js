// A call below its line: its body with the values of this very call, or what plumbing got and gave back.

/** A call opened below its line. */
function callElement(parent, s, name, call) {
  const spec = page.functions[keyOf(call)];
  const close = h("button", { type: "button", class: "close", "aria-label": `close ${short(name)}`, onclick: () => parent.toggle(s, name) }, "×");
  const title = h("p", { class: "title" }, h("b", {}, short(name)), h("small", {}, call.file), close);
  const pairs = (list) => h("dl", { class: "items" }, list.map(([label, at]) => h("div", {},
    h("dt", {}, label, " ", h("small", {}, typeOf(page.values[at]))), h("dd", {}, h("span", { class: "plain" }, brief(page.values[at]))))));
  const got = call.args.length ? pairs(call.args) : null;
  const box = h("div", { class: "call", "data-call": call.name }, title, h("p", { class: "doc" }, call.doc ?? spec?.doc ?? ""), got);
  if (spec) box.append(nested(parent, s, name, call, spec));
  else {
    const called = call.calls || [];
    if (call.returns !== null) box.append(h("div", { class: "variable" }, h("p", { class: "head" }, h("b", {}, "returns"),
      h("span", { class: "type" }, typeOf(page.values[call.returns]))), details(page.values[call.returns])));
    for (const [inner, count] of Object.entries(call.called || {})) {
      const one = about(called.filter((other) => other.name === inner))[0];
      box.append(h("p", { class: "note" }, `It calls ${short(inner)} of the lesson ${count} times; this is the first time:`));
      box.append(callElement(parent, s, name, one));
    }
  }
  return box;
}

function nested(parent, s, name, call, spec) {
  const code = h("div", { class: "code" }), rows = new Map();
  for (let number = spec.first; number <= spec.last; number++) {
    const from = document.querySelector(`[data-file="${call.file}"] > [data-line="${number}"]`);
    if (!from || number >= spec.docstring[0] && number <= spec.docstring[1]) continue;
    const text = from.querySelector("code").cloneNode(true);
    text.querySelector(".chips")?.remove();
    const beside = from.querySelector(".beside")?.cloneNode(true);
    const element = h("div", { class: "line", style: from.getAttribute("style"), "data-line": number },
      h("span", { class: "number" }, number), text, beside);
    rows.set(number, { element });
    code.append(element);
  }
  parent.inner ||= new Map();
  const old = parent.inner.get(`${s} ${name} ${call.name}`), body = new Body(keyOf(call), rows, () => call);
  body.nested = true;
  if (old) { body.opened = old.opened; body.inner = old.inner; }
  parent.inner.set(`${s} ${name} ${call.name}`, body);
  body.draw();
  return code;
}

// ---- The card beside the pointer

const card = document.getElementById("card");

function showCard(element, content) {
  card.replaceChildren(content);
  card.hidden = false;
  const at = element.getBoundingClientRect(), box = card.getBoundingClientRect();
  const below = at.bottom + box.height + 8 < innerHeight || at.top < box.height + 8;
  card.style.left = `${Math.max(8, Math.min(at.left + 60, innerWidth - box.width - 8))}px`;
  card.style.top = `${below ? at.bottom + 4 : at.top - box.height - 4}px`;
}

function hideCard() {
  card.hidden = true;
}
