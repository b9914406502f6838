"""A task module and `Task`, what the loop calls; what the task modules share.

A task is a module NAME_rewards.py; docs/own_task.md says what it defines and shows a complete one.
`load_task` imports it, and each breach of that contract becomes one sentence.
"""

import contextlib
import importlib
import json
import math
import multiprocessing
import os
import re
import sys
import traceback
from multiprocessing.pool import ThreadPool

from plumbing.data import first_line, with_bar
from plumbing.files import write_text
from plumbing.forms import (  # noqa: F401 (for tasks)
    MAX_ANSWER,
    Prompt,
    Reward,
    encode_prompt,
    format_reward,
    last_answer,
    make_reward,
    render,
    strip_end,
)
from plumbing.settings import ROOT, UserError
from plumbing.waiting import waiting

# ---- The task of a run

REQUIRED = ("PROMPTS", "load_problems", "format_prompt", "reward")
# Completions that every reward must take.
SAMPLES = ("", "<answer>", "</think>\n<answer>1</answer>", "so \\boxed{1}")
SPARE = 16  # tokens beside the text's: its beginning, what a normalization spells out
MAX_PROMPT = 2048  # tokens; it bounds what vLLM has to have room for


def load_task(name, prompt, tokenizer):
    """The task NAME_rewards.py, bound to one of its prompts (by name) and to the model's tokenizer.

    Raises:
        UserError: no such task, it cannot be imported, it lacks a part, it has no such prompt.
    """
    module = import_task(name)
    file = f"{name}_rewards.py"
    missing = [part for part in REQUIRED if not hasattr(module, part)]
    if missing:
        hint = "docs/own_task.md says what a task defines"
        raise UserError(f"{file} lacks {' and '.join(missing)}: {hint}.")
    prompts = module.PROMPTS
    if not isinstance(prompts, dict) or {type(each) for each in prompts.values()} != {Prompt}:
        example = '{"short": Prompt("{question}")}'
        raise UserError(f"{file}: PROMPTS must be a dict of prompts by name, e.g. {example}.")
    if prompt not in prompts:
        known = ", ".join(prompts)
        raise UserError(f"--prompt {prompt} is not one of the task's prompts: {known}.")
    if isinstance(prompts[prompt].stop, str):
        fault = "must be a tuple of texts, not one text"
        raise UserError(f"{file}: `stop` of the prompt {prompt!r} {fault}.")
    return Task(name, module, prompt, tokenizer)


def import_task(name):
    """The module NAME_rewards, from where nano_r1.py is or from sys.path."""
    files = sorted(file for file in os.listdir(ROOT) if file.endswith("_rewards.py"))
    here = ", ".join(file.removesuffix("_rewards.py") for file in files)
    if not re.fullmatch(r"\w+", name):
        raise UserError(f"--task takes the name of a task, not {name!r}. Tasks here: {here}.")
    if ROOT not in sys.path:
        sys.path.append(ROOT)
    importlib.invalidate_caches()  # a notebook may have written the file a moment ago
    file = f"{name}_rewards.py"
    try:
        return importlib.import_module(f"{name}_rewards")
    except ModuleNotFoundError as error:
        if error.name != f"{name}_rewards":  # the task is there, something that it imports is not
            needed = f"{file} needs the package {error.name}"
            raise UserError(f"{needed}: see requirements.txt.") from None
        raise UserError(f"No task {name!r}: there is no {file}. Tasks here: {here}.") from None
    except (Exception, SystemExit) as error:
        fault = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{in_file(error, file)}: {fault}.") from error


def in_file(error, file):
    """`chess_rewards.py, line 12`: the last line of that file that the error has passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.basename(frame.filename) == file]
    if isinstance(error, SyntaxError) and os.path.basename(error.filename or "") == file:
        lines.append(error.lineno)
    return f"{file}, line {lines[-1]}" if lines else file


def problem_title(module, problem):
    """A problem in one line: the module's `title`, else its question, else its columns."""
    if hasattr(module, "title"):
        with contextlib.suppress(Exception):  # a report is read long after a task has changed
            return str(module.title(problem))
    for column in ("question", "problem"):
        if isinstance(problem.get(column), str):
            return problem[column]
    parts = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in problem.items()]
    return ", ".join(parts) if len(problem) > 1 else str(next(iter(problem.values()), ""))


