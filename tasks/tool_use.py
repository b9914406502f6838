# %% [markdown]
# # The environment also writes
#
# In `nano_r1.py` the model writes every token of a completion. Here a tool of the task writes some
# of them. The model writes an *action*, up to a stop text. The tool answers with an *observation*.
# Then the model continues. The observation is a part of the completion, and the model reads it. But
# the loss leaves it out, because the model did not choose its tokens: they are masked
# (`Episode.mask`).
#
#     python tasks/tool_use.py                      # two CPU cores, two minutes
#     python tasks/tool_use.py --resume out/NAME    # continue it; add the flags it was started with
#     python tasks/tool_use.py --help               # every setting
#
# The task is a module as for `nano_r1.py`, with these things more:
#
#     PROMPTS     a prompt's `stop` has the texts that call the tool
#     TURNS       how often the model may write in one completion
#     tool        (text, problem) -> str or None: the observation after the completion so far. None:
#                 nothing was asked. It executes nothing of the text and takes bounded time
#
# Everything is token ids. An observation is encoded once, and its ids are appended. No text of the
# model is decoded and encoded again: docs/tools.md says why.
#
# Left out: several tools, tools that wait for a network, an advantage for each turn, and keeping
# the keys and values between turns. (vLLM's prefix cache keeps them. The sampler of `nano_r1.py`
# reads the whole context again in each turn.)

# %%
import copy
import os
import random
import sys
from dataclasses import dataclass
from typing import Literal

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))  # the repository's root
import nano_r1
from nano_r1 import RANK, WORLD, Episode, gather, mean, seed_of

# %% [markdown]
# ## 1. Settings


# %%
@dataclass(kw_only=True)
class Config(nano_r1.Config):
    """GRPO with a tool that writes a part of the completions: nano_r1.py with another rollout.

    python tasks/tool_use.py    (two CPU cores, two minutes)
    """

    task: str = "checker"  # a module with PROMPTS, TURNS and tool
    max_tokens: int = 128  # of a completion, with the tool's tokens; a longer one is cut off
    steps: int = 12  # optimizer steps
    warmup_steps: int = 3  # linear warm-up
    lr_scheduler_type: Literal["linear", "constant"] = "constant"
    eval_problems: int = 256  # with 256, the 95% interval is about +-0.06


# %% [markdown]
# ## 2. The rollout: actions and observations
#
# A completion of three turns, and its mask:
#
#     94-27=67+39=106 yes no \n 94-27=67-39=28 yes \n </think> ...
#     1 1 1...        1   0  0  1 1 1...       1   0  1        ...


# %%
class ToolSampler:
    """A sampler in whose completions the tool writes, too. It is used for one batch of problems.

    `problems` are those of all processes, as in `nano_r1.sample_and_reward`. After `generate`,
    `episodes` has the episodes with their masks, `turns` and `calls`.
    """

    def __init__(self, sampler, problems, task, config):
        self.sampler = sampler
        self.problems = problems[RANK::WORLD]  # this process's share
        self.task = task
        self.config = config
        self.episodes = []

    def generate(self, prompts, n, temperature, seeds):
        """[(token ids, log-probs)], as every sampler; the tool's tokens have the log-prob 0."""
        for prompt_ids, problem, seed in zip(prompts, self.problems, seeds):
            for place in range(n):
                e = Episode(problem=problem, prompt_ids=prompt_ids, token_ids=[])
                e.extra = {"turns": 0, "calls": 0, "seed": seed_of(seed, place)}
                self.episodes.append(e)
        running = self.episodes
        for turn in range(self.task.module.TURNS):
            if running:
                running = self.take_turn(running, turn, temperature)
        return [(e.token_ids, e.log_probs) for e in self.episodes]

    def take_turn(self, running, turn, temperature):
        """An action of the model and an observation in each episode; those that go on after it."""
        # Action: the model continues up to a stop text. Each turn has its own seed.
        contexts = [e.prompt_ids + e.token_ids for e in running]
        seeds = [seed_of(e.extra["seed"], turn) for e in running]
        actions = self.sampler.generate(contexts, 1, temperature, seeds)
        for e, (token_ids, log_probs) in zip(running, actions):
            e.extra["turns"] += 1
            self.append(e, token_ids, log_probs, True)
            if self.goes_on(e):
                self.observe(e)
        return [e for e in running if self.goes_on(e)]

    def observe(self, e):
        """Observation: the tool's tokens follow the model's own ids, which stay as they are."""
        text = self.task.text_of(e.token_ids)
        observation = self.task.module.tool(text, e.problem)
        if observation is not None:
            # A special token in it, such as the end, is only text: the model did not write it.
            token_ids = self.task.tokenizer.encode(
                observation, add_special_tokens=False, split_special_tokens=True
            )
            e.extra["calls"] += 1
            self.append(e, token_ids, [0.0] * len(token_ids), False)

    def append(self, e, token_ids, log_probs, by_model):
        """Tokens of the model or of the tool. What exceeds max_tokens is cut off."""
        mask = [by_model] * len(token_ids)
        room = self.config.max_tokens - len(e.token_ids)
        e.token_ids += token_ids[:room]
        e.log_probs += log_probs[:room]
        e.mask += mask[:room]

    def goes_on(self, e):
        """Whether there is no end token yet, and room."""
        has_room = len(e.token_ids) < self.config.max_tokens
        return has_room and e.token_ids[-1] not in self.task.stop_ids


