"""`plumbing.tasks`: how a task is loaded, what a task's author is told, and the task of docs/own_task.md."""

import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from plumbing import tasks
from plumbing.settings import UserError
from plumbing.tasks import Prompt, Reward, drop_long_prompts, encode_prompt, load_problems, load_task

HOUSE = Path(__file__).parents[1]
PAGE = (HOUSE / "docs" / "own_task.md").read_text()
COINS = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
COUNTDOWN = {"nums": [19, 36, 55, 7], "target": 65}


class Tokenizer:
    """One token per character; token 0 is special and has no text."""

    bos_token = None
    chat_template = None

    def encode(self, text, add_special_tokens):
        return [0] * add_special_tokens + [ord(character) for character in text]

    def decode(self, token_ids, skip_special_tokens):
        assert skip_special_tokens
        return "".join(chr(i) for i in token_ids if i)


TOKENIZER = Tokenizer()
GUESS = """
from plumbing.tasks import Prompt, Reward, render

PROMPTS = {"short": Prompt("Guess {number}.", stop=("!", "?")), "plain": Prompt("{number}", chat=False)}


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


@pytest.fixture
def write_task(tmp_path, monkeypatch):
    """Write a module `guess_rewards` and put its folder on Python's path; the names of other tasks work, too."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(text=GUESS, name="guess"):
        (tmp_path / f"{name}_rewards.py").write_text(text)
        written.append(f"{name}_rewards")

    yield write
    for name in written:
        sys.modules.pop(name, None)


def load(name="guess", prompt="short"):
    return load_task(name, prompt, TOKENIZER)


