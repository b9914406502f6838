// A group: its completions as one table.

function groupView(step) {
  const move = (by) => {
    const onclick = () => moveGroup(by);
    return h("button", { onclick }, by < 0 ? "← group" : "group →");
  };
  const buttons = { class: "chips", role: "group", "aria-label": "other groups" };
  return [
    h(
      "div",
      { class: "toolbar" },
      h("h1", {}, `Step ${state.step}, group ${state.group}`),
      h("div", buttons, move(-1), move(1)),
    ),
    groupOf(step),
  ];
}

function groupOf(step) {
  if (!step) return notHere();
  const group = step.groups[state.group - 1];
  const count = `This step has ${plural(step.groups.length, "group")}.`;
  if (!group) return noteOf(count);
  const link = (completion) => hashOf({ completion });
  const figure = groupFigure(group, { current: state.completion, link });
  if (!group.prompt) return [figure, tokensNote()];
  const summary = h("summary", {}, "The prompt, as the model sees it");
  return [figure, h("details", {}, summary, h("pre", {}, group.prompt))];
}
