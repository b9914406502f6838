"""How a task is loaded, what a task's author is told, files of problems, the page's example."""

import gzip
import json
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import datasets
import pytest

from plumbing import data
from plumbing.settings import UserError
from plumbing.tasks import (
    SPARE,
    Reward,
    drop_long_prompts,
    encode_prompt,
    load_problems,
    load_task,
)

HOUSE = Path(__file__).parents[1]
COUNTDOWN = {"nums": [19, 36, 55, 7], "target": 65}


class Tokenizer:
    """One token per character; token 0 is special and has no text."""

    bos_token = None
    chat_template = None

    def encode(self, text, add_special_tokens):
        return [0] * add_special_tokens + [ord(character) for character in text]

    def decode(self, token_ids, skip_special_tokens):
        return "".join(chr(i) for i in token_ids if i or not skip_special_tokens)


TOKENIZER = Tokenizer()
GUESS = """
from plumbing.tasks import Prompt, Reward, render

PROMPTS = {
    "short": Prompt("Guess {number}.", stop=("!", "?")),
    "plain": Prompt("{number}", chat=False),
}


def load_problems(split, source=None, seed=0):
    if source == "nowhere":
        raise ValueError("No such data file: nowhere.")
    return [{"number": number} for number in range(9 if split == "train" else 4)]


def format_prompt(problem, tokenizer, style="short"):
    return render(PROMPTS[style], problem, tokenizer)


def reward(completion, problem, style="short"):
    right = str(problem["number"]) in completion
    return Reward(float(right), 0.0, float(right), "a guess")
"""


def load(name, prompt="short"):
    return load_task(name, prompt, TOKENIZER)


@pytest.fixture
def guess(tmp_path, monkeypatch):
    """guess(...) -> the task GUESS, with a text in the place of another, from Python's path."""
    monkeypatch.syspath_prepend(tmp_path)

    def load_guess(old="", new="", prompt="short"):
        (tmp_path / "guess_rewards.py").write_text(GUESS.replace(old, new) if old else GUESS)
        monkeypatch.delitem(sys.modules, "guess_rewards", raising=False)
        return load("guess", prompt)

    return load_guess