def without_stop(task):
    """The task for whole completions: a stop text ends a turn, and only an end token the rest."""
    task = copy.copy(task)
    task.prompt = task.prompt._replace(stop=())
    return task


def rollout(sampler, problems, task, config, step):
    """Steps 1 to 3, like `nano_r1.rollout`."""
    label = f"step {step}, tools"
    rng = random.Random(seed_of(config.seed, label, "questions"))
    drawn = rng.sample(problems, config.prompts_per_step)
    return sample_and_reward(sampler, drawn, task, config, label, config.group_size)


def sample_and_reward(sampler, problems, task, config, label, n):
    """Steps 2 and 3, like `nano_r1.sample_and_reward`; episodes have mask, turns, calls."""
    with_tool = ToolSampler(sampler, problems, task, config)
    whole = without_stop(task)
    episodes = nano_r1.sample_and_reward(with_tool, problems, whole, config, label, n)
    for e, sampled in zip(episodes, with_tool.episodes):
        e.mask = sampled.mask
        e.extra = sampled.extra
    return episodes


# %% [markdown]
# ## 3. What is measured: step 9


# %%
def measure(rows, batches, engine, step, config):
    """The metrics of `nano_r1.measure_step`, and the tool's."""
    metrics = nano_r1.measure_step(rows, batches, engine, step, config)
    metrics["tool/model_tokens"] = mean(rows, "written") / mean(rows, "length")
    return metrics | counts(sum([batch["episodes"] for batch in batches], []))


def evaluate(sampler, problems, task, config, path, step):
    """Like `nano_r1.evaluate`, with the tool."""
    with_tool = ToolSampler(sampler, problems, task, config)
    metrics = nano_r1.evaluate(with_tool, problems, without_stop(task), config, path, step)
    return metrics | counts(with_tool.episodes, "eval/")


def counts(episodes, kind=""):
    """Means over the completions of all processes."""
    rows = gather([e.extra for e in episodes])
    return {f"{kind}tool/{name}": mean(rows, name) for name in ("turns", "calls")}


# %% [markdown]
# ## 4. The run


# %%
def load_problems(module, split, config):
    """Like `nano_r1.load_problems`, of a task with a tool."""
    if not hasattr(module, "tool"):
        raise SystemExit(f"--task {config.task} has no tool; try checker")
    return nano_r1.load_problems(module, split, config)


def main(config):
    """Call `nano_r1.main` with this file's functions."""
    return nano_r1.main(
        config, load_problems=load_problems, rollout=rollout, measure=measure, evaluate=evaluate
    )


if __name__ == "__main__":
    nano_r1.run_command(main, Config)
