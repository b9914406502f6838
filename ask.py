"""Ask a model, or two side by side: eight attempts at a problem of yours, each with its verdict.

    python ask.py out/NAME                     # a run's base, and what it has become
    python ask.py models/nano-base             # one model: a directory, or an id of the hub
    python ask.py MODEL OTHER --prompt chat    # two

Type numbers and a target (`19 36 55 7 = 65`) or a word problem; Enter alone draws a held-out
problem of the task. What is written appears as it is sampled, from the distribution of training;
below it stands the verifier's sentence. In a notebook: ask.show("19 36 55 7 = 65", "out/NAME").
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import sys
import textwrap
import time
from typing import NamedTuple

from plumbing.notebook import Attempt, attempts_table
from plumbing.settings import UserError
from plumbing.start import check_model, say
from plumbing.tasks import drop_long_prompts, load_task
from plumbing.waiting import waiting

EXAMPLE = "e.g. 19 36 55 7 = 65"
DEFAULTS = {"task": "countdown", "prompt": "short", "max_tokens": 320, "temperature": 1.0}
DEFAULTS["dtype"] = "float32"
WORDS = {"gsm8k": "question", "math": "problem"}  # tasks of words, and the column that has them

# ---- What is typed


class Question(NamedTuple):
    """A problem, and the task that it is of."""

    task: str
    problem: dict


def read_question(text, answer="", task="gsm8k"):
    """What was typed as a `Question`: numbers and a target, or a word problem with its answer.

    `task`: of word problems. One without an answer is a `Question` too: nothing can be verified
    then. Raises UserError, one sentence.
    """
    text = text.strip()
    if not re.search(r"[^\W\d_]", text):
        return Question("countdown", read_numbers(text))
    if len(text.split()) < 4:
        raise UserError(f"Type a word problem of a sentence or more, or numbers, {EXAMPLE}.")
    problem = {WORDS[task]: text}
    answer = str(answer).strip()
    if answer:
        problem["answer"] = answer
        if task == "gsm8k" and not re.fullmatch(r"[-+]?[\d.,/ ]*\d", answer):
            raise UserError(f"The answer must be one number, not {answer!r:.40}.")
    return Question(task, problem)


def read_numbers(text):
    """`19 36 55 7 = 65` -> {"nums": [19, 36, 55, 7], "target": 65}; the last one is the target."""
    if re.search(r"\d\s*\.\s*\d|-\s*\d", text) or re.search(r"[^\d\s,;:=>\[\]()-]", text):
        raise UserError(f"Numbers and target must be whole and not below 0, {EXAMPLE}.")
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if not 3 <= len(numbers) <= 9 or max(numbers) > 99_999:
        limits = "two to eight numbers and then the target, none above 99999"
        raise UserError(f"Type {limits}, {EXAMPLE}.")
    return {"nums": numbers[:-1], "target": numbers[-1]}


# ---- Who answers


def find_models(paths):
    """({name: directory or hub id}, settings): a run stands for its base and its trained model."""
    models = {}
    settings = {}
    for path in paths:
        run = path if os.path.exists(os.path.join(path, "config.json")) else None
        run = run if run and not is_weights(path) else None
        beside = run or os.path.dirname(os.path.normpath(path))
        saved = read_settings(beside) or {}
        settings = settings or {key: saved[key] for key in DEFAULTS if key in saved}
        if run and len(paths) == 1:
            models["base"] = saved.get("model", "")
        name = path if run is None else os.path.basename(os.path.normpath(path))
        models[path if name in models else name] = os.path.join(run, "model") if run else path
    for path in models.values():
        check_model(path)
    return models, settings


def is_weights(path):
    return any(name.endswith(".safetensors") for name in os.listdir(path))


def read_settings(directory):
    """The settings of the run in a directory; None if it is none."""
    try:
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            saved = json.load(file)
    except (OSError, ValueError):
        return None
    return saved if isinstance(saved, dict) and "task" in saved else None


class Speaker:
    """A model that writes one attempt after the other."""

    def __init__(self, path, settings):
        import torch
        import transformers

        import nano_r1 as r1  # torch takes seconds: after the command line is read
        from plumbing.models import load_model, load_tokenizer, stop_token_ids
        from plumbing.sampler import TransformersSampler

        self.config = r1.Config(**settings, model=path)
        waiting(f"loading {path}")
        transformers.utils.logging.disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = load_model(path, self.config.dtype).to(device)
        self.tokenizer = load_tokenizer(path)
        self.stop_ids = stop_token_ids(self.model, self.tokenizer)
        self.make_sampler = TransformersSampler
        self.draw = r1.sample_token

    def task(self, question):
        """The question's task; raises UserError if the prompt does not fit into the context."""
        from plumbing.models import context_length

        same = question.task == self.config.task
        module = load_task(question.task, "short", self.tokenizer).module
        prompt = self.config.prompt if same or self.config.prompt in module.PROMPTS else "short"
        task = load_task(question.task, prompt, self.tokenizer)
        context = context_length(self.config.model)
        drop_long_prompts([question.problem], task, self.config.max_tokens, context)
        return task

    def write(self, question, seed, listen):
        """One `Attempt`; `listen(text)` is called with what has been written so far."""
        task = self.task(question)
        ids = []

        def draw(logits, temperature, uniform):
            token, log_prob = self.draw(logits, temperature, uniform)
            ids.append(int(token))  # one prompt, one completion: one row
            listen(task.text(ids))
            return token, log_prob

        sampler = self.make_sampler(self.model, task, self.stop_ids, draw, self.config)
        limits = [self.config.max_tokens]
        prompts = [task.prompt_ids(question.problem)]
        ((done,),) = sampler.generate(prompts, 1, self.config.temperature, limits, [seed])
        return verified(task, question.problem, task.text(done.token_ids))


