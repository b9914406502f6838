// The group's table. Predictions: a value that is asked for is hidden until the question below its line is answered.

const group = JSON.parse($("group").textContent), followed = +$("group").dataset.place;
$("story").prepend(groupFigure(group, { current: followed }));

const predictions = JSON.parse($("predictions").textContent);
const answered = new Set();

function reveal(number) {
  answered.add(number);
  for (const value of document.querySelectorAll(`[data-ask="${number}"]`)) value.classList.remove("waits");
}

/** Shows the answer, which a screen reader also says; `choice` is null if nobody chose. */
function reply(number, choice) {
  if (answered.has(number)) return;
  const { choices, answer, because } = predictions[number], next = predictions[number + 1], question = $(`question-${number}`);
  reveal(number);
  question.querySelector(".answer").append(
    choice === null ? "" : choice === answer ? "✓ Correct: " : "✗ No: ", h("b", {}, choices[answer]), `. ${because} `,
    next ? h("a", { href: `#L${next.line}` }, `Next prediction: line ${next.line}`) : "");
  question.querySelectorAll("button").forEach((button, k) => {
    button.setAttribute("aria-pressed", k === choice);
    button.setAttribute("aria-disabled", "true"); // still the focus
  });
}

predictions.forEach(({ line, question, choices }, number) => {
  const buttons = choices.map((text, choice) => h("button", { type: "button", "aria-pressed": false, onclick: () => reply(number, choice) }, text));
  for (const value of document.querySelectorAll(`[data-ask="${number}"]`)) value.classList.add("waits");
  $(`L${line}`).append(h("div", { class: "question", id: `question-${number}` },
    h("p", {}, h("b", {}, `Prediction ${number + 1} of ${predictions.length}. `), question), h("div", { class: "chips" }, buttons),
    h("p", { class: "answer", "aria-live": "polite" })));
});

$("all").textContent = "show all values";
$("all").onclick = () => {
  predictions.forEach((_, number) => reply(number, null));
  $("all").hidden = true;
};

/** An address within folds opens them. */
function goTo() {
  const line = $(location.hash.slice(1));
  for (let fold = line?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  line?.scrollIntoView({ block: "start" });
}
addEventListener("hashchange", goTo);
goTo();
document.documentElement.dataset.drawn = "1"; // for tests
