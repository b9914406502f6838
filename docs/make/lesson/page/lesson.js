// The group's table, what other rewards would do, and the predictions.

const { predictions, watched, table: group, place } = JSON.parse($("data").textContent);
$("story").append(groupFigure(group, { current: place }));

const RULES = {
  GRPO: (reward, { mean, std }) => (reward - mean) / (std + 1e-4),
  RLOO: (reward, { mean, n }) => ((reward - mean) * n) / (n - 1),
  "Dr. GRPO": (reward, { mean }) => reward - mean,
};

/** The table with other rewards, and the advantages that a rule makes of them. */
function whatIf(rewards, rule = "GRPO") {
  const completions = group.completions.map((c, k) => ({ ...c, change: null, reward: rewards[k] }));
  const changed = { ...prepare({ completions: [...completions] }), completions };
  for (const c of completions)
    c.advantage = RULES[rule](c.reward, { ...changed, n: rewards.length });
  const was = ({ advantage }, k) =>
    h("small", {}, `was ${signed(group.completions[k].advantage, 2)}`);
  const table = groupTable(changed, { last: (c) => was(c, completions.indexOf(c)) });
  table.querySelectorAll(".box").forEach((box, k) => {
    const next = (rewards[k] + 1) % 3;
    const onclick = () => whatIf(rewards.with(k, next), rule);
    const label = `reward ${rewards[k]}; click for ${next}`;
    const button = h("button", { class: "edit", "aria-label": label, onclick });
    box.replaceWith(button);
    button.append(box);
  });
  const button = (name, onclick, pressed = false) =>
    h("button", { "aria-pressed": pressed, onclick }, name);
  const real = group.completions.map(({ reward }) => reward);
  const chips = [
    ...Object.keys(RULES).map((name) => button(name, () => whatIf(rewards, name), name === rule)),
    button("all equal", () => whatIf(rewards.fill(1), rule)),
    button("reset", () => whatIf(real)),
  ];
  $("what-if").replaceChildren(
    h("div", { class: "chips" }, chips),
    h("div", { class: "told" }, table),
  );
}
whatIf(group.completions.map(({ reward }) => reward));

$("film").append(filmOf(watched) ?? "");

const answered = new Map(); // number -> whether the answer was correct

/** From a line without an answer to its function's end, values and the steps' boxes are hidden. */
function hideValues() {
  for (const value of document.querySelectorAll(".waits")) value.classList.remove("waits");
  predictions.forEach(({ line }, number) => {
    let at = answered.has(number) ? null : $(`L${line}`);
    for (; at && !/^\S/.test(at.children[1].textContent); at = at.nextElementSibling)
      for (const value of document.querySelectorAll(`#${at.id} .value, [href="#${at.id}"] code`))
        value.classList.add("waits");
  });
}

/** Shows the answer, which a screen reader also says; `choice` is null if nobody chose. */
function reply(number, choice) {
  if (answered.has(number)) return;
  const { choices, answer, because } = predictions[number];
  answered.set(number, choice === answer);
  hideValues();
  const question = $(`question-${number}`);
  let judged = "";
  if (choice !== null) judged = choice === answer ? "✓ Correct: " : "✗ It is ";
  const next = predictions[number + 1];
  const link = next && h("a", { href: `#L${next.line}` }, `Next prediction: line ${next.line}`);
  const said = [judged, h("b", {}, choices[answer]), `. ${because} `, link ?? ""];
  if (answered.size === predictions.length) {
    const correct = [...answered.values()].filter(Boolean).length;
    said.push(` ${correct} of ${answered.size} predictions were correct. Now break a line: `);
    said.push("notebooks/chapters/2_the_loss.ipynb.");
  }
  question.querySelector(".answer").append(...said);
  question.querySelectorAll("button").forEach((button, k) => {
    button.setAttribute("aria-pressed", k === choice);
    button.setAttribute("aria-disabled", "true"); // still the focus
  });
}

predictions.forEach(({ line, question, choices }, number) => {
  const buttons = choices.map((text, choice) => {
    const onclick = () => reply(number, choice);
    return h("button", { "aria-pressed": false, onclick }, text);
  });
  const title = h("b", {}, `Prediction ${number + 1} of ${predictions.length}. `);
  const asked = h(
    "div",
    { class: "question", id: `question-${number}` },
    h("p", {}, title, question),
    h("div", { class: "chips" }, buttons),
    h("p", { class: "answer", "aria-live": "polite" }),
  );
  $(`L${line}`).append(asked);
});
hideValues();

$("all").onclick = () => {
  predictions.forEach((_, number) => reply(number, null));
  $("all").hidden = true;
};

/** An address within folds opens them. */
function goTo() {
  const line = $(location.hash.slice(1));
  for (let fold = line?.closest("details"); fold; fold = fold.parentElement.closest("details"))
    fold.open = true;
  line?.scrollIntoView({ block: "start" });
}
addEventListener("hashchange", goTo);
goTo();
document.documentElement.dataset.drawn = "1"; // for tests
