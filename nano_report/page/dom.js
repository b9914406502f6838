"use strict";
// Elements, numbers, tooltip and theme. Text of a model only ever becomes a text node: nothing here makes markup of a string.

const $ = (id) => document.getElementById(id);

/** An element: h("p", {class: "note", onclick: f}, "text", child, null, [more]). */
function h(tag, attributes, ...children) {
  const space = ["svg", "rect", "line", "polyline", "circle", "text"].includes(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    else if (name.startsWith("aria-")) element.setAttribute(name, String(value)); // "false" is said, too
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number as text: 0.123, −1.5, 3.0e−8; "not finite" for NaN, which comes as a text; "–" for what is not there. */
function show(value, digits = 3) {
  if (typeof value === "string") return "not finite";
  if (!isNumber(value)) return "–";
  const small = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  return (small ? value.toExponential(1) : rounded(value, digits)).replaceAll("-", "−");
}
/** Rounds as Python does, which prints the console: a tie to the even digit. */
const rounded = (value, digits, style = "decimal") => value.toLocaleString("en", { style, useGrouping: false, minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven" });
const signed = (value, digits = 3) => (value > 0 ? "+" : "") + show(value, digits);
const percent = (value, digits = 0) => (isNumber(value) ? rounded(value, digits, "percent") : show(value));
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** Words with an explanation on hover and on focus. */
const term = (label, tip) => (tip ? h("span", { class: "term", tabindex: 0, "data-tip": tip }, label) : h("span", {}, label));

/** One tooltip for the page, beside an element; a line is a text, a pair [name, value] or a [formula]. */
function showTooltip(target, lines) {
  const box = $("tooltip");
  box.replaceChildren(...lines.filter(Boolean).map((line) => {
    if (!Array.isArray(line)) return h("div", {}, line);
    return line.length === 1 ? h("div", { class: "formula" }, line[0]) : h("div", { class: "pair" }, h("span", {}, line[0]), h("b", {}, line[1]));
  }));
  box.hidden = false;
  const at = target.getClientRects()[0] || target.getBoundingClientRect(), { width, height } = box.getBoundingClientRect();
  const below = at.bottom + 6 + height < innerHeight || at.top < height + 12;
  box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : at.top - height - 6}px`;
}
const hideTooltip = () => { $("tooltip").hidden = true; };

for (const event of ["mouseover", "focusin"]) {
  document.addEventListener(event, ({ target, movementX, movementY }) => {
    const tipped = target.closest?.("[data-tip]"), moved = movementX || movementY; // or the page below the pointer has changed
    if (tipped) showTooltip(tipped, [tipped.dataset.tip]);
    else if (moved && !target.closest?.(".tokens")) hideTooltip();
  });
}

/** Light or dark: the reader's choice, at first the system's. */
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "light" : "dark";
  $("theme").onclick = () => setTheme(!dark);
  document.dispatchEvent(new Event("theme"));
}
setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