def sentence(call, *args, **kwargs):
    """The message of the error that the call raises: one sentence in one line."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    return message


# Finding a task


@pytest.mark.parametrize(
    "name", ["chess", "../countdown", "countdown_rewards.py", "plumbing.tasks", "/tmp/x", "", "a b"]
)
def test_a_task_that_is_not_there_is_a_sentence_with_those_that_are(name):
    message = sentence(load, name)
    assert repr(name) in message and message.endswith("Tasks here: coins, countdown, gsm8k, math.")


def test_a_task_is_found_whatever_the_working_directory(tmp_path):
    code = f"""
        import os, sys
        os.chdir({str(HOUSE)!r})
        sys.path.insert(0, "")  # as in a notebook that was started there and moved
        from plumbing.tasks import load_task
        os.chdir({str(tmp_path)!r})
        print(load_task("gsm8k", "short", None).name)
    """
    command = [sys.executable, "-I", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "gsm8k\n", done.stderr


# What breaks the contract


LIST = '[{"number": number} for number in range(9 if split == "train" else 4)]'
RESULT = 'Reward(float(right), 0.0, float(right), "a guess")'
DEF = "\n\n\ndef load_p"  # a place for one definition more


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("def reward(", "def score(", "lacks reward"),
        ("def load_problems(", "def problems(", "lacks load_problems"),
        ("    right = str", "    right == = str", "SyntaxError"),
        ("import Prompt", "import Prompts, Prompt", "ImportError"),
        ("from plumbing.tasks", "from not_there", "needs the package not_there"),
        (DEF, f'\nPROMPTS = "?"{DEF}', "PROMPTS must be a dict"),
        (DEF, f'\nPROMPTS = {{"short": "?"}}{DEF}', "PROMPTS must be a dict"),
        (DEF, f"\nPROMPTS = {{}}{DEF}", "PROMPTS must be a dict"),
        ('"short": Prompt', '"long": Prompt', "--prompt short"),
        ('("!", "?")', '"!"', "`stop`"),
        ("Guess {number}.", "Guess {nummer}.", "nummer"),
        ("Guess {number}.", "Guess \\\\boxed{}.", "a brace that is meant is written twice"),
        (
            "return render(PROMPTS[style], problem, tokenizer)",
            "return 3",
            "format_prompt must return",
        ),
        (RESULT, "{'reward': 1.0}", "reward must return Reward, not dict"),
        (RESULT, "None", "reward must return Reward, not NoneType"),
        (RESULT, "Reward(1.0, 0.0, 0.5, '')", "an answer of 0 or 1"),
        (RESULT, "Reward(float('nan'), 0.0, 1.0, '')", "finite"),
        (RESULT, "Reward('1', 0, 1, '')", "finite"),
        ("str(problem", "int(completion) == int(problem", "reward raised ValueError"),
        (
            'reward(completion, problem, style="short")',
            "reward(completion)",
            "reward raised TypeError",
        ),
        (RESULT, "__import__('sys').exit(3)", "reward raised SystemExit"),
        (LIST, "[{'number': {1}}]", "what JSON can hold: Object of type set"),
        (LIST, "[]", "load_problems"),
        (LIST, "[1, 2]", "load_problems"),
        (LIST, "iter([{'number': 1}])", "load_problems must return list"),
        (DEF, f"\nsubgroups = lambda p: 'easy'{DEF}", "subgroups must return"),
        (DEF, f"\nlenient = lambda c, p: None{DEF}", "lenient must return"),
        (DEF, f"\nfinal_answer = lambda *_: 7{DEF}", "final_answer must return"),
        (
            DEF,
            f"\nfinal_answer = lambda c, *_: c\nsame_answer = lambda *_: None{DEF}",
            "same_answer must return bool",
        ),
    ],
)
def test_a_breach_of_the_contract_is_a_sentence_that_names_file_and_fault(guess, old, new, says):
    message = sentence(lambda: load_problems(guess(old, new), None, None, 4, 0))
    assert says in message and ("guess_rewards.py" in message or "--prompt" in message)
    if says in ("SyntaxError", "ImportError", "reward raised ValueError"):
        assert f"line {1 + GUESS[: GUESS.index(old)].count(chr(10))}" in message


FOREVER = 'while "forever" in completion:\n        __import__("time").sleep(1)\n    right = str'


def test_a_reward_that_hangs_stops_the_run_and_names_the_file_with_the_completion(guess, tmp_path):
    task = guess("right = str", FOREVER)
    task.seconds = 1
    task.directory = str(tmp_path)
    assert [r.total for r in task.rewards(["3", "4"], [{"number": 3}] * 2)] == [1.0, 0.0]
    message = sentence(task.rewards, ["3", "forever"], [{"number": 3}] * 2)
    path = tmp_path / "slow_completion.json"
    assert str(path) in message and "--reward_seconds 1" in message
    assert json.loads(path.read_text()) == {"problem": {"number": 3}, "completion": "forever"}


def test_numbers_of_numpy_are_numbers(guess):
    reward = guess("Reward(float(right)", "Reward(__import__('numpy').float32(right)").reward
    assert json.dumps(reward("3", {"number": 3})) == '[1.0, 0.0, 1.0, "a guess"]'


# The task as the loop uses it


def test_the_prompt_is_the_style_s_as_text_and_as_token_ids(guess):
    assert guess().prompt_text({"number": 3}) == "User: Guess 3.\nAssistant: <think>"
    assert guess(prompt="plain").prompt_ids({"number": 3}) == [ord(c) for c in "3<think>"]


def test_a_prompt_gets_the_token_of_its_beginning_once():
    begins = SimpleNamespace(bos_token="^", encode=TOKENIZER.encode)
    assert [encode_prompt(text, begins) for text in ("ab", "^ab")] == [[0, 97, 98], [94, 97, 98]]
    assert encode_prompt("ab", TOKENIZER) == [97, 98]


def test_a_completion_ends_with_its_first_stop_text_and_without_special_tokens(guess):
    tokens = [*map(ord, "is it 3? yes! no"), 0]
    assert guess().text(tokens) == "is it 3?"
    assert guess(prompt="plain").text(tokens) == "is it 3? yes! no"


def test_rewards_wait_side_by_side_in_as_many_threads_as_the_module_says_and_keep_their_order(
    guess,
):
    slow = "    time.sleep(0.2 if completion == '3' else 0)\n    right = str"
    task = guess("    right = str", f"    import time\n\n{slow}")
    task.module.REWARD_THREADS = 8
    start = time.monotonic()
    rewards = task.rewards([*["3"] * 8, "4"], [{"number": 3}] * 9)
    assert [reward.answer for reward in rewards] == [1.0] * 8 + [0.0]
    assert time.monotonic() - start < 0.8
    assert "reward raised KeyError" in sentence(task.rewards, ["3"] * 2, [{"number": 3}, {}])


def test_a_task_without_optional_functions_gets_the_strict_answer_and_the_block_as_vote(guess):
    task = guess()
    problem = {"number": 3}
    assert task.lenient("it is 3", problem) == 1.0
    assert task.rewards(["4"], [problem], task.lenient) == [0.0]
    assert task.subgroups(problem) == []
    assert task.votes(["<answer> 3 </answer>\n", "3"], problem) == ["3", None]


def test_the_optional_functions_of_a_module_are_used_and_the_prompt_it_was_loaded_with():
    task = load("countdown")
    assert task.subgroups(COUNTDOWN) == ["4_numbers", "plus_minus"]
    assert task.lenient("so 36-19-7+55 = 65", COUNTDOWN) == 1.0
    assert task.final_answer("</think><answer>36-19-7+55</answer>", COUNTDOWN) == "65"
    text = "<reasoning>yes</reasoning><answer>36-19-7+55</answer>"
    paid = load("countdown", "reasoning").reward(text, COUNTDOWN)
    assert paid == Reward(3.0, 1.0, 1.0, "correct")


def test_prompts_that_leave_no_room_are_dropped_and_the_longest_sequence_is_known(guess):
    task = guess(prompt="plain")
    long = {"number": "3" * 40}  # 47 characters with <think>
    problems = [{"number": 3}, long, {"number": 4}]
    kept = [{"number": 3}, {"number": 4}]
    assert drop_long_prompts(problems, task, 20, context=50) == (kept, 8 + SPARE + 20)
    for context in (None, 10**6):
        assert drop_long_prompts(problems, task, 20, context) == (problems, 47 + SPARE + 20)
    assert drop_long_prompts([long], task, 20, context=67) == ([long], 67)
    assert "--max_tokens 20" in sentence(drop_long_prompts, [long], task, 20, context=66)
    assert drop_long_prompts([], task, 20, context=50) == ([], SPARE + 20)


# The prompts of the tasks here

MATH = {"problem": "Find $x$ in $\\{1, 2\\}$ with $x^{2} = {4}$.", "answer": "2"}
GSM8K = {"question": "Is {answer} in {0} or {}?", "answer": "#### 2"}
EXAMPLES = {"countdown": COUNTDOWN, "gsm8k": GSM8K, "math": MATH}


def apply_chat_template(messages, tokenize, add_generation_prompt):
    assert [m["role"] for m in messages] == ["user"] and not tokenize and add_generation_prompt
    return f"[user]{messages[0]['content']}[assistant]"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_prompt_holds_the_problem_and_ends_with_what_it_opens(name):
    problem = EXAMPLES[name]
    needed = problem.get("question") or problem.get("problem") or "[19, 36, 55, 7]"
    template = SimpleNamespace(chat_template="...", apply_chat_template=apply_chat_template)
    for style, prompt in load(name).module.PROMPTS.items():
        for tokenizer in (TOKENIZER, SimpleNamespace(), template):
            text = load_task(name, style, tokenizer).prompt_text(problem)
            start = "[user]" if tokenizer is template else "User: "
            assert needed in text and text.endswith(prompt.opening)
            assert text.startswith(start) == prompt.chat


# Problems from files and from the hub

N = range(1, 41)
ROWS = {
    "countdown": [{"nums": [n, n + 1, 3 * n], "target": 10 + n} for n in N],
    "gsm8k": [{"question": f"How much is {n}+{n}?", "answer": f"{n}+{n}\n#### {2 * n}"} for n in N],
    "math": [
        {
            "problem": f"{n}/7?",
            "answer": f"\\frac{{{n}}}{{7}}",
            "level": n % 5,
            "subject": "Algebra",
        }
        for n in N
    ],
}


@pytest.fixture
def lookups(tmp_path, monkeypatch):
    """No network: a mock that refuses each host that somebody looks up."""
    refuse = mock.Mock(side_effect=OSError("no network"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return refuse


@pytest.fixture
def write(tmp_path, lookups):
    """Write rows to a file of the given name; returns its path."""

    def write_file(name, rows):
        path = tmp_path / name
        kind = name.lower().partition(".")[2]
        if "json" in kind:
            lines = "\n".join(map(json.dumps, rows))
            text = (lines if "jsonl" in kind else json.dumps(rows)).encode()
            path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
        elif kind == "arrow":
            datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
            next((tmp_path / "saved").glob("*.arrow")).rename(path)
        else:
            getattr(datasets.Dataset.from_list(rows), f"to_{kind}")(path)
        return str(path)

    return write_file


KINDS = ["jsonl", "json", "jsonl.gz", "json.gz", "JSONL"]


@pytest.mark.parametrize(
    "name, kind",
    [(name, kind) for name in ROWS for kind in (*KINDS, "parquet")]
    + [("countdown", "csv"), ("gsm8k", "csv"), ("math", "csv"), ("countdown", "arrow")],
)
def test_all_rows_of_a_file_are_loaded_in_order_and_nothing_is_looked_up(
    write, lookups, name, kind
):
    path = write(f"rows.{kind}", [{**row, "comment": "x"} for row in ROWS[name]])
    assert load(name).load_problems("all", path, 0) == ROWS[name]
    assert not lookups.called


@pytest.mark.parametrize("name", ROWS)
def test_a_file_is_split_by_the_seed_without_overlap_loss_or_a_second_reading(
    write, name, monkeypatch
):
    task = load(name)
    path = write("rows.jsonl", ROWS[name])
    train, test = (task.load_problems(split, path, 5) for split in ("train", "test"))
    assert (len(train), len(test)) == (36, 4)
    assert sorted(map(str, train + test)) == sorted(map(str, ROWS[name]))
    monkeypatch.setattr(data, "load_rows", None)
    assert test == task.load_problems("test", path, 5) != task.load_problems("test", path, 6)


@pytest.mark.parametrize(
    "name, same",
    [
        ("countdown", lambda row: {**row, "nums": row["nums"][::-1]}),
        ("gsm8k", lambda row: {**row, "question": row["question"].upper() + " "}),
        ("math", lambda row: {**row, "problem": " " + row["problem"], "answer": "7"}),
    ],
)
def test_what_is_held_out_is_not_trained_on_where_the_file_repeats_it(write, name, same):
    task = load(name)
    path = write("rows.jsonl", ROWS[name] + [same(row) for row in ROWS[name][:20]])
    key = task.module.problem_key
    for seed in range(3):
        train, test = (task.load_problems(split, path, seed) for split in ("train", "test"))
        assert {key(p) for p in train}.isdisjoint(map(key, test)) and len(train) + len(test) > 50


@pytest.mark.parametrize("split, asked", [("train", "train"), ("test", "test"), ("all", "test")])
@pytest.mark.parametrize("name, path", [("gsm8k", "openai/gsm8k"), ("math", "hiyouga/math12k")])
def test_the_hubs_own_splits_are_used_whole_and_in_order(
    lookups, monkeypatch, name, path, split, asked
):
    load_dataset = mock.Mock(return_value=datasets.Dataset.from_list(ROWS[name]))
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data.all_problems.cache_clear()
    assert load(name).load_problems(split, "hub", 0) == ROWS[name]
    assert load_dataset.call_args.kwargs.items() >= {"path": path, "split": asked}.items()


BIG = 10**25 + 1


@pytest.mark.parametrize(
    "name, row, problem",
    [
        ("countdown", {"nums": [1.0, 2.0], "target": "3"}, {"nums": [1, 2], "target": 3}),
        ("countdown", {"numbers": [1, 2], "target": BIG}, {"nums": [1, 2], "target": BIG}),
        *(
            ("countdown", {"nums": nums, "target": 37}, {"nums": [30, 100, 93], "target": 37})
            for nums in (
                "30,100,93",
                "[30 100 93]",
                "(30, 100, 93)",
                "30 100 93",
                '["30", "100.0", 93]',
            )
        ),
        ("gsm8k", {"question": "1+1?", "answer": 2}, {"question": "1+1?", "answer": "2"}),
        ("gsm8k", {"question": "1+1?", "answer": "2"}, {"question": "1+1?", "answer": "2"}),
        *(
            ("math", {"problem": "1+1?", "answer": answer}, {"problem": "1+1?", "answer": "2"})
            for answer in (2, "2", ["2"], [2], "\\boxed{2}", "$\\boxed{2}$.")
        ),
        *(
            ("math", {"problem": "1+1?", "solution": solution}, {"problem": "1+1?", "answer": "2"})
            for solution in (
                "\\boxed{1}, no, $\\boxed{2}$.",
                "So it is $\\boxed 2$.",
                "\\fbox{2}",
                ["\\boxed{2}"],
            )
        ),
        (
            "math",
            {
                "problem": "a?",
                "level": "Level 2",
                "type": "Algebra",
                "solution": "\\boxed{\\frac{1}{2}}",
            },
            {"problem": "a?", "answer": "\\frac{1}{2}", "level": "Level 2", "subject": "Algebra"},
        ),
        # verl's nested columns
        (
            "gsm8k",
            {
                "prompt": [{"role": "user", "content": "1+1? Think."}],
                "reward_model": {"style": "rule", "ground_truth": "2"},
                "extra_info": {"question": "1+1?", "split": "train"},
            },
            {"question": "1+1?", "answer": "2"},
        ),
        (
            "math",
            {
                "prompt": [{"role": "user", "content": "1+1?"}],
                "reward_model": {"ground_truth": "2"},
            },
            {"problem": "1+1?", "answer": "2"},
        ),
        (
            "countdown",
            {"prompt": "?", "reward_model": {"ground_truth": {"target": 3, "numbers": [1, 2]}}},
            {"nums": [1, 2], "target": 3},
        ),
    ],
)
def test_the_forms_in_which_others_write_a_row_are_read(write, name, row, problem):
    assert load(name).load_problems("all", write("rows.jsonl", [row]), 0) == [problem]


C = ROWS["countdown"][0]
G = ROWS["gsm8k"][0]
M = ROWS["math"][0]
LONG = "1" * 100_001


@pytest.mark.parametrize(
    "name, good, bad",
    [
        *(
            ("countdown", C, {**C, "nums": nums})
            for nums in ([1.5, 2], [], None, [1, None], [-1, 2])
        ),
        *(
            ("countdown", C, {**C, "nums": nums})
            for nums in ("[1, 2", "7", "{}", "[[1], 2]", '["a"]')
        ),
        *(
            ("countdown", C, {**C, "nums": nums})
            for nums in ([True, 2], "[1e999]", "", ",", list(range(400)))
        ),
        *(
            ("countdown", C, {**C, "target": target})
            for target in (3.5, None, True, "x", float("nan"))
        ),
        *(("gsm8k", G, {**G, "question": text}) for text in ("", " \n", None, 7, ["a"], LONG)),
        *(
            ("gsm8k", G, {**G, "answer": text})
            for text in (None, "many", "#### 3 or 4\n", "57\n####")
        ),
        *(("math", M, {**M, "problem": text}) for text in ("", None, LONG)),
        *(
            ("math", M, {**M, "answer": text})
            for text in ("  ", ["1", "2"], LONG, "2}", "}{", "\\boxed{}")
        ),
        *(
            ("math", M, {"problem": "b?", "solution": text})
            for text in ("It is 2.", "\\boxed{2", None)
        ),
    ],
)
def test_a_bad_row_is_named(write, name, good, bad):
    path = write("rows.jsonl", [good, bad, good])
    assert sentence(load(name).load_problems, "train", path, 0).startswith(
        f"{path}, row 2: expected "
    )


DEEP = b'{"nums": ' + b"[" * 100_000 + b"]" * 100_000 + b', "target": 1}\n'


@pytest.mark.parametrize(
    "file, content, says",
    [
        ("rows.txt", b"1", ".jsonl, .json, .csv, .parquet"),
        *((f"rows.{kind}", b"", "is empty") for kind in ("jsonl", "json", "csv", "parquet")),
        *(
            (f"rows.{kind}", b'{"nums": [1, 2', "could not be read")
            for kind in ("jsonl", "json", "parquet")
        ),
        ("rows.csv", b"nums,target\n", "has no rows"),
        ("rows.json", b"[]", "has no rows"),
        ("rows.jsonl.gz", gzip.compress(b"", mtime=0), "has no rows"),
        ("rows.jsonl.gz", b"no gzip", "could not be read"),
        ("rows.jsonl", b"[1, 2]\n", "could not be read"),
        ("rows.jsonl", b'{"nums": [1], "target": 1}\n\n{"nums": [1\n', "line 3"),
        ("rows.jsonl", b"{}\n" + DEEP, "line 2: too many brackets within brackets"),
        ("rows.jsonl", DEEP, "brackets within brackets"),
        ("rows.json", DEEP, "brackets within brackets"),
        ("rows.jsonl", b'{"nums": [1], "target": ' + b"9" * 5000 + b"}", "could not be read"),
        ("rows.jsonl", b'{"nums": "caf\xe9", "target": 1}\n', "could not be read"),
        ("rows.csv", b"nums,target\ncaf\xe9,2\n", "could not be read"),
        ("rows.jsonl", b'{"nums": [1], "result": 1}\n', "target missing"),
        ("rows.csv", b"nums,target\n[1 2],3\n", "at least 2 different problems"),
        ("rows.jsonl", b'{"nums": [1, 2], "target": 3}\n' * 3, "at least 2 different problems"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_sentence_with_its_name(tmp_path, file, content, says):
    (tmp_path / file).write_bytes(content)
    message = sentence(load("countdown").load_problems, "train", str(tmp_path / file), 0)
    assert file in message and says in message


def test_a_source_that_is_not_there_is_a_sentence(tmp_path, guess):
    for source in (str(tmp_path / "none.jsonl"), str(tmp_path)):
        assert source in sentence(load("countdown").load_problems, "train", source, 0)
    assert "--data hub" in sentence(load("math").load_problems, "train", None, 0)
    assert "is a directory" in sentence(load("countdown").load_problems, "train", str(tmp_path), 0)
    assert sentence(load_problems, guess(), "nowhere", None, 3, 0) == "No such data file: nowhere."


def test_evaluation_takes_the_first_problems_or_a_file_of_its_own_and_needs_no_training(
    write, guess
):
    train, test = load_problems(guess(), None, None, 3, 0)
    assert train == [{"number": n} for n in range(9)] and test == train[:3]
    assert load_problems(guess(), None, None, 3, 0, train=False) == ([], test)
    path = write("rows.jsonl", ROWS["countdown"][:5])
    test = load_problems(load("countdown"), None, path, 512, 0, train=False)[1]
    assert test == ROWS["countdown"][:5]


# coins_rewards.py, the task that docs/own_task.md shows


def test_coins_holds_problems_out_and_reads_a_file(write):
    coins = load("coins")
    train, test = load_problems(coins, None, None, 512, 0)
    assert not [problem for problem in test if problem in train]
    groups = lambda problems: {name for p in problems for name in coins.subgroups(p)}
    assert groups(test) - groups(train) == {"held_out"}
    path = write("rows.jsonl", [{"ava": 1, "ben": "2"}, {"ava": 3, "ben": 4.0, "cleo": 9}])
    rows = [{"ava": 1, "ben": 2}, {"ava": 3, "ben": 4, "cleo": 9}]
    assert coins.load_problems("all", path, 0) == rows
    parts = [coins.load_problems(split, path, 0) for split in ("train", "test")]
    assert sorted(sum(parts, []), key=len) == rows


@pytest.mark.parametrize(
    "more, text, parts, why",
    [
        ({}, "58-31=27</think><answer>27</answer>", (2.0, 1.0, 1.0), "correct"),
        ({}, "31+58=89</think><answer>89</answer>", (1.0, 1.0, 0.0), "'89', not 27"),
        ({}, "</think><answer>many</answer>", (0.5, 0.5, 0.0), "'many', not 27"),
        ({}, "<answer>27</answer>", (1.0, 0.0, 1.0), "correct; format: no </think>"),
        ({}, "it is 27", (0.0, 0.0, 0.0), "no answer block after the thinking"),
        ({"cleo": 40}, "</think><answer>13</answer>", (2.0, 1.0, 1.0), "correct"),
        ({"cleo": 40}, "</think><answer>27</answer>", (1.0, 1.0, 0.0), "'27', not 13"),
    ],
)
def test_coins_pays_what_it_says(more, text, parts, why):
    result = load("coins").reward(text, {"ava": 31, "ben": 58, **more})
    assert result[:3] == parts and result.why.startswith(why)