def verified(task, problem, text):
    """The `Attempt` that a text is. A word problem without an answer has no verdict."""
    if task.name in WORDS and "answer" not in problem:
        vote = task.final_answer(text, problem)
        return Attempt(text, None, "no answer" if vote is None else f"answers {vote}")
    reward = task.reward(text, problem)
    return Attempt(text, reward.answer == 1, reward.why)


def make_speakers(paths, chosen):
    """{name: Speaker}; `chosen` are settings, None where the run's own or the default holds."""
    models, settings = find_models(paths)
    settings = DEFAULTS | settings | {k: v for k, v in chosen.items() if v is not None}
    load_task(settings["task"], settings["prompt"], None)
    waiting("importing torch and transformers: some seconds")
    return {name: Speaker(path, settings) for name, path in models.items()}


def take_attempts(speakers, question, n, seed, changed):
    """{name: [Attempt]}, n of each; `changed` is called with them whenever one has grown."""
    from plumbing.processes import derive_seed

    attempts = {name: [] for name in speakers}
    for k in range(n):
        for name, speaker in speakers.items():
            attempts[name].append(Attempt("", None, ""))

            def listen(text, own=attempts[name]):
                own[-1] = Attempt(text, None, "")
                changed(attempts)

            # The same seed for both models: only the weights differ.
            attempts[name][-1] = speaker.write(question, derive_seed(seed, "ask", k), listen)
            changed(attempts)
    return attempts


def shares(attempts):
    """How many attempts are right, in words; without verdicts the most frequent answer."""
    said = []
    for name, group in attempts.items():
        right = [attempt.right for attempt in group]
        if None in right:
            answers = [attempt.why for attempt in group]
            best = max(set(answers), key=answers.count)
            said.append(f"{name}: {answers.count(best)} of {len(group)} {best}")
        else:
            said.append(
                f"{name}: {sum(right)} of {len(right)} right ({sum(right) / len(right):.0%})"
            )
    return "   ".join(said)


# ---- On a terminal


class Screen:
    """Columns of text that grow: redrawn in place on a terminal, elsewhere printed when whole."""

    def __init__(self, out=None):
        self.out = out or sys.stdout
        self.live = self.out.isatty()
        self.height = 0  # lines of what may still change
        self.drawn_at = 0.0

    def draw(self, cells, done=False):
        """`cells`: lists of lines, side by side. At most 20 times a second until `done`."""
        now = time.monotonic()
        if not done and (not self.live or now - self.drawn_at < 0.05):
            return
        self.drawn_at = now
        size = shutil.get_terminal_size()
        lines = side_by_side(cells, min(size.columns, 120))
        lines = lines if done else lines[1 - size.lines :]
        again = f"\x1b[{self.height}F\x1b[J" if self.height else ""
        print(again + "\n".join(lines), file=self.out, flush=True)
        self.height = 0 if done else len(lines)


def side_by_side(cells, width):
    """Lists of lines as columns of equal width, the words wrapped."""
    width = (width - 3 * (len(cells) - 1)) // len(cells)
    columns = []
    for cell in cells:
        # A model may write control characters: none of them may reach a terminal.
        lines = ["".join(c if c.isprintable() else "\ufffd" for c in line) for line in cell]
        wrapped = [textwrap.wrap(line, width) or [""] for line in lines]
        columns.append(list(itertools.chain(*wrapped)))
    rows = itertools.zip_longest(*columns, fillvalue="")
    return [" │ ".join(f"{part:{width}}" for part in row).rstrip() for row in rows]


