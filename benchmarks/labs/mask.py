"""A tool writes a part of each completion: with its tokens masked, and without."""

import os
from dataclasses import replace
from functools import partial

import countdown_rewards
import nano_r1
from benchmarks import controls, runs
from benchmarks.labs.lab import COUNTDOWN, Lab, Prediction, Run
from tasks import tool_use

NO_TOOL = COUNTDOWN.replace("--steps 20", "--steps 12") + " --binary_reward"
CHECKER = NO_TOOL.replace("--task countdown", "--task checker")


def unmasked(*arguments):
    """`tool_use.rollout`, but all tokens count as the model's."""
    episodes = tool_use.rollout(*arguments)
    for e in episodes:
        e.mask = [True] * len(e.mask)
    return episodes


def divided_by_all_tokens(log_probs, batch, config):
    """`nano_r1.grpo_loss`, but |o_i| counts the tool's tokens, too."""
    losses = nano_r1.grpo_loss(log_probs, batch, config)  # (B,)
    written = batch["response_mask"].sum(dim=1)
    lengths = written.new_tensor([len(e.token_ids) for e in batch["episodes"]])
    return losses * written / lengths


def without_tool(config):
    """A measure: pass@1 without the tool, and the share of yes after which the model writes no."""
    problems = countdown_rewards.load_problems("test")[: config.eval_problems]
    episodes = runs.sample(replace(config, task="countdown"), problems)
    text = "\n".join(e.completion for e in episodes)
    correct = sum(e.answer_reward for e in episodes) / len(episodes)
    rows = runs.metrics(os.path.dirname(config.model))
    return {
        "without the tool": correct,
        "lost without the tool": rows[-1]["eval/pass@1"] - correct,
        "yes no": text.count(" yes no\n") / max(1, text.count(" yes")),
        "calls": rows[-1].get("eval/tool/calls", 0.0),
        "kl": rows[-1]["kl"],  # of the tokens in the mask
    }


def rewarded(function):
    """The tool's rollout with another reward."""
    return tool_use.FUNCTIONS | {"rollout": partial(function, rollout=tool_use.rollout)}


LAB = Lab(
    title="Without the mask, the model learns the tool's lines",
    claim="Search-R1 (arXiv:2503.09516, 7B) masks a search engine's tokens for stable training.",
    prediction="Without the mask, pass@1 is lower by 5 points, because the tool's tokens are "
    "improbable. Without the tool, the model then corrects its own yes. The length changes "
    "nothing.",
    runs={
        "mask": Run(CHECKER, tool_use.FUNCTIONS),
        "no mask": Run(CHECKER, tool_use.FUNCTIONS | {"rollout": unmasked}),
        "mask, all in the length": Run(
            CHECKER, tool_use.FUNCTIONS | {"loss": divided_by_all_tokens}
        ),
        "no tool": Run(NO_TOOL),
        "format reward": Run(CHECKER, rewarded(controls.format_reward)),
        "random reward": Run(CHECKER, rewarded(controls.random_reward)),
    },
    predictions=[
        Prediction("mask", "no mask", above=0.05),
        Prediction("no mask", "mask", above=0.2, measure="yes no"),
        Prediction("mask, all in the length", "mask", within=0.1, claim=False),
        Prediction("mask", "no tool", above=0.1, claim=False),
        Prediction("mask", 0.0, above=0.1, measure="lost without the tool", claim=False),
        Prediction("mask", "format reward", above=0.2, claim=False),
        Prediction("mask", "random reward", above=0.3, claim=False),
    ],
    measures=(without_tool,),
    found="57.8% are correct, without the mask 55.2%: 2.6 points less [1.1, 4.1]. No model writes "
    "the tool's no itself. Without the mask the tool's tokens become improbable: the KL metric is "
    "4.8 nats instead of 0.07. The length changes nothing.",
    limits="The tool writes 4% of the tokens, in 12 steps. Settings: seeds 7 and 8.",
)

if __name__ == "__main__":
    LAB.main()
