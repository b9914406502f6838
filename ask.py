"""Ask a model, or two side by side: eight attempts at a problem of yours, each with its verdict.

    python ask.py out/NAME                     # a run's base, and what it has become
    python ask.py models/nano-base             # one model: a directory, or an id of the hub
    python ask.py MODEL OTHER --prompt chat    # two

Type numbers and a target (`19 36 55 7 = 65`) or a word problem; Enter alone draws a held-out
problem of the task. What is written appears as it is sampled, from the distribution of training;
below it stands the verifier's sentence. In a notebook: ask.show("19 36 55 7 = 65", "out/NAME").
"""

import collections
import contextlib
import itertools
import os
import random
import re
import shutil
import sys
import textwrap
import time
from typing import Annotated, NamedTuple

import tyro

from plumbing.files import read_json
from plumbing.notebook import Attempt, attempts_table
from plumbing.settings import UserError
from plumbing.start import check_model, say
from plumbing.tasks import drop_long_prompts, import_task, load_task
from plumbing.waiting import waiting

EXAMPLE = "e.g. 19 36 55 7 = 65"
# Settings of a run that hold here, too.
DEFAULTS = {
    "task": "countdown",
    "prompt": "short",
    "max_tokens": 320,
    "temperature": 1.0,
    "dtype": "float32",
}
WORDS = {"gsm8k": "question", "math": "problem"}  # tasks of words, and the column that has them
PACE = 0.1  # seconds at least between two looks at an attempt that grows

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
    answer = str(answer).strip()
    if answer and task == "gsm8k" and not re.fullmatch(r"[-+]?[\d.,/ ]*\d", answer):
        raise UserError(f"The answer must be one number, not {answer!r:.40}.")
    known = {"answer": answer} if answer else {}
    return Question(task, {WORDS[task]: text} | known)


def read_numbers(text):
    """`19 36 55 7 = 65` -> {"nums": [19, 36, 55, 7], "target": 65}; the last one is the target."""
    plain = re.fullmatch(r"[\d\s,;:=>\[\]()-]*", text) and not re.search(r"-\s*\d", text)
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if not plain or not 3 <= len(numbers) <= 9 or max(numbers) > 99_999:
        limits = "two to eight whole numbers and then the target, none below 0 or above 99999"
        raise UserError(f"Type {limits}, {EXAMPLE}.")
    return {"nums": numbers[:-1], "target": numbers[-1]}


# ---- Who answers


def find_models(paths):
    """({name: directory or hub id}, settings): a run stands for its base and its trained model."""
    models = {}
    settings = {}
    for path in paths:
        run = read_settings(path)  # None: a model, which may lie in a run's directory
        saved = run or read_settings(os.path.dirname(os.path.normpath(path))) or {}
        settings = settings or {key: saved[key] for key in DEFAULTS if key in saved}
        if run and len(paths) == 1:
            models["base"] = run["model"]
        name = os.path.basename(os.path.normpath(path)) if run else path
        models[path if name in models else name] = os.path.join(path, "model") if run else path
    for path in models.values():
        check_model(path)
    return models, settings


def read_settings(directory):
    """The settings of the run in a directory; None if it is none."""
    saved = read_json(os.path.join(directory, "config.json"))
    return saved if isinstance(saved, dict) and {"task", "model"} <= set(saved) else None


class Speaker:
    """A model that writes one attempt after the other."""

    def __init__(self, path, settings):
        import torch
        import transformers

        import nano_r1 as r1  # torch takes seconds: after the command line is read

        transformers.utils.logging.disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.config = r1.Config(**settings, model=path)
        self.policy = r1.load_policy(self.config, None, device)
        self.tokenizer = r1.load_tokenizer(path)
        self.stop_ids = r1.stop_token_ids(self.policy, self.tokenizer)

    def write(self, question, seed, k, listen):
        """Attempt number k at a question; `listen` is called with what it is so far.

        Raises UserError if the prompt does not fit into the context.
        """
        import nano_r1 as r1
        from plumbing.models import context_length

        known = self.config.prompt in import_task(question.task).PROMPTS
        task = load_task(question.task, self.config.prompt if known else "short", self.tokenizer)
        context = context_length(self.config.model)
        drop_long_prompts([question.problem], task, self.config.max_tokens, context)
        ids = []
        heard = time.monotonic()

        def draw(logits, temperature, uniform):
            nonlocal heard
            token, log_prob = r1.sample_token(logits, temperature, uniform)
            ids.append(int(token))  # one prompt, one completion: one row
            if time.monotonic() - heard >= PACE:
                heard = time.monotonic()
                listen(Attempt(task.text(ids), None, ""))
            return token, log_prob

        sampler = r1.TransformersSampler(self.policy, task, self.stop_ids, draw, self.config)
        ((done,),) = sampler.generate(
            [task.prompt_ids(question.problem)],
            n=1,
            temperature=self.config.temperature,
            max_tokens=[self.config.max_tokens],
            seeds=[r1.derive_seed(seed, "ask", k)],  # the same for both models
        )
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
    attempts = {name: [] for name in speakers}
    for k in range(n):
        for group in attempts.values():
            group.append(Attempt("", None, ""))
        for name, speaker in speakers.items():

            def grown(attempt, group=attempts[name]):
                group[-1] = attempt
                changed(attempts)

            grown(speaker.write(question, seed, k, grown))
    return attempts


