"use strict";
// Elements, numbers and the tooltip. A model's text only ever becomes a text node.

const $ = (id) => document.getElementById(id);
const SVG = ["svg", "rect", "line", "polyline", "path", "circle", "text"];

/** An element: h("p", { class: "note", onclick: f }, "text", child, null, [more]). */
function h(tag, attributes, ...children) {
  const space = SVG.includes(tag) ? "2000/svg" : "1999/xhtml";
  const element = document.createElementNS(`http://www.w3.org/${space}`, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name.startsWith("aria-") || (value ?? false) !== false)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => (child ?? false) !== false));
  return element;
}

const noteOf = (...words) => h("p", { class: "note" }, words);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number as text: 0.123, −1.5, 3.0e−8. NaN comes as a text; "–" is for what is not there. */
function show(value, digits = 3) {
  if (typeof value === "string") return "not finite";
  if (!isNumber(value)) return "–";
  const small = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  return (small ? value.toExponential(1) : rounded(value, digits)).replaceAll("-", "−");
}

/** Rounds as Python does, which prints the console: a tie to the even digit. */
function rounded(value, digits, style = "decimal") {
  const exactly = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  const options = { style, useGrouping: false, roundingMode: "halfEven", ...exactly };
  return value.toLocaleString("en", options);
}

const signed = (value, digits = 3) => (value > 0 ? "+" : "") + show(value, digits);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function percent(value, digits = 0) {
  return isNumber(value) ? rounded(value, digits, "percent") : show(value);
}

/** Words with an explanation on hover and on focus. */
function term(label, tip) {
  return h("span", tip ? { class: "term", tabindex: 0, "data-tip": tip } : {}, label);
}

/** The page's one tooltip, beside an element. */
function showTooltip(target, text) {
  const box = $("tooltip");
  box.textContent = text;
  box.hidden = false;
  const at = target.getClientRects()[0] ?? target.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const below = at.bottom + 6 + height < innerHeight || at.top < height + 12;
  box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : at.top - height - 6}px`;
}

function hideTooltip() {
  $("tooltip").hidden = true;
}

for (const event of ["mouseover", "focusin"]) {
  document.addEventListener(event, ({ target, movementX, movementY }) => {
    const tipped = target.closest?.("[data-tip]");
    if (tipped) showTooltip(tipped, tipped.dataset.tip);
    // Without a movement the page has changed below the pointer.
    else if ((movementX || movementY) && !target.closest?.(".tokens")) hideTooltip();
  });
}
