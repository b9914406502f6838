// A group: its completions side by side, and the advantage lab.

const WITHOUT_TOKENS = ["advantage", "none"]; // what a whole completion can be coloured by
const colourWithoutTokens = () => (WITHOUT_TOKENS.includes(state.colour) ? state.colour : "advantage");

function groupView(steps) {
  const problems = report.runs.map((run) => steps[run.number]?.problems[state.group - 1]);
  const shared = new Set(problems.filter(Boolean)).size < 2;
  const recorded = steps.some((step) => step?.tokens), colour = recorded ? state.colour : colourWithoutTokens();
  return [
    h("h1", {}, `Step ${state.step}, group ${state.group}`),
    shared ? h("p", { class: "problem big" }, problems.find(Boolean)) : h("p", { class: "note" }, "The two runs drew different problems here."),
    h("div", { class: "toolbar" },
      h("div", { class: "chips", role: "group", "aria-label": "colour of tokens" }, Object.entries(COLOURS).map(([name, { label }]) =>
        h("button", { type: "button", "data-colour": name, "aria-pressed": colour === name, disabled: !recorded && !WITHOUT_TOKENS.includes(name),
          onclick: () => go({ colour: name }) }, label))),
      h("div", { class: "chips", role: "group", "aria-label": "other groups" },
        h("button", { type: "button", onclick: () => moveGroup(-1) }, "← group"),
        h("button", { type: "button", onclick: () => moveGroup(1) }, "group →"))),
    colourLegend(colour),
    colour === "update" ? h("p", { class: "note" }, "One update comes from all completions of the step, of every group: a token can move against the advantage of its own completion.") : null,
    columns(report.runs, (run) => {
      const step = steps[run.number];
      if (!step) return h("p", { class: "note" }, `The completions of this step are not in this file. ${stepsInFile(run)}`);
      if (state.group > step.groups.length) return h("p", { class: "note" }, `This step has ${plural(step.groups.length, "group")}.`);
      return [shared ? null : h("p", { class: "problem big" }, problems[run.number]), groupOf(step, step.groups[state.group - 1])];
    }),
  ];
}

function groupOf(step, group) {
  const cards = group.members.map((i, k) => completionCard(step, i, k));
  const repaint = (advantages) => cards.forEach((card, k) => {
    paint(card.querySelector(".tokens"), step.tokens ? state.colour : colourWithoutTokens(), advantages && advantages[k]);
    const note = card.querySelector(".lab-value");
    note.textContent = advantages ? ` · in the lab ${signed(advantages[k])}` : "";
  });
  const lab = step.run.config.group_size > 1 ? labOf(step, group.number, repaint) : null;
  if (!lab) repaint(null);
  const prompt = step.prompts?.[group.number];
  return [
    prompt ? h("details", {}, h("summary", {}, "The prompt, as the model sees it"), h("pre", {}, prompt)) : null,
    step.tokens ? null : tokensNote(step.run),
    h("div", { class: "completions" }, cards),
    lab,
  ];
}

function completionCard(step, i, k) {
  const right = step.answer[i] === 1, change = step.part("change", i);
  const moved = change && change.every(isNumber) ? change.reduce((a, b) => a + b, 0) : null;
  return h("article", { class: `card completion${state.completion === k + 1 ? " current" : ""}`, "data-completion": k + 1, tabindex: -1,
    "aria-label": `completion ${k + 1}` },
  h("header", {},
    h("a", { class: "place", href: hashOf({ completion: k + 1 }), "aria-label": `link to completion ${k + 1}` }, k + 1), rewardCell(step, i),
    h("span", { class: right ? "verdict right" : "verdict" }, right ? "right" : "not right"),
    h("span", { class: "number", "data-reward": "" }, "reward ", h("b", {}, show(step.reward[i], 2))),
    h("span", { class: "number" }, "advantage ", h("b", { "data-advantage": "" }, signed(step.advantage[i])), h("span", { class: "lab-value" }))),
  h("p", { class: "why" }, `format ${show(step.format[i], 2)}, answer ${show(step.answer[i], 0)}: ${step.why[i]}`),
  h("p", { class: "note" }, `${plural(step.length[i], "token")}, ${step.finish[i] === "length" ? "cut off at the limit" : "ended by itself"}`,
    moved === null ? null : ` · the update made it ${moved > 0 ? "more" : "less"} likely, by ${signed(moved, 2)} nats`,
    moved !== null && moved * step.advantage[i] < 0 ? ", against its advantage: the step's other completions weigh more" : null,
    step.trained && !step.trained[i] ? " · not part of the update" : null),
  tokensOf(step, i));
}
