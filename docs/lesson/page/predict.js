// Places that ask for a prediction before they show the value.

const answered = new Map(); // of each prediction: the choice, or -1 for "show it"

/** The prediction of a statement that has no answer yet. */
function prediction(key, s) {
  const at = page.predictions.findIndex((one) => one.key === key && one.s === s);
  return at >= 0 && !answered.has(at) ? { at, ...page.predictions[at] } : null;
}

/** The prediction without an answer that a fact on top of the page would give away. */
const hidden = (fact) => page.predictions.find((one, i) => one.hides === fact && !answered.has(i));

/** Whether a statement would give away the answer to a question further up in its function. */
const veiled = (key, s) => page.predictions.some((one, i) => one.key === key && one.hides === "advantage" && s > one.s && !answered.has(i));

/** The question below its line. */
function question(asked, after) {
  const answer = (choice) => {
    answered.set(asked.at, choice);
    after();
    document.querySelector(`[data-answer="${asked.at}"]`)?.focus();
  };
  return h("div", { class: "question", "data-question": asked.at },
    h("p", { class: "title" }, `Prediction ${asked.at + 1} of ${page.predictions.length}`), h("p", {}, asked.question),
    h("p", { class: "choices" }, asked.choices.map((text, i) => h("button", { type: "button", onclick: () => answer(i) }, text)),
      h("button", { type: "button", class: "quiet", onclick: () => answer(-1) }, "show it")));
}

/** What the answer was, and why; below the same line. */
function answers(key, s) {
  const at = page.predictions.findIndex((one) => one.key === key && one.s === s);
  if (at < 0 || !answered.has(at)) return null;
  const asked = page.predictions[at], choice = answered.get(at), right = choice === asked.right;
  const verdict = choice < 0 ? "" : right ? "✓ Yes: " : `✗ Not ${asked.choices[choice]}: `;
  return h("div", { class: "question answer", "data-answer": at, tabindex: -1 },
    h("p", {}, h("b", {}, verdict, asked.choices[asked.right], ". "), asked.because));
}