class Task:
    """A task module with one of its prompts and the model's tokenizer: what the loop calls.

    Whatever a function of the module raises, or returns that it should not, becomes a UserError
    with its name and line.
    """

    seconds = 0  # that the reward of a completion may take (0: any), unless the module is BOUNDED
    directory = None  # of the run, where a completion is kept that takes longer

    def __init__(self, name, module, prompt, tokenizer):
        self.name = name
        self.module = module
        self.prompt = prompt
        self.tokenizer = tokenizer
        self.file = f"{name}_rewards.py"
        self.stop_texts = tuple(module.PROMPTS[prompt].stop)

    def load_problems(self, split, source, seed):
        """Problems of the split "train", "test" or "all"."""
        problems = self._call("load_problems", list, split, source, seed)
        if not problems or not all(isinstance(problem, dict) for problem in problems):
            needed = "must return a list of one dict or more"
            raise UserError(f"{self.file}: load_problems({split!r}) {needed}.")
        try:
            json.dumps(problems)  # now, and not after the first step
        except (TypeError, ValueError) as error:
            needed = "problems must be what JSON can hold"
            raise UserError(f"{self.file}: {needed}: {first_line(error)}.") from None
        return problems

    def title(self, problem):
        """The problem in one line, for people."""
        return problem_title(self.module, problem)

    def prompt_text(self, problem):
        """The prompt as text, up to where the model goes on."""
        return self._call("format_prompt", str, problem, self.tokenizer, self.prompt)

    def prompt_ids(self, problem):
        """The prompt as token ids."""
        return encode_prompt(self.prompt_text(problem), self.tokenizer)

    def text(self, token_ids):
        """A completion as text, up to the end of its first stop text.

        The last token may hold more characters than that text.
        """
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        ends = [text.find(stop) + len(stop) for stop in self.stop_texts if stop in text]
        return text[: min(ends)] if ends else text

    def reward(self, text, problem):
        """The `Reward` of one completion."""
        reward = self._call("reward", Reward, text, problem, self.prompt)
        # Numbers of numpy or torch become Python's.
        parts = [part.item() if hasattr(part, "item") else part for part in reward[:3]]
        numbers = [isinstance(part, (int, float)) and math.isfinite(part) for part in parts]
        if not all(numbers) or parts[2] not in (0, 1):
            needed = "reward must give finite numbers and an answer of 0 or 1"
            raise UserError(f"{self.file}: {needed}: {reward}.")
        return Reward(*parts, reward.why)

    def lenient(self, text, problem):
        """1.0 if the right answer is there, whatever its form, else 0.0.

        A module without `lenient`: 1.0 if it is paid.
        """
        if hasattr(self.module, "lenient"):
            return float(self._call("lenient", int | float, text, problem))
        return self.reward(text, problem).answer

    def rewards(self, texts, problems, function=None):
        """The `Reward` of each completion, or `function` of it, in order.

        In the module's REWARD_THREADS threads; each completion may take `seconds`.
        """
        function = function or self.reward
        threads = getattr(self.module, "REWARD_THREADS", 1)
        seconds = 0 if getattr(self.module, "BOUNDED", False) else self.seconds
        if threads == 1 and not seconds:
            return list(map(function, texts, problems))
        results = []
        with ThreadPool(threads) as pool:  # of daemons: with what hangs the program can still end
            running = pool.imap(lambda case: function(*case), zip(texts, problems))
            for text, problem in zip(texts, problems):
                try:
                    results.append(running.next(seconds or None))
                except multiprocessing.TimeoutError:
                    raise self._too_slow(text, problem) from None
        return results

    def _too_slow(self, text, problem):
        """The UserError about a completion whose reward takes too long; a file has all of it."""
        fault = f"{self.file}: the reward takes longer than --reward_seconds {self.seconds}"
        if not self.directory:
            return UserError(f"{fault} for {text!r:.60}.")
        path = os.path.join(self.directory, "slow_completion.json")
        write_text(path, json.dumps({"problem": problem, "completion": text}, indent=2))
        return UserError(f"{fault}; the completion is in {path}.")

    def final_answer(self, text, problem):
        """What a completion votes for in maj@k, or None.

        A module without `final_answer`: the text of the answer block.
        """
        if hasattr(self.module, "final_answer"):
            return self._call("final_answer", str | None, text, problem, self.prompt)
        try:
            return last_answer(strip_end(text), self.module.PROMPTS[self.prompt]).strip()
        except ValueError:
            return None

    def votes(self, texts, problem):
        """The votes of a problem's completions in maj@k: equal answers have equal votes.

        None abstains. With the module's `same_answer` a vote that is the same as an earlier one
        becomes that one.
        """
        votes = []
        for text in texts:
            vote = self.final_answer(text, problem)
            if vote is not None and hasattr(self.module, "same_answer"):
                for other in dict.fromkeys(votes):  # each different one once
                    if other is not None and self._call("same_answer", bool, vote, other, problem):
                        vote = other
                        break
            votes.append(vote)
        return votes

    def subgroups(self, problem):
        """The names of the subgroups under which evaluation reports the problem, too."""
        return self._call("subgroups", list, problem) if hasattr(self.module, "subgroups") else []

    def _call(self, function, kind, *args):
        try:
            result = getattr(self.module, function)(*args)
        except (Exception, SystemExit) as error:
            if function == "load_problems" and isinstance(error, ValueError):
                raise UserError(str(error)) from None
            fault = f"{function} raised {type(error).__name__}: {first_line(error)}"
            raise UserError(f"{in_file(error, self.file)}: {fault}.") from error
        if not isinstance(result, kind):
            needed = getattr(kind, "__name__", kind)  # `str | None` has no name
            got = type(result).__name__
            raise UserError(f"{self.file}: {function} must return {needed}, not {got}.")
        return result


