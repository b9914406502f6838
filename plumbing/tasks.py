"""What the task modules share: prompts, rewards, reading an answer block; and `Task`, what the loop calls.
A task is a module NAME_rewards.py; docs/own_task.md says what it defines and shows a complete one.
`load_task` imports it, and each breach of that contract becomes one sentence."""

import concurrent.futures
import importlib
import math
import os
import re
import sys
import traceback
from typing import NamedTuple

from plumbing.data import first_line, hold_out, load_rows, read_problems  # noqa: F401 (also for task modules)
from plumbing.settings import UserError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # where nano_r1.py and the task modules are

# ---- Prompts and rewards


class Prompt(NamedTuple):
    """A way to ask, and with it the form of the answer that the reward expects."""

    text: str  # the question, with the problem's columns as {placeholders}
    chat: bool = True  # as the user's turn in the model's chat template; False: the text alone, for base models
    opening: str = "<think>"  # the assistant's turn begins with it, written by us
    thinking: str = "think"  # the tag around the thinking; empty: free text before the answer
    stop: tuple = ()  # texts that end a completion; the completion keeps them
    weights: tuple = (1.0, 1.0)  # of format and answer in the total reward
    steps: bool = False  # countdown: the answer may be a list of steps, or an equation with `= target`


class Reward(NamedTuple):
    """What a completion earns: `answer` is 0 or 1, `total` the weighted sum of the parts; `why` is for people."""

    total: float
    format: float
    answer: float
    why: str


class Form(NamedTuple):
    """How a completion keeps the form: 0, 0.5 or 1, and what is wrong with it."""

    score: float
    fault: str = ""


def make_reward(prompt, form, answer, why):
    """A `Reward` from its parts, each with the prompt's weight.

    Args:
        form: a `Form`, or its score alone.
        answer: whether the answer is right; `why` says what is wrong with it.
    """
    form = form if isinstance(form, Form) else Form(form)
    total = prompt.weights[0] * form.score + prompt.weights[1] * answer
    verdict = "correct" if answer else why
    if form.fault and form.fault not in verdict:
        verdict = f"{verdict}; format: {form.fault}"
    return Reward(total, form.score, float(answer), verdict)


def render(prompt, problem, tokenizer):
    """The prompt's text filled in, in the model's chat template; without one it gets `User:` and `Assistant:`."""
    try:
        question = prompt.text.format(**problem)
    except (LookupError, ValueError) as error:
        fault = f"the prompt's text cannot be filled in ({type(error).__name__}: {error})"
        hint = f"the problem has {', '.join(problem)}, and a brace that is meant is written twice"
        raise ValueError(f"{fault}: {hint}") from None
    if not prompt.chat:
        return question + prompt.opening
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": question}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + prompt.opening
    return f"User: {question}\nAssistant: {prompt.opening}".rstrip()


def encode_prompt(text, tokenizer):
    """Token ids; a chat template has written the beginning-of-sequence token already, a plain prompt has not."""
    bos = getattr(tokenizer, "bos_token", None)
    return tokenizer.encode(text, add_special_tokens=bool(bos) and not text.startswith(bos))


# ---- Reading a completion

END_MARKERS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
END = re.compile(r"(?:\s|" + "|".join(re.escape(marker[::-1]) for marker in END_MARKERS) + ")*+")  # read backwards
MAX_ANSWER = 1_000  # characters; a longer answer block is not well-formed


def strip_end(text):
    """`text` without the end-of-sequence markers and white space around its end. Linear time."""
    return text[: len(text) - END.match(text[::-1]).end()]


def format_reward(text, prompt, well_formed):
    """The `Form` of a completion: thinking, then one answer block whose content is `well_formed`.

    With the tag `think` that is `thinking </think> <answer> ... </answer>`, without
    `... <answer> ... </answer>`. 0.5 if only the content is not well-formed, 0 for anything else.
    """
    try:
        answer = only_answer(text, prompt)
    except ValueError as error:
        return Form(0.0, str(error))
    if len(answer) > MAX_ANSWER or not well_formed(answer):
        return Form(0.5, "something else in the answer block")
    return Form(1.0)


def only_answer(text, prompt):
    """What the answer block of a completion in the right form holds, else ValueError."""
    if prompt.thinking:
        text = after_thinking(text, prompt)
        if not text.startswith("<answer>"):
            blocks = "text before the answer block" if "<answer>" in text else "no <answer>"
            raise ValueError(f"{blocks} after </{prompt.thinking}>")
    start = text.find("<answer>")
    if start < 0:
        raise ValueError("no <answer>")
    inside, closed, rest = text[start + len("<answer>") :].partition("</answer>")
    if not closed:
        raise ValueError("no </answer>")
    if "<answer>" in inside + rest:
        raise ValueError("two answer blocks")
    if rest:
        raise ValueError("text after </answer>")
    if prompt.thinking and re.search(f"</?{prompt.thinking}>", inside):
        raise ValueError(f"<{prompt.thinking}> in the answer block")
    return inside


