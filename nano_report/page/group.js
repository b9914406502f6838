// A group: its attempts as one table.

function groupView(steps) {
  const problems = new Set(steps.map((step) => step?.problems[state.group - 1]).filter(Boolean));
  const move = (by) => h("button", { type: "button", onclick: () => moveGroup(by) }, by < 0 ? "← group" : "group →");
  return [
    h("div", { class: "toolbar" }, h("h1", {}, `Step ${state.step}, group ${state.group}`), h("div", { class: "chips", role: "group", "aria-label": "other groups" }, move(-1), move(1))),
    problems.size > 1 ? h("p", { class: "note" }, "The two runs drew different problems here.") : null,
    columns((run) => {
      const step = steps[run.number], group = step?.groups[state.group - 1];
      return group ? groupOf(step, group) : step ? h("p", { class: "note" }, `This step has ${plural(step.groups.length, "group")}.`) : notHere(run);
    }),
  ];
}

function groupOf(step, group) {
  const prompt = step.prompt_ids && step.pieces(step.prompt_ids[group.number - 1]).map((piece) => piece.text || piece.special).join("");
  const figure = groupFigure(step.table(group), { current: state.completion, link: (completion) => hashOf({ completion }), after: () => moveStep(1)?.then(() => document.querySelector(".play").click()) });
  return [
    figure,
    prompt ? null : tokensNote(step.run),
    figure.querySelector("[data-wrong]:not(.folded)") ? h("p", { class: "note" }, "A wavy line marks wrong arithmetic.") : null,
    prompt ? h("details", {}, h("summary", {}, "The prompt, as the model sees it"), h("pre", {}, prompt)) : null,
  ];
}