def load_problems(task, data, eval_data, eval_problems, seed, train=True):
    """(training problems, at most `eval_problems` evaluation problems).

    One of each is tried on the whole contract.

    Args:
        data: None for the task's generator, "hub", or a file's path; without `eval_data` a part of
            it is held out.
        eval_data: None, or a file of which every row is an evaluation problem.
        train: False leaves the training problems out, as an empty list.
    Raises:
        UserError: one sentence: what is wrong with the file, its row, or the task.
    """
    waiting(f"reading the problems of {task.name}")
    training = task.load_problems("train", data, seed) if train else []
    source = ("all", eval_data) if eval_data else ("test", data)
    test = task.load_problems(*source, seed)
    for problem in (*training[:1], test[0]):
        task.prompt_ids(problem)
        task.subgroups(problem)
        task.votes(SAMPLES, problem)
        for function in (task.reward, task.lenient):
            task.rewards(SAMPLES, [problem] * len(SAMPLES), function)
    return training, test[:eval_problems]


def drop_long_prompts(problems, task, max_tokens, context):
    """(the problems whose prompt leaves room for a completion, tokens of the longest sequence).

    Args:
        max_tokens: of a completion.
        context: tokens that the model can hold; None: no limit but MAX_PROMPT.
    """
    room = MAX_PROMPT if context is None else min(context - max_tokens, MAX_PROMPT)
    fitting = []
    longest = 0
    for problem in with_bar(problems, "prompts"):
        prompt = task.prompt_text(problem)
        size = len(prompt.encode())  # a token is at least a byte: most need no tokenizing
        if size < room or len(encode_prompt(prompt, task.tokenizer)) <= room:
            fitting.append(problem)
            longest = max(longest, size)
    if problems and not fitting:
        fault = f"No prompt leaves room for --max_tokens {max_tokens}"
        raise UserError(f"{fault} in the model's context of {context} tokens.")
    return fitting, min(room, longest + SPARE) + max_tokens