def after_thinking(text, prompt):
    """What follows the closing tag of the thinking; ValueError if the thinking is not in form."""
    opening = f"<{prompt.thinking}>"
    closing = f"</{prompt.thinking}>"
    text = text.lstrip()
    if text.startswith(opening):  # some models repeat the tag that the prompt has already opened
        text = text[len(opening) :]
    elif opening not in prompt.opening:
        raise ValueError(f"no {opening} at the start")
    thinking, closed, rest = text.partition(closing)
    if not closed:
        raise ValueError(f"no {closing}")
    if opening in thinking:
        raise ValueError(f"a second {opening}")
    return rest.strip()


def last_answer(text, prompt):
    """What the last `<answer>` block after the thinking holds; ValueError if there is no such block."""
    # All of the text where the closing tag is missing: rfind is -1 there.
    conclusion = text[text.rfind(f"</{prompt.thinking}>") + 1 :] if prompt.thinking else text
    start = conclusion.rfind("<answer>", 0, max(0, conclusion.rfind("</answer>")))
    if start < 0:
        raise ValueError("no answer block after the thinking")
    return conclusion[start + len("<answer>") : conclusion.find("</answer>", start)]


# ---- The task of a run

REQUIRED = ("PROMPTS", "load_problems", "format_prompt", "reward")
SAMPLES = ("", "<answer>", "</think>\n<answer>1</answer>", "so \\boxed{1}")  # completions that every reward must take
MAX_PROMPT = 2048  # tokens; it bounds what vLLM has to have room for


def load_task(name, prompt, tokenizer):
    """The task NAME_rewards.py, bound to one of its prompts (by name) and to the model's tokenizer.

    Raises:
        UserError: no such task, it cannot be imported, it lacks a part, it has no such prompt.
    """
    module, file = import_task(name), f"{name}_rewards.py"
    missing = [part for part in REQUIRED if not hasattr(module, part)]
    if missing:
        raise UserError(f"{file} lacks {' and '.join(missing)}: docs/own_task.md says what a task defines.")
    prompts = module.PROMPTS
    if not (prompts and isinstance(prompts, dict) and all(isinstance(p, Prompt) for p in prompts.values())):
        raise UserError(f'{file}: PROMPTS must be a dict of prompts by name, e.g. {{"short": Prompt("{{question}}")}}.')
    if prompt not in prompts:
        raise UserError(f"--prompt {prompt} is not one of the task's prompts: {', '.join(prompts)}.")
    if isinstance(prompts[prompt].stop, str):
        raise UserError(f"{file}: `stop` of the prompt {prompt!r} must be a tuple of texts, not one text.")
    return Task(name, module, prompt, tokenizer)


def import_task(name):
    """The module NAME_rewards, from where nano_r1.py is, whatever the working directory, or from sys.path."""
    here = ", ".join(sorted(f.removesuffix("_rewards.py") for f in os.listdir(ROOT) if f.endswith("_rewards.py")))
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
            raise UserError(f"{file} needs the package {error.name}: see requirements.txt.") from None
        raise UserError(f"No task {name!r}: there is no {file}. Tasks here: {here}.") from None
    except Exception as error:
        raise UserError(f"{in_file(error, file)}: {type(error).__name__}: {first_line(error)}.") from error


