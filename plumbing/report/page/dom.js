"use strict";
// Elements and numbers. Text from a model only ever becomes a text node: nothing here makes markup of a string.

/** An element: h("p", {class: "note", onclick: f}, "text", child, null, [more]). */
function h(tag, attributes, ...children) {
  const element = tag === "svg" || h.svg.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("aria-")) element.setAttribute(name, String(value)); // "false" is said, too
    if (value === null || value === undefined || value === false || name.startsWith("aria-")) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
h.svg = new Set(["rect", "line"]);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number as text: 0.123, −1.5, 3e-8; "not finite" for NaN as a text, "–" for what is not there. */
function show(value, digits = 3) {
  if (typeof value === "string") return "not finite";
  if (!isNumber(value)) return "–";
  const small = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  return (small ? value.toExponential(1) : value.toFixed(digits)).replaceAll("-", "−");
}
const signed = (value, digits = 3) => (isNumber(value) && value > 0 ? "+" : "") + show(value, digits);
const percent = (value) => (isNumber(value) ? `${Math.round(100 * value)}%` : show(value));
const count = (value) => (isNumber(value) ? value.toLocaleString("en-US") : show(value));
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** What a metric means, one sentence of docs/metrics.md, or "". */
function explain(name) {
  const known = report.explanations;
  return known[name] || (/^eval\/.+\//.test(name) && known["eval/SUBGROUP/..."]) || "";
}

/** A metric's name, with its explanation on hover and on focus. */
function term(name, label = name) {
  const sentence = explain(name);
  if (!sentence) return h("span", {}, label);
  return h("span", { class: "term", tabindex: 0, "data-tip": sentence, "data-name": name }, label);
}

/** One tooltip for the page, beside what the pointer or the focus is on; `lines` are texts, [name, value] pairs or a [formula]. */
const tooltip = {
  element: null,
  show(target, lines) {
    this.element ||= document.body.appendChild(h("div", { id: "tooltip", role: "tooltip", "aria-live": "polite" }));
    this.element.replaceChildren(...lines.map((line) => !Array.isArray(line) ? h("div", {}, line)
      : line.length === 1 ? h("div", { class: "formula" }, line[0])
        : h("div", { class: "pair" }, h("span", {}, line[0]), h("b", {}, line[1]))));
    this.element.hidden = false;
    const at = target.getClientRects()[0] || target.getBoundingClientRect(), box = this.element.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left, innerWidth - box.width - 8));
    const below = at.bottom + 6 + box.height < innerHeight || at.top < box.height + 12;
    Object.assign(this.element.style, { left: `${left}px`, top: `${below ? at.bottom + 6 : at.top - box.height - 6}px` });
  },
  hide() {
    if (this.element) this.element.hidden = true;
  },
};

for (const event of ["mouseover", "focusin"]) {
  document.addEventListener(event, ({ target }) => {
    if (!(target instanceof Element)) return;
    const tipped = target.closest("[data-tip]");
    if (tipped) tooltip.show(tipped, [tipped.dataset.tip]);
    else if (!target.closest(".tokens")) tooltip.hide();
  });
}
