// Predictions: a value that is asked for is hidden until the question below its line is answered.

const predictions = JSON.parse($("predictions").textContent);
const answered = new Set();

function reveal(number) {
  answered.add(number);
  for (const value of document.querySelectorAll(`[data-ask="${number}"]`)) value.classList.remove("waits");
}

function reply(number, choice) {
  const { choices, answer, because } = predictions[number], next = predictions[number + 1];
  reveal(number);
  $(`question-${number}`).append(h("p", { class: "answer" },
    choice === null ? "" : choice === answer ? "✓ Correct: " : "✗ No: ", h("b", {}, choices[answer]), `. ${because} `,
    next ? h("a", { href: `#L${next.line}` }, `Next prediction: line ${next.line}`) : null));
  for (const button of $(`question-${number}`).querySelectorAll("button")) button.disabled = true;
}

predictions.forEach(({ line, question, choices }, number) => {
  const buttons = choices.map((text, choice) => h("button", { type: "button", onclick: () => reply(number, choice) }, text));
  for (const value of document.querySelectorAll(`[data-ask="${number}"]`)) value.classList.add("waits");
  $(`L${line}`).append(h("div", { class: "question", id: `question-${number}` },
    h("p", {}, h("b", {}, `Prediction ${number + 1} of ${predictions.length}. `), question), h("div", { class: "chips" }, buttons)));
});

$("all").textContent = "show all values";
$("all").onclick = () => {
  predictions.forEach((_, number) => answered.has(number) || reply(number, null));
  $("all").hidden = true;
};

/** An address within a fold opens it. */
function goTo() {
  const line = $(location.hash.slice(1)), fold = line?.closest("details");
  if (fold) fold.open = true;
  line?.scrollIntoView({ block: "start" });
}
addEventListener("hashchange", goTo);
goTo();
document.documentElement.dataset.drawn = "1"; // for tests
