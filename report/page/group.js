// A group: its completions side by side.

function groupView(steps) {
  const problems = new Set(steps.map((step) => step?.problems[state.group - 1]).filter(Boolean));
  const move = (by) => h("button", { type: "button", onclick: () => moveGroup(by) }, by < 0 ? "← group" : "group →");
  return [
    h("h1", {}, `Step ${state.step}, group ${state.group}`),
    h("div", { class: "toolbar" },
      h("div", { class: "chips", role: "group", "aria-label": "colour of tokens" }, Object.entries(COLOURS).filter(([, { array }]) => steps.some((step) => step?.[array]?.some(isNumber))).map(([name, { label }]) =>
        h("button", { type: "button", "data-colour": name, "aria-pressed": state.colour === name, onclick: () => go({ colour: name }) }, label))),
      h("div", { class: "chips", role: "group", "aria-label": "other groups" }, move(-1), move(1))),
    colourLegend(),
    problems.size > 1 ? h("p", { class: "note" }, "The two runs drew different problems here.") : null,
    columns((run) => {
      const step = steps[run.number], group = step?.groups[state.group - 1];
      return group ? groupOf(step, group) : step ? h("p", { class: "note" }, `This step has ${plural(step.groups.length, "group")}.`) : notHere(run);
    }),
  ];
}

function groupOf(step, group) {
  const prompt = step.prompt_ids && step.pieces(step.prompt_ids[group.number - 1]).map((piece) => piece.text || piece.special).join("");
  return [
    h("p", { class: "problem big" }, group.problem),
    prompt ? h("details", {}, h("summary", {}, "The prompt, as the model sees it"), h("pre", {}, prompt)) : tokensNote(step.run),
    h("p", { class: "note" }, `Rewards of the group: mean ${show(step.means[group.number - 1])}, standard deviation ${show(step.spreads[group.number - 1])}. `,
      "One update comes from all groups of the step, so a completion can move against its own advantage."),
    h("div", { class: "completions" }, group.members.map((i, k) => completionCard(step, i, k))),
  ];
}

function completionCard(step, i, k) {
  const row = step.rows[i], moved = row.moved, sure = !hardly(moved);
  return h("article", { class: `card completion${state.completion === k + 1 ? " current" : ""}`, "data-completion": k + 1, tabindex: -1, "aria-label": `completion ${k + 1}` },
    h("header", {}, h("a", { class: "place", href: hashOf({ completion: k + 1 }), "aria-label": `link to completion ${k + 1}` }, k + 1), rewardCell(step, i), verdict(row)),
    h("p", {}, "reward ", h("b", { "data-reward": true }, show(row.reward, 2)), ` (format ${show(row.format_reward, 2)}, answer ${show(row.answer_reward, 0)}) · advantage `, h("b", { "data-advantage": true }, signed(row.advantage))),
    h("p", { class: "note" }, lengthOf(row), !isNumber(moved) ? null : sure ? ` · ${movement(moved)} by the update: ×\u00a0${show(Math.exp(moved), 2)}` : " · hardly moved by the update",
      sure && moved * row.advantage < 0 ? ", against its advantage" : null),
    tokensOf(step, i));
}
