"""A rollout in which a tool writes, too: whose token is whose, and the run around it."""

import subprocess
import sys
from dataclasses import replace

import pytest
from work import light

import nano_r1
from benchmarks import runs
from tasks import checker_rewards, tool_use

PROBLEM = {"nums": [94, 27, 39], "target": 28}
SMALL = tool_use.Config(
    task="checker",
    prompts_per_step=2,
    max_tokens=60,
    eval_problems=8,
    eval_every=1,
    warmup_steps=0,
    steps=1,
)


# ---- The task


@pytest.mark.parametrize(
    "answer, lines",
    [
        ("\n", ["94-27=67-39=28", "94-27=67-39=28 no\n27+39=66,94-66=28"]),
        (" no\n", ["94-27=67+39=106", "94-27=68-40=28", "94-66=28", "94-27=67-39=28,28-28=0"]),
        (None, ["94-27=67-39=28 yes no\n", "os.abort()=28", "</think>\n94-27=67-39=28"]),
    ],
)
def test_the_checker_answers_a_yes_with_the_truth(answer, lines):
    for line in lines:
        assert checker_rewards.tool(f"\n{line} yes", PROBLEM) == answer
        assert checker_rewards.tool(f"\n{line} no", PROBLEM) is None


@pytest.mark.parametrize("text", ["9*" * 500_000, "=1-" * 66, "\n" * 500_000])
def test_the_checker_ends_soon_whatever_is_written(text):
    light(checker_rewards.tool, f"{text}28 yes", PROBLEM)


# ---- Actions and observations


class Scripted:
    """A sampler that writes the given turns, and keeps the contexts."""

    def __init__(self, turns):
        self.turns = turns
        self.contexts = []

    def generate(self, prompts, n, temperature, seeds):
        (context,) = prompts
        self.contexts.append(context)
        turn = self.turns.pop(0)
        return [(turn, [-0.5] * len(turn))]


@pytest.fixture(scope="module")
def task():
    _, task = runs.load(SMALL)
    return task


def converse(task, *turns, max_tokens=60):
    """(the episode of PROBLEM with these turns of the model, the sampler)."""
    sampler = Scripted(list(turns))
    config = replace(SMALL, max_tokens=max_tokens)
    (e,) = tool_use.sample_and_reward(sampler, [PROBLEM], task, config, "test", 1)
    assert len(e.token_ids) == len(e.mask) == len(e.log_probs) <= max_tokens
    return e, sampler


@pytest.fixture(scope="module")
def turns(task):
    end = "</think>\n<answer>(94-27)-39</answer><|endoftext|>"
    texts = ["\n94-27=67+39=106 yes", "94-27=67-39=28 yes", end]
    return [task.tokenizer.encode(text) for text in texts]


def test_the_mask_tells_whose_tokens_they_are(task, turns):
    e, _ = converse(task, *turns)
    no, newline = task.tokenizer.encode(" no\n")
    first, second, end = turns
    assert e.token_ids == first + [no, newline] + second + [newline] + end
    places = [place for place, written in enumerate(e.mask) if not written]
    assert places == [len(first), len(first) + 1, -len(end) - 1 + len(e.mask)]
    assert e.log_probs == [-0.5 * written for written in e.mask]
    assert (e.extra["turns"], e.extra["calls"], e.cut_off, e.answer_reward) == (3, 2, False, 1.0)


def test_what_the_model_wrote_is_never_encoded_again(task, turns):
    *line, yes = turns[1]
    digits = task.tokenizer.convert_tokens_to_ids(["2", "8"])
    drifting = line[:-1] + digits + [yes]  # 28 as two tokens: the same text
    assert task.tokenizer.encode(task.tokenizer.decode(drifting)) == turns[1]
    e, sampler = converse(task, drifting, turns[-1])
    assert e.token_ids[: len(drifting)] == drifting and e.answer_reward == 1
    assert sampler.contexts[1][:-1] == e.prompt_ids + drifting


def test_a_completion_is_cut_off_after_max_tokens_or_the_last_turn(task, turns, monkeypatch):
    e, _ = converse(task, *turns)
    whole = e.token_ids
    for room in range(9, len(whole)):
        e, _ = converse(task, *turns, max_tokens=room)
        assert e.token_ids == whole[:room] and e.cut_off
    monkeypatch.setattr(task.module, "TURNS", 2)
    e, sampler = converse(task, *turns)
    assert len(sampler.turns) == 1 and e.cut_off


def test_an_end_token_in_an_observation_is_text(task, turns, monkeypatch):
    monkeypatch.setattr(task.module, "tool", lambda text, problem: " no<|endoftext|>\n")
    e, sampler = converse(task, *turns)
    assert sampler.turns == [] and "yes no<|endoftext|>\n94" in e.completion


def test_a_process_s_tool_gets_the_problems_of_its_share(task, turns, monkeypatch):
    for module in (nano_r1, tool_use):
        monkeypatch.setattr(module, "RANK", 1)
        monkeypatch.setattr(module, "WORLD", 2)
    problems = [PROBLEM | {"target": 106}, PROBLEM]
    (e,) = tool_use.sample_and_reward(Scripted(list(turns)), problems, task, SMALL, "test", 1)
    assert e.completion.count(" no\n") == 1 and e.answer_reward == 1


# ---- The run


def test_sampler_and_trainer_agree_on_the_models_tokens_alone(tmp_path):
    _, row = runs.metrics(tool_use.main(replace(SMALL, name=f"{tmp_path}/run")))
    assert row["sampling/logp_difference_mean"] < 1e-4
    assert row["tool/calls"] > 0 and row["tool/model_tokens"] < 1


def test_the_command_refuses_a_task_without_a_tool_in_a_sentence(tmp_path):
    words = [sys.executable, tool_use.__file__, "--task", "countdown"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ended.stderr.endswith("--task countdown has no tool; try checker\n"), ended.stderr