def sentence(call, *args, **kwargs):
    """The message of the UserError that the call raises: one sentence in one line."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and len(message) < 400
    return message


# Finding a task


def test_a_task_that_is_not_there_is_a_sentence_with_those_that_are():
    message = sentence(load, "chess")
    assert message == "No task 'chess': there is no chess_rewards.py. Tasks here: countdown, gsm8k, math."


@pytest.mark.parametrize("name", ["../countdown", "countdown_rewards.py", "plumbing.tasks", "/tmp/x", "", "a b"])
def test_a_path_is_not_the_name_of_a_task(name):
    assert sentence(load, name).startswith(f"--task takes the name of a task, not {name!r}. Tasks here: countdown")


@pytest.mark.parametrize("name", ["countdown", "gsm8k", "math"])
def test_the_tasks_of_this_repository_load(name):
    assert load(name).name == name


def test_a_task_is_found_whatever_the_working_directory(tmp_path):
    code = f"""
        import os, sys
        os.chdir({str(HOUSE)!r})
        sys.path.insert(0, "")  # as in a notebook that was started there and moved
        from plumbing.tasks import load_task
        os.chdir({str(tmp_path)!r})
        print(load_task("gsm8k", "short", None).name)
    """
    done = subprocess.run([sys.executable, "-I", "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout == "gsm8k\n", done.stderr


def test_a_module_that_is_imported_already_is_kept(monkeypatch):
    module = SimpleNamespace(PROMPTS={"short": Prompt("?")}, load_problems=1, format_prompt=1, reward=1)
    monkeypatch.setitem(sys.modules, "draft_rewards", module)
    assert load("draft").module is module


def test_a_task_that_needs_a_package_which_is_not_there_names_it(write_task):
    write_task("import a_package_that_is_not_there")
    assert sentence(load) == "guess_rewards.py needs the package a_package_that_is_not_there: see requirements.txt."


# What breaks the contract


def broken(write_task, old, new):
    """The sentence about the task in which one text is another, and the number of the line on which that one stands."""
    assert old in GUESS
    text = GUESS.replace(old, new)
    write_task(text)
    return sentence(lambda: load_problems(load(), None, None, 4, 0)), 1 + text[: text.index(new)].count("\n")


@pytest.mark.parametrize("old, new", [("def reward(", "def score("), ("def load_problems(", "def problems(")])
def test_a_function_that_is_missing_is_named(write_task, old, new):
    name = old.removeprefix("def ").removesuffix("(")
    expected = f"guess_rewards.py lacks {name}: docs/own_task.md says what a task defines."
    assert broken(write_task, old, new)[0] == expected


def test_a_syntax_error_is_named_with_its_line(write_task):
    message, line = broken(write_task, "    right = str", "    right == = str")
    assert message == f"guess_rewards.py, line {line}: SyntaxError: invalid syntax (guess_rewards.py, line {line})."


def test_an_import_that_fails_is_named_with_its_line(write_task):
    message, line = broken(write_task, "import Prompt", "import Prompts, Prompt")
    assert message.startswith(f"guess_rewards.py, line {line}: ImportError: cannot import name 'Prompts'")


@pytest.mark.parametrize("prompts", ['"?"', "{}", '{"short": "?"}', "[]"])
def test_prompts_that_are_no_dict_of_prompts_are_refused(write_task, prompts):
    message, _ = broken(write_task, "\n\n\ndef load_problems", f"\nPROMPTS = {prompts}\n\n\ndef load_problems")
    assert message.startswith("guess_rewards.py: PROMPTS must be a dict of prompts by name")


def test_an_unknown_prompt_is_refused_with_the_known_ones(write_task):
    write_task()
    assert sentence(load, "guess", "chat") == "--prompt chat is not one of the task's prompts: short, plain."


def test_a_single_stop_text_in_place_of_a_tuple_is_refused(write_task):
    assert "must be a tuple of texts" in broken(write_task, '("!", "?")', '"!"')[0]


def test_a_placeholder_that_no_column_fills_is_named_with_the_columns(write_task):
    message, _ = broken(write_task, "Guess {number}.", "Guess {nummer}.")
    assert "format_prompt raised ValueError: the prompt's text cannot be filled in (KeyError: 'nummer')" in message
    assert "the problem has number" in message and message.startswith("guess_rewards.py, line ")


def test_a_single_brace_in_a_prompt_is_a_sentence(write_task):
    assert "a brace that is meant is written twice" in broken(write_task, "Guess {number}.", "Guess \\\\boxed{}.")[0]


@pytest.mark.parametrize("result", ["None", "[{'role': 'user', 'content': '?'}]", "3"])
def test_a_prompt_that_is_no_text_is_refused(write_task, result):
    message, _ = broken(write_task, "return render(PROMPTS[style], problem, tokenizer)", f"return {result}")
    assert message.startswith("guess_rewards.py: format_prompt must return str, not ")


@pytest.mark.parametrize("result, kind", [("{'reward': 1.0}", "dict"), ("1.0", "float"), ("None", "NoneType")])
def test_a_reward_that_is_no_reward_is_refused(write_task, result, kind):
    message, _ = broken(write_task, 'Reward(float(right), 0.0, float(right), "a guess")', result)
    assert message == f"guess_rewards.py: reward must return Reward, not {kind}."


@pytest.mark.parametrize(
    "result", ["Reward(1.0, 0.0, 0.5, '')", "Reward(float('nan'), 0.0, 1.0, '')", "Reward('1', 0, 1, '')"]
)
def test_a_reward_with_half_an_answer_or_without_a_finite_total_is_refused(write_task, result):
    message, _ = broken(write_task, 'Reward(float(right), 0.0, float(right), "a guess")', result)
    assert "reward must give finite numbers and an answer of 0 or 1: Reward(" in message


def test_a_reward_that_raises_is_named_with_its_line(write_task):
    message, line = broken(write_task, "str(problem", "int(completion) == int(problem")
    assert message.startswith(f"guess_rewards.py, line {line}: reward raised ValueError: invalid literal for int()")


def test_a_function_that_takes_other_arguments_is_named(write_task):
    message, _ = broken(write_task, 'def reward(completion, problem, style="short")', "def reward(completion)")
    assert message.startswith("guess_rewards.py: reward raised TypeError: reward() takes 1 positional argument")


@pytest.mark.parametrize("result", ["[]", "[1, 2]", "None", "iter([{'number': 1}])"])
def test_problems_that_are_no_list_of_dicts_are_refused(write_task, result):
    message, _ = broken(write_task, '[{"number": number} for number in range(9 if split == "train" else 4)]', result)
    assert message.startswith("guess_rewards.py: load_problems")


@pytest.mark.parametrize(
    "definition, says",
    [
        ("subgroups = lambda problem: 'easy'", "subgroups must return list, not str"),
        ("lenient = lambda completion, problem: None", "lenient must return int or float, not NoneType"),
        ("final_answer = lambda completion, problem, style: 7", "final_answer must return str or NoneType, not int"),
        ("same_answer = lambda vote, other, problem: None", "same_answer must return bool, not NoneType"),
    ],
)
def test_an_optional_function_with_another_result_is_refused(write_task, definition, says):
    votes = "" if "final_answer" in definition else "final_answer = lambda completion, problem, style: completion\n"
    write_task(f"{GUESS}\n\n{votes}{definition}\n")
    assert sentence(lambda: load_problems(load(), None, None, 4, 0)) == f"guess_rewards.py: {says}."


# The task as the loop uses it


def test_the_prompt_is_the_style_s_as_text_and_as_token_ids(write_task):
    write_task()
    assert load().prompt_text({"number": 3}) == "User: Guess 3.\nAssistant: <think>"
    assert load(prompt="plain").prompt_ids({"number": 3}) == [ord(c) for c in "3<think>"]


def test_a_prompt_gets_the_token_of_its_beginning_once():
    tokenizer = Tokenizer()
    tokenizer.bos_token = "^"
    assert encode_prompt("ab", tokenizer) == [0, 97, 98] and encode_prompt("^ab", tokenizer) == [94, 97, 98]
    assert encode_prompt("ab", TOKENIZER) == [97, 98]


def test_a_completion_ends_with_its_first_stop_text_and_without_special_tokens(write_task):
    write_task()
    assert load().stop_texts == ("!", "?") and load(prompt="plain").stop_texts == ()
    tokens = [*map(ord, "is it 3? yes! no"), 0]
    assert load().text(tokens) == "is it 3?" and load(prompt="plain").text(tokens) == "is it 3? yes! no"


def test_rewards_are_those_of_one_completion_at_a_time_in_order(write_task):
    write_task()
    texts, problems = ["3", "4", "4"], [{"number": 3}, {"number": 3}, {"number": 4}]
    assert [reward.answer for reward in load().rewards(texts, problems)] == [1.0, 0.0, 1.0]
    assert load().rewards(texts, problems) == [load().reward(t, p) for t, p in zip(texts, problems)]


def test_rewards_wait_side_by_side_in_as_many_threads_as_the_module_says(write_task):
    slow = "    time.sleep(0.2 if completion == '3' else 0)\n    right = str"
    write_task("import time\n\nREWARD_THREADS = 8\n" + GUESS.replace("    right = str", slow))
    threads, start = threading.active_count(), time.monotonic()
    rewards = load().rewards([*["3"] * 8, "4"], [{"number": n} for n in [3] * 8 + [3]])
    assert [reward.answer for reward in rewards] == [1.0] * 8 + [0.0]
    assert time.monotonic() - start < 0.8 and threading.active_count() == threads


def test_a_reward_that_raises_in_a_thread_is_a_sentence(write_task):
    write_task("REWARD_THREADS = 2\n" + GUESS)
    assert "reward raised KeyError" in sentence(load().rewards, ["3"] * 3, [{"number": 3}, {}, {"number": 3}])


def test_a_task_without_optional_functions_gets_the_strict_answer_no_subgroups_and_the_block_as_vote(write_task):
    write_task()
    task, problem = load(), {"number": 3}
    assert task.lenient("it is 3", problem) == 1.0 and task.lenients(["4"], [problem]) == [0.0]
    assert task.subgroups(problem) == []
    assert task.votes(["<answer> 3 </answer>\n", "3"], problem) == ["3", None]


def test_the_optional_functions_of_a_module_are_used():
    task = load("countdown")
    assert task.subgroups(COUNTDOWN) == ["4_numbers", "plus_minus"]
    assert task.lenient("so 36-19-7+55 = 65", COUNTDOWN) == 1.0
    assert task.final_answer("</think><answer>36-19-7+55</answer>", COUNTDOWN) == "65"


def test_the_reward_follows_the_prompt_that_the_task_was_loaded_with():
    text = "<reasoning>yes</reasoning><answer>36-19-7+55</answer>"
    assert load("countdown", "reasoning").reward(text, COUNTDOWN) == Reward(3.0, 1.0, 1.0, "correct")
    assert load("countdown").reward(text, COUNTDOWN).format == 0.0


# The problems of a run


def test_the_problems_are_those_of_the_module_and_evaluation_takes_the_first(write_task):
    write_task()
    train, test = load_problems(load(), None, None, 3, 0)
    assert train == [{"number": n} for n in range(9)] and test == [{"number": n} for n in range(3)]


def test_an_evaluation_needs_no_training_problems(write_task):
    write_task()
    assert load_problems(load(), None, None, 3, 0, train=False)[0] == []


def test_an_evaluation_file_is_used_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**COUNTDOWN, "target": 60 + n}) + "\n" for n in range(5)))
    assert len(load_problems(load("countdown"), None, str(path), 512, 0)[1]) == 5


def test_what_is_wrong_with_a_source_is_said_in_the_module_s_own_sentence(write_task):
    write_task()
    assert sentence(load_problems, load(), "nowhere", None, 3, 0) == "No such data file: nowhere."


def test_prompts_that_leave_no_room_are_dropped_and_the_longest_sequence_is_known(write_task):
    write_task()
    task, problems = load(prompt="plain"), [{"number": 3}, {"number": "3" * 40}, {"number": 4}]
    assert drop_long_prompts(problems, task, 20, context=50) == ([{"number": 3}, {"number": 4}], 50)
    assert drop_long_prompts(problems, task, 20) == (problems, tasks.MAX_PROMPT + 20)
    assert drop_long_prompts(problems, task, 20, context=10**6) == (problems, tasks.MAX_PROMPT + 20)


def test_a_prompt_that_just_fits_is_kept(write_task):
    write_task()
    problem = {"number": "3" * 10}  # 17 characters with <think>
    assert drop_long_prompts([problem], load(prompt="plain"), 20, context=37)[0] == [problem]
    assert "No prompt leaves room" in sentence(drop_long_prompts, [problem], load(prompt="plain"), 20, context=36)


def test_without_problems_there_is_nothing_to_drop(write_task):
    write_task()
    assert drop_long_prompts([], load(), 20, context=50) == ([], 50)


# The task of docs/own_task.md


@pytest.fixture
def coins(write_task):
    write_task(COINS, "coins")
    return load("coins")


def test_the_page_s_task_has_at_most_sixty_lines():
    assert len(COINS.splitlines()) <= 60


def test_the_page_s_task_keeps_the_contract_and_holds_problems_out(coins):
    train, test = load_problems(coins, None, None, 512, 0)
    assert len(train) == 3050 and len(test) == 256 and not [problem for problem in test if problem in train]


def test_the_worked_example_of_the_page_earns_two(coins):
    problem, text = re.search(r"    (\{.*?\})\n\n(.*?</answer>)", COINS, re.DOTALL).groups()
    assert coins.reward(textwrap.dedent(text), json.loads(problem)) == (2.0, 1.0, 1.0, "correct")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("31+58=89</think><answer>89</answer>", (1.0, 1.0, 0.0, "'89', not 27")),
        ("</think><answer>many</answer>", (0.5, 0.5, 0.0, "'many', not 27")),
        ("<answer>27</answer>", (1.0, 0.0, 1.0, "correct")),
        ("it is 27", (0.0, 0.0, 0.0, "no answer block after the thinking")),
    ],
)
def test_the_page_s_task_pays_what_it_says(coins, text, expected):
    assert coins.reward(text, {"ava": 31, "ben": 58}) == expected


def test_the_page_s_task_reads_a_file(coins, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"ava": 1, "ben": "2"}\n{"ava": 3, "ben": 4.0}\n')
    train, test = load_problems(coins, str(path), None, 512, 0)
    assert sorted(problem["ava"] for problem in train + test) == [1, 3]


def test_the_page_names_every_part_of_the_contract():
    parts = set(tasks.REQUIRED) | {"subgroups", "lenient", "final_answer", "same_answer", "REWARD_THREADS"}
    assert parts <= set(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE))


def test_the_page_s_task_trains(write_task, tmp_path):
    write_task(COINS, "coins")
    sizes = "--steps 1 --prompts_per_step 2 --group_size 2 --max_tokens 40 --eval_problems 4".split()
    command = [sys.executable, "nano_r1.py", "--task", "coins", "--out", str(tmp_path), "--name", "a", *sizes]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert "coins: 3050 problems to train on, 4 to evaluate on" in done.stdout


# The size of what a reader is to copy


@pytest.mark.parametrize("name", ["countdown", "gsm8k", "math"])
def test_a_task_module_has_at_most_300_lines_and_needs_no_other_task(name):
    text = (HOUSE / f"{name}_rewards.py").read_text()
    assert len(text.splitlines()) <= 300
    assert not re.search(r"^\s*(from|import) (nano_|\w+_rewards)", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["tasks", "data", "arithmetic"])
def test_what_the_tasks_share_is_under_350_lines_and_imports_no_script(name):
    module = importlib.import_module(f"plumbing.{name}")
    text = Path(module.__file__).read_text()
    assert len(text.splitlines()) < 350 and len(module.__doc__.splitlines()) == 3
    assert not re.search(r"^\s*(from|import) (nano_|\w+_rewards)", text, re.MULTILINE)