def cell(name, k, attempt):
    """An attempt as lines: its number, its text, its verdict."""
    mark = {True: "✓ ", False: "✗ ", None: ""}[attempt.right]
    lines = attempt.text.strip().split("\n")
    return [f"── {name} {k + 1} ", *lines, *([f"{mark}{attempt.why}", ""] if attempt.why else [])]


def ask_once(speakers, question, n, seed):
    """Show n attempts of each model at a question on the terminal."""
    screen = Screen()

    def changed(attempts):
        k = len(next(iter(attempts.values()))) - 1
        started = {name: group for name, group in attempts.items() if len(group) > k}
        cells = [cell(name, k, group[k]) for name, group in started.items()]
        cells += [[""]] * (len(speakers) - len(cells))
        last = list(attempts.values())[-1]
        screen.draw(cells, done=len(last) > k and bool(last[k].why))

    nums = question.problem.get("nums", ())
    if question.task == "countdown" and len(nums) <= 5:  # more take long
        reachable = load_task("countdown", "short", None).module.reachable
        if question.problem["target"] not in reachable(nums):
            print("(No expression of whole numbers reaches that: nothing can be right.)")
    print(shares(take_attempts(speakers, question, n, seed, changed)), flush=True)


def typed_question(speakers, rng):
    """What the user types next; None at the end. Raises UserError."""
    config = next(iter(speakers.values())).config
    text = input(f"\nnumbers = target, or a word problem; Enter: one of {config.task}; q: end\n> ")
    if text.strip() in ("q", "quit", "exit"):
        return None
    if text.strip():
        words = config.task if config.task in WORDS else "gsm8k"
        question = read_question(text, task=words)
        if question.task == words:
            question = read_question(text, input("its answer, if you know it\n> "), words)
        return question
    task = load_task(config.task, config.prompt, None)
    question = Question(config.task, rng.choice(task.load_problems("test", None, 0)))
    print(task.title(question.problem))
    return question


def converse(speakers, n, seed):
    """Question after question, until the user ends it; a mistake is one sentence."""
    rng = random.Random(seed)
    while True:
        try:
            question = typed_question(speakers, rng)
        except (EOFError, KeyboardInterrupt):
            question = None
        except UserError as error:
            print(error)
            continue
        if question is None:
            return
        try:
            ask_once(speakers, question, n, seed)
        except UserError as error:
            print(error)
        except KeyboardInterrupt:  # enough of these attempts
            print()


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="ask.py", description="Eight attempts at a problem of yours, each with its verdict."
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="a run, a model's directory, ..."
    )
    parser.add_argument("--task", help="whose held-out problems Enter draws; left out: the run's")
    parser.add_argument("--prompt", help="one of the task's prompts; left out: the run's, or short")
    parser.add_argument(
        "--max_tokens", type=int, metavar="N", help="at which an attempt is cut off"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="left out: the run's, or 1")
    parser.add_argument("--attempts", type=int, default=8, metavar="N", help="left out: 8")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the attempts")
    args = parser.parse_args(argv)
    sys.stdout.reconfigure(errors="replace")  # a terminal that does not know a character
    try:
        if len(args.models) > 2 or args.attempts < 1:
            raise UserError("Name one model or two, and --attempts of 1 or more.")
        chosen = {name: getattr(args, name, None) for name in DEFAULTS}
        converse(make_speakers(args.models, chosen), args.attempts, args.seed)
    except UserError as error:
        return say(error)
    return 0


# ---- In a notebook


def show(text, models, answer="", n=8, seed=0, **settings):
    """The same in a notebook's cell: `models` is a run, a model, or a list of two."""
    from IPython.display import display

    models = [models] if isinstance(models, str | os.PathLike) else models
    question = read_question(text, answer)
    speakers = make_speakers([str(path) for path in models], dict.fromkeys(DEFAULTS) | settings)
    handle = display(attempts_table({}), display_id=True)
    drawn = [0.0]

    def changed(attempts):
        if time.monotonic() - drawn[0] > 0.3:  # a page is slower than a terminal
            drawn[0] = time.monotonic()
            handle.update(attempts_table(attempts))

    attempts = take_attempts(speakers, question, n, seed, changed)
    handle.update(attempts_table(attempts, shares(attempts)))


if __name__ == "__main__":
    sys.exit(main())