def in_file(error, file):
    """`chess_rewards.py, line 12`: the last line of that file that the error has passed through."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if os.path.basename(f.filename) == file]
    if isinstance(error, SyntaxError) and os.path.basename(error.filename or "") == file:
        lines.append(error.lineno)
    return f"{file}, line {lines[-1]}" if lines else file


class Task:
    """A task module with one of its prompts and the model's tokenizer: what the loop and the evaluation call.

    Whatever a function of the module raises, or returns that it should not, becomes a UserError with its name and line.
    """

    def __init__(self, name, module, prompt, tokenizer):
        self.name, self.module, self.prompt, self.tokenizer = name, module, prompt, tokenizer
        self.file = f"{name}_rewards.py"
        self.stop_texts = tuple(module.PROMPTS[prompt].stop)

    def load_problems(self, split, source, seed):
        """Problems of the split "train", "test" or "all"; a ValueError of the module is a sentence for the user."""
        problems = self._call("load_problems", list, split, source, seed)
        if not problems or not all(isinstance(problem, dict) for problem in problems):
            raise UserError(f"{self.file}: load_problems({split!r}) must return a list of one dict or more.")
        return problems

    def prompt_text(self, problem):
        """The prompt as text, up to where the model goes on."""
        return self._call("format_prompt", str, problem, self.tokenizer, self.prompt)

    def prompt_ids(self, problem):
        """The prompt as token ids."""
        return encode_prompt(self.prompt_text(problem), self.tokenizer)

    def text(self, token_ids):
        """A completion as text, up to the end of its first stop text: the last token may hold more characters."""
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        ends = [text.find(stop) + len(stop) for stop in self.stop_texts if stop in text]
        return text[: min(ends)] if ends else text

    def reward(self, text, problem):
        """The `Reward` of one completion."""
        reward = self._call("reward", Reward, text, problem, self.prompt)
        numbers = all(isinstance(part, (int, float)) and math.isfinite(part) for part in reward[:3])
        if not numbers or reward.answer not in (0, 1):
            raise UserError(f"{self.file}: reward must give finite numbers and an answer of 0 or 1: {reward}.")
        return reward

    def rewards(self, texts, problems):
        """The `Reward` of each completion, in order; at once in as many threads as the module's REWARD_THREADS."""
        return self._map(self.reward, texts, problems)

    def lenient(self, text, problem):
        """1.0 if the right answer is there, whatever its form, else 0.0; a module without `lenient`: if it is paid."""
        if hasattr(self.module, "lenient"):
            return float(self._call("lenient", (int, float), text, problem))
        return self.reward(text, problem).answer

    def lenients(self, texts, problems):
        """`lenient` of each completion, in order; in threads as `rewards`."""
        return self._map(self.lenient, texts, problems)

    def final_answer(self, text, problem):
        """What a completion votes for in maj@k, or None; without `final_answer`: the text of its answer block."""
        if hasattr(self.module, "final_answer"):
            return self._call("final_answer", (str, type(None)), text, problem, self.prompt)
        try:
            return last_answer(strip_end(text), self.module.PROMPTS[self.prompt]).strip()
        except ValueError:
            return None

    def votes(self, texts, problem):
        """The votes of a problem's completions in maj@k: equal answers have equal votes, None abstains.

        With the module's `same_answer` a vote that is the same as an earlier one becomes that one.
        """
        votes, different = [], []
        for text in texts:
            vote = self.final_answer(text, problem)
            if vote is not None and hasattr(self.module, "same_answer"):
                vote = next((v for v in different if self._call("same_answer", bool, vote, v, problem)), vote)
                different += [vote] if vote not in different else []
            votes.append(vote)
        return votes

    def subgroups(self, problem):
        """The names of the subgroups under which evaluation reports the problem, too; without `subgroups`: none."""
        return self._call("subgroups", list, problem) if hasattr(self.module, "subgroups") else []

    def _call(self, function, kind, *args):
        try:
            result = getattr(self.module, function)(*args)
        except Exception as error:
            if function == "load_problems" and isinstance(error, ValueError):
                raise UserError(str(error)) from None
            fault = f"{function} raised {type(error).__name__}: {first_line(error)}"
            raise UserError(f"{in_file(error, self.file)}: {fault}.") from error
        if not isinstance(result, kind):
            kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise UserError(f"{self.file}: {function} must return {kinds}, not {type(result).__name__}.")
        return result

    def _map(self, function, texts, problems):
        threads = getattr(self.module, "REWARD_THREADS", 1)
        if threads == 1:
            return list(map(function, texts, problems))
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return list(pool.map(function, texts, problems))


def load_problems(task, data, eval_data, eval_problems, seed, train=True):
    """(training problems, at most `eval_problems` evaluation problems); one of each is tried on the whole contract.

    Args:
        data: None for the task's generator, "hub", or a file's path; without `eval_data` a part of it is held out.
        eval_data: None, or a file of which every row is an evaluation problem.
        train: False leaves the training problems out, as an empty list.
    Raises:
        UserError: one sentence: what is wrong with the file, its row, or the task.
    """
    training = task.load_problems("train", data, seed) if train else []
    test = task.load_problems("all", eval_data, seed) if eval_data else task.load_problems("test", data, seed)
    for problem in (*training[:1], test[0]):
        task.prompt_ids(problem)
        task.subgroups(problem)
        task.votes(SAMPLES, problem)
        for text in SAMPLES:
            task.reward(text, problem)
            task.lenient(text, problem)
    return training, test[:eval_problems]


def drop_long_prompts(problems, task, max_tokens, context=None):
    """(the problems whose prompt leaves room for a completion, tokens of the longest sequence that can occur).

    Args:
        max_tokens: of a completion.
        context: tokens that the model can hold; None: no limit but MAX_PROMPT.
    """
    room = MAX_PROMPT if context is None else min(context - max_tokens, MAX_PROMPT)

    def fits(problem):
        prompt = task.prompt_text(problem)
        # A token is at least a byte: most prompts need no tokenizing.
        return len(prompt.encode()) < room or len(encode_prompt(prompt, task.tokenizer)) <= room

    fitting = [problem for problem in problems if fits(problem)]
    if problems and not fitting:
        raise UserError(
            f"No prompt leaves room for --max_tokens {max_tokens} in the model's context of {context} tokens."
        )
    return fitting, room + max_tokens
