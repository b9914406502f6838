"""A skill that no rule gives: which number comes first depends on a comparison."""

from lab import COINS, Expected, Lab, Run, Tuning, tries
from length_alone import K1, no_reward
from select_or_reinforce import TUNING, selected

import nano_r1


def pay_form(sampler, problems, task, config, step):
    """`nano_r1.rollout`, where the reward is that for the form alone."""
    episodes = nano_r1.rollout(sampler, problems, task, config, step)
    for e in episodes:
        e.reward = e.reward._replace(total=e.reward.format)
    return episodes


COIN_TUNING = f"{TUNING} --task coins --max_tokens 40 --eval_problems 384"
TOKENS = 200_000  # what a run of GRPO with these settings samples, about

LAB = Lab(
    title="A skill that no rule gives, in two minutes",
    claim="How many more coins does one of two people have? And by how many does a third number "
    "differ from that? The embedded base has never met these questions. Which number comes "
    "first depends on a comparison, in each step; so no decoding rule that ignores the question, "
    "no length and no form gives the answer. (Asked beside it, and not counted: does what holds "
    "for one step and the other hold for both, from f(x) and g(x) to f(g(x))? arXiv:2509.25123.)",
    prediction="After 60 steps at least 0.8 of the one-step questions are right whoever has more. "
    "Two steps come later and less surely, 0.3 or more; the combination that was never trained "
    "on (both times the second number is larger) lies at least half as high. Form "
    "and k1 stay below 0.1. Rejection sampling from the base finds what is easy, "
    "that Ava has more, and little of the rest. (After tries on seeds 7 to 9, before these runs: "
    "GRPO's advantages are slower to find the second order, since a rare right attempt counts for "
    "less; and the controls are compared on it, where Ben has more.)",
    runs={
        "the verdict": Run(COINS),
        "the same, GRPO's advantages": Run(COINS.replace("rewards mean", "rewards group")),
        "form alone": Run(COINS, rollout=pay_form),
        "no reward, k1": Run(f"{COINS} {K1}", advantages=no_reward),
        "RFT, once, 3e-4": Tuning(f"{COIN_TUNING} --steps 100", selected(COINS, TOKENS)),
    },
    expected=[
        Expected("the verdict", 0.8, measure="ava_has_more"),
        Expected("the verdict", 0.8, measure="ben_has_more"),
        Expected("the verdict", 0.3, measure="two_steps", claim=False),
        Expected("the verdict", 0.15, measure="held_out", claim=False),
        Expected("the verdict", "form alone", above=0.3, measure="ben_has_more"),
        Expected("the verdict", "RFT, once, 3e-4", above=0.2, measure="ben_has_more"),
        Expected("the verdict", "the same, GRPO's advantages", measure="ben_has_more", claim=False),
    ],
    groups=("ava_has_more", "ben_has_more", "two_steps", "held_out"),
    measures=(tries(problems=96, samples=64),),
    found="The second order is found: where Ben has more, 0.96 are right instead of 0.00, and as "
    "many with GRPO's advantages (0.99); with form alone 0.02, by rejection sampling 0.27. Two "
    "steps are not learned at all, nor what was held out of them: the base writes one line, and "
    "hardly ever sees two rewarded. In 64 tries the base solves 0.32 of 96 questions and each that "
    "learned something 0.39 to 0.43: the third that has one step, and little more. (A first try, "
    "seed 0 alone and dropped, with the lesson's reward of form and verdict: 0.24 where Ben has "
    "more, after 80 steps.)",
    limits="Two numbers below 60 and two legal orders: a skill of one bit. The base knows "
    "subtraction already. The verdict alone is paid, so that good form is lost on the way.",
)

if __name__ == "__main__":
    LAB.main()