def shares(attempts):
    """How many attempts are right, in words; without verdicts the most frequent answer."""
    said = []
    for name, group in attempts.items():
        if group[0].right is None:
            answers = collections.Counter(attempt.why for attempt in group)
            ((what, count),) = answers.most_common(1)
        else:
            count = sum(attempt.right for attempt in group)
            what = f"right ({count / len(group):.0%})"
        said.append(f"{name}: {count} of {len(group)} {what}")
    return "   ".join(said)


# ---- On a terminal


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
    """Show n attempts of each model at a question on the terminal, until Ctrl-C."""
    height = 0  # lines on the terminal that may still change

    def changed(attempts):
        nonlocal height
        done = all(group[-1].why for group in attempts.values())
        if done or sys.stdout.isatty():  # elsewhere an attempt is printed when it is whole
            size = shutil.get_terminal_size()
            cells = [cell(name, len(group) - 1, group[-1]) for name, group in attempts.items()]
            lines = side_by_side(cells, min(size.columns, 120))
            lines = lines if done else lines[1 - size.lines :]
            again = f"\x1b[{height}F\x1b[J" if height else ""
            print(again + "\n".join(lines), flush=True)
            height = 0 if done else len(lines)

    problem = question.problem
    if question.task == "countdown" and len(problem["nums"]) <= 5:  # more take long
        if problem["target"] not in import_task("countdown").reachable(problem["nums"]):
            print("(No expression of whole numbers reaches that: nothing can be right.)")
    try:
        print(shares(take_attempts(speakers, question, n, seed, changed)), flush=True)
    except KeyboardInterrupt:  # enough of these attempts
        print()


def typed_question(config):
    """What the user types next. Raises EOFError at the end, UserError."""
    text = input(f"\nnumbers = target, or a word problem; Enter: one of {config.task}; q: end\n> ")
    if text.strip() in ("q", "quit", "exit"):
        raise EOFError
    if text.strip():
        words = config.task if config.task in WORDS else "gsm8k"
        question = read_question(text, task=words)
        if question.task == words:
            question = read_question(text, input("its answer, if you know it\n> "), words)
        return question
    task = load_task(config.task, config.prompt, None)
    question = Question(config.task, random.choice(task.load_problems("test", None, 0)))
    print(task.title(question.problem))
    return question


def converse(
    models: Annotated[tyro.conf.Positional[list[str]], tyro.conf.arg(metavar="MODEL [OTHER]")],
    task: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    attempts: int = 8,
    seed: int = 0,
):
    """Eight attempts at a problem of yours, each with its verdict; question after question.

    Args:
        models: a run, or one model or two: directories, ids of the hub
        task: whose held-out problems Enter draws; left out: the run's
        prompt: one of the task's prompts; left out: the run's, or short
        max_tokens: at which an attempt is cut off; left out: the run's, or 320
        temperature: left out: the run's, or 1
        attempts: at each problem
        seed: of the attempts, and of the problems that Enter draws
    """
    if not 1 <= len(models) <= 2 or attempts < 1:
        raise UserError(
            "Name one model or two, e.g. ask.py models/nano-base, and --attempts of 1 or more."
        )
    chosen = {"task": task, "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature}
    speakers = make_speakers(models, chosen)
    random.seed(seed)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            try:
                question = typed_question(speakers[next(iter(speakers))].config)
                ask_once(speakers, question, attempts, seed)
            except UserError as error:  # the next question
                print(error)


def main(argv=None):
    sys.stdout.reconfigure(errors="replace")  # a terminal that does not know a character
    try:
        tyro.cli(converse, prog="ask.py", args=argv, use_underscores=True)
    except (UserError, BrokenPipeError) as error:  # also `--help | head`
        return say(error)
    return 0


# ---- In a notebook


def show(text, models, answer="", n=8, seed=0, **settings):
    """The same in a notebook's cell: `models` is a run, a model, or a list of two."""
    from IPython.display import display

    models = [models] if isinstance(models, str | os.PathLike) else models
    question = read_question(text, answer)
    speakers = make_speakers([str(path) for path in models], settings)
    handle = display(attempts_table({}), display_id=True)
    changed = lambda attempts: handle.update(attempts_table(attempts))
    attempts = take_attempts(speakers, question, n, seed, changed)
    handle.update(attempts_table(attempts, shares(attempts)))


if __name__ == "__main__":
    sys.exit(main())
