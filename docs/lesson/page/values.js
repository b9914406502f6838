"use strict";
// The record, and a value of it as elements. What a model wrote only ever becomes a text node.

const page = JSON.parse(document.getElementById("record").textContent);
const state = { follow: null, run: 0 };
const MARKS = ["①", "②", "③", "④", "⑤", "⑥", "⑦", "⑧"];

/** An element: h("p", {class: "note", onclick: f}, "text", child, null, [more]). */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false && !name.startsWith("aria-")) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A number of the record as text: four digits, a real minus sign. */
function digits(x) {
  if (typeof x === "boolean") return x ? "True" : "False";
  if (typeof x !== "number") return String(x);
  const size = Math.abs(x);
  const text = Number.isInteger(x) ? String(x) : size < 1e-3 ? x.toExponential(1) : size < 1000 ? String(Number(x.toPrecision(size < 1 ? 3 : 4))) : x.toFixed(0);
  return text.replaceAll("-", "−");
}

const tokenText = (id) => page.tokens[id] ?? "?";
/** A token's text where it would not be seen: ↵ for a line break. */
const seen = (text) => (text === "" ? "∅" : text.replaceAll("\n", "↵"));
const words = (ids) => ids.map(tokenText).join("");

/** The type of a value in a few characters: float32 (37, 160), list of 16. */
function typeOf(value) {
  if (value.type === "tensor") return `${value.dtype} (${value.shape.join(", ")}${value.shape.length === 1 ? "," : ""})`;
  if (value.n !== undefined && value.type !== "str") return `${value.type} of ${value.n}`;
  return value.type === "NoneType" ? "" : value.type;
}

const rowOf = (value) => (state.follow === null ? null : value.rows?.[state.follow] ?? null);

/** A value on one line, as text. */
function brief(value, depth = 0) {
  const row = rowOf(value);
  if (row) return briefRow(row, depth);
  if (value.num !== undefined) return digits(value.num);
  if (value.id !== undefined) return `“${seen(tokenText(value.id))}”`;
  if (value.text !== undefined) return value.type === "str" ? `“${clip(seen(value.text), 60)}”` : value.text;
  if (value.ids) return `“${seen(clip(words(value.ids), 40))} …”`;
  if (value.first) return `${value.first.map(digits).join("  ")}${more(value)}`;
  if (value.items && depth < 2) {
    const some = value.items.slice(0, 4).map(([name, at]) =>
      value.type === "list" || value.type === "tuple" ? brief(page.values[at], depth + 1) : name);
    return `${clip(some.join(", "), 90)}${value.items.length > 4 || value.n > some.length ? " …" : ""}`;
  }
  return "";
}

function briefRow(row, depth) {
  if (row.num !== undefined) return digits(row.num);
  if (row.text !== undefined) return `“${clip(seen(row.text), 60)}”`;
  if (row.ids) return `“${clip(seen(words(row.ids)), 60)}”`;
  if (row.tok) return `${row.tok.slice(0, 5).map(digits).join("  ")}${row.tok.length > 5 ? " …" : ""}`;
  if (row.list) return `${row.list.slice(0, 5).map(digits).join("  ")} …`;
  if (row.runs) return row.runs.map(([value, count]) => `${count} × ${value}`).join(", ");
  if (row.top) return row.top.slice(0, 2).map(([id, x]) => `“${seen(tokenText(id))}” ${digits(x)}`).join("  ");
  return depth < 2 && row.at !== undefined ? brief(page.values[row.at], depth + 1) : "";
}

const clip = (text, length) => (text.length > length ? `${text.slice(0, length)}…` : text);
const more = (value) => ((value.n ?? (value.shape || []).reduce((a, b) => a * b, 1)) > value.first.length ? " …" : "");

/** The eight numbers of the group, side by side, where a value has one for each completion. */
function strip(value) {
  const rows = page.attempts.map((_, k) => value.rows?.[k]?.num);
  if (rows.some((x) => x === undefined)) return null;
  const largest = Math.max(...rows.map((x) => (typeof x === "number" ? Math.abs(x) : 0))) || 1;
  return h("span", { class: "strip" }, rows.map((x, k) => {
    const size = typeof x === "number" ? Math.abs(x) / largest : 0;
    return h("span", { class: `cell ${x > 0 ? "up" : x < 0 ? "down" : "zero"}`, "data-current": state.follow === k },
      h("i", { style: `height: ${Math.round(22 * size)}px`, "aria-hidden": "true" }), h("b", {}, digits(x)), h("small", {}, MARKS[k]));
  }));
}

/** Tokens with a number below each. */
function tokenRow(k, numbers) {
  const ids = page.attempts[k].ids, all = numbers.length;
  const one = (i) => h("span", { class: `tok ${numbers[i] > 0 ? "up" : numbers[i] < 0 ? "down" : ""}` },
    h("span", { class: "piece" }, seen(tokenText(ids[i]))), h("small", {}, digits(numbers[i])));
  const holder = h("div", { class: "toks", tabindex: 0 }, Array.from({ length: Math.min(all, 48) }, (_, i) => one(i)));
  if (all > 48) {
    holder.append(h("button", { type: "button", onclick: (event) => {
      event.target.remove();
      for (let i = 48; i < all; i++) holder.append(one(i));
    } }, `all ${all} tokens`));
  }
  return holder;
}

/** The row of the followed completion. */
function rowElement(row, depth) {
  if (row.tok) return tokenRow(state.follow, row.tok);
  if (row.ids) return h("div", { class: "toks", tabindex: 0 }, row.ids.map((id) => h("span", { class: "tok" },
    h("span", { class: "piece" }, seen(tokenText(id))), h("small", {}, String(id)))));
  if (row.text !== undefined) return h("div", { class: "said", tabindex: 0 }, row.text);
  if (row.top) return h("div", { class: "plain" }, row.of ? `${row.of}: ` : "",
    row.top.map(([id, x]) => `“${seen(tokenText(id))}” ${digits(x)}`).join("   "), " …");
  if (row.at !== undefined) return details(page.values[row.at], depth + 1);
  return h("div", { class: "plain" }, briefRow(row, 0));
}

/** Everything that is known of a value. */
function details(value, depth = 0) {
  const row = rowOf(value), parts = [], lined = strip(value);
  if (lined) parts.push(lined);
  if (row && !(lined && row.num !== undefined)) parts.push(rowElement(row, depth));
  else if (!lined && value.type === "str") parts.push(h("div", { class: "said", tabindex: 0 }, value.text));
  else if (!lined && value.ids) parts.push(h("div", { class: "toks", tabindex: 0 }, value.ids.map((id) => h("span", { class: "tok" },
    h("span", { class: "piece" }, seen(tokenText(id))), h("small", {}, String(id)))), " …"));
  else if (!lined && !value.items) parts.push(h("div", { class: "plain" }, value.of ? `${value.of}: ` : "", brief(value)));
  if (value.items && !row && depth < 3) {
    parts.push(h("dl", { class: "items" }, value.items.map(([name, at]) => h("div", {},
      h("dt", {}, name, " ", h("small", {}, typeOf(page.values[at]))), h("dd", {}, details(page.values[at], depth + 1))))));
  }
  return h("div", { class: "value" }, parts);
}
