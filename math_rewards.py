r"""MATH: problems of competition mathematics; the answer is a number or an expression in LaTeX.

One problem, and one completion that earns the full reward of 2:

    {"problem": "What is the probability that two fair coins both show heads?", "answer": "\\frac{1}{4}"}

    Each coin shows heads with probability 1/2, so both do with probability 1/4 = 0.25. The answer is $\boxed{0.25}$.

The reward (0 to 2) is a sum of two parts, both about the last `\boxed{` of the completion:
    format 1.0  it is closed and holds something
           0.5  it is empty or never closed
           0.0  there is none
    answer 1.0  what it holds is equivalent to the problem's answer, else 0.0
So a completion falls into one of three categories: format and answer right (2), format only (1), neither (0 or 0.5).

Two texts are equivalent if they are equal but for spacing and such, or if Hugging Face's math-verify says so: it reads
both with a LaTeX grammar and lets sympy compare the values. It does so in a process of its own, for text from a model
can keep sympy busy for years (9^{9^{9^9}}) or fill the memory: an answer that needs more than a second of processor
time or a gibibyte, or is longer than 500 characters, counts as wrong, and the process is replaced. The training
process only waits, in any thread. What no verifier can see: an expression that merely repeats the question
(`\boxed{\binom{5}{2}}` for 10) is equivalent too.

Measured on 300 labelled pairs of answers: `equivalent` agrees on 293 (97.7%) if an answer is the last box or formula of
its text, and no wrong answer is accepted. The other 7: an answer spread over several boxes or formulas (4; math-verify,
shown the whole text, agrees), and numbers like 1000,99 and 1 000 (3). Of MATH-500, all 500 gold answers are equal to
themselves for math-verify, too, and all 500 reference solutions earn 2. 10,000 completions, 8 of each problem, 3,600
of them with an answer that is new and not the gold text, take 17 seconds with one worker on a busy machine.
"""

import atexit
import functools
import json
import logging
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time

from plumbing.data import read_problems, text_column
from plumbing.tasks import Prompt, make_reward, render

# ---- The problems

HUB_DATASET = "hiyouga/math12k"  # MATH's problems: 12,000 to train on, and the 500 of MATH-500 to test on
MAX_PROBLEM = 20_000  # characters
MAX_ANSWER = 500  # characters; the longest answer of MATH-500 has 53


def load_problems(split, source=None, seed=0):
    """Problems as dicts with `problem` and `answer` (str), and with `level` and `subject` where the source has them.

    source: "hub" for `hiyouga/math12k`, else a file's path. There is no generator of competition problems.
    What is wrong with a source is a ValueError, one sentence; `split` and `seed` are any task's (docs/own_task.md).
    """
    if source is None:
        raise ValueError("MATH has no built-in problems: use `--data hub` or `--data FILE`.")
    if not ask(r"$\frac{2}{4}$", "$0.5$")[0]:  # or every answer would silently be wrong
        hint = f"`pip install -r requirements.txt`; `python {__file__} </dev/null` shows what is missing"
        raise ValueError(f"math-verify does not work here: {hint}.")
    return read_problems(split, source, seed, ("problem", "answer"), _problem, {"path": HUB_DATASET})


def _problem(row):
    """The columns we keep of a row; ValueError if one is not what it should be."""
    problem = {name: row[name] for name in ("problem", "answer", "level", "subject") if row.get(name) is not None}
    answer = problem.get("answer")
    if type(answer) in (int, float) and math.isfinite(answer):  # csv and json may hold plain numbers
        problem["answer"] = str(answer)
    for name, longest in (("problem", MAX_PROBLEM), ("answer", MAX_ANSWER)):
        text_column({name: None, **problem}, name, longest)
    return problem


def subgroups(problem):
    """The names of the evaluation subgroups a problem belongs to: its level and its subject, where they are known."""
    level = re.search(r"[0-9]+", str(problem.get("level", "")))  # 5 or "Level 5"
    subject = re.sub(r"[^a-z0-9]+", "_", str(problem.get("subject", "")).lower()).strip("_")
    return ([f"level_{level[0]}"] if level else []) + ([subject] if subject else [])


# ---- The prompt

INSTRUCTIONS = (
    "Solve this math problem. Think step by step and explain each step before you answer. Conclude with the final "
    "answer in the form\n\nThe final answer is $\\boxed{{answer}}$.\n\nwhere the answer is nothing but the number or "
    "expression asked for (for a multiple choice question, the letter of your choice).\n\n"
)
PROMPTS = {
    # The question, and where to put the answer.
    "short": Prompt("{problem}\nPut the final answer in \\boxed{{}}.", opening="", thinking=""),
    # With instructions: for a model that follows them.
    "chat": Prompt(INSTRUCTIONS + "{problem}", opening="", thinking=""),
    # The same for a base model that knows no chat template: the form of the course's assignment.
    "plain": Prompt(INSTRUCTIONS + "Problem: {problem}\n\nSolution:", chat=False, opening="", thinking=""),
}


def format_prompt(problem, tokenizer, style="short"):
    """The prompt as text: the user's turn in the model's chat template, or the text alone."""
    return render(PROMPTS[style], problem, tokenizer)


# ---- The reward

BOXED = "\\boxed{"
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` and `\}` are passed over: they print a brace, no more
NOISE = re.compile(r"\\(?:[!,]|(?:left|right)(?![a-zA-Z]))|(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
LENIENT_TEXT = 2_000  # characters at the end of a completion in which `lenient` looks
ANSWER_IS = re.compile(r"\banswer(?: is:?|:)", re.IGNORECASE)
FORMULA = re.compile(r"\$+([^$]+)\$+")


def reward(completion, problem, style="short"):
    """Score one completion of `format_prompt(problem, tokenizer, style)`: a `Reward`. Never raises, never hangs."""
    boxed = last_boxed(completion)
    if boxed:
        form, (right, why) = 1.0, equivalent(boxed, problem["answer"])
    elif boxed == "":
        form, right, why = 0.5, False, "the last \\boxed{ is empty or never closed"
    else:
        form, right, why = 0.0, False, "no \\boxed{...}"
    return make_reward(PROMPTS[style], form, right, why)


def last_boxed(text):
    """What the last `\\boxed{...}` holds; "" if it is empty or never closed, None if there is none. Linear time."""
    start = text.rfind(BOXED) + len(BOXED)
    if start < len(BOXED):
        return None
    depth = 1
    for match in BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start : match.start()].strip()
    return ""


def normalize(text):
    """`text` without what changes the look and not the value: spacing, `\\left`, `\\right`, `$`, a final full stop."""
    text = " ".join(text.split()).strip(" $").removesuffix(".")
    return NOISE.sub("", text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))


def equivalent(answer, gold):
    """Whether what two boxes hold has the same value, and if not, why: (bool, str)."""
    answer, gold = normalize(answer), normalize(gold)
    if answer == gold:
        return True, "correct"
    if len(answer) > MAX_ANSWER:
        return False, f"answer longer than {MAX_ANSWER} characters"
    return compare(f"${answer}$", f"${gold}$")


def lenient(completion, problem):
    """1.0 if the right answer stands where it can be read, whatever the form, else 0.0.

    Looked at is the last box, else what follows the last "answer is" or "answer:", else the last formula between
    dollars, else the last line. Beside the strict reward it tells how much of a gain is format alone.
    """
    text = completion[-LENIENT_TEXT:]
    candidate = last_boxed(text)
    if not candidate:
        *before, conclusion = ANSWER_IS.split(re.sub(r"\\[()\[\]]", "$", text))
        lines = conclusion.strip(" *\n").splitlines() or [""]
        candidate = lines[0] if before else lines[-1]
        formulas = FORMULA.findall(conclusion)
        if formulas and ("$" in candidate or not before):
            candidate = formulas[0 if before else -1]
        elif compare(candidate[-MAX_ANSWER:], f"${normalize(problem['answer'])}$")[0]:  # the number in a sentence
            return 1.0
    return float(equivalent(candidate, problem["answer"])[0])


def final_answer(completion, problem, style="short"):
    """What this completion votes for in maj@k: the text in its last box, or None if there is none.

    Votes are compared as normalized text: `1/2` and `\\frac{1}{2}` are votes for two answers.
    """
    return normalize(last_boxed(completion) or "") or None


# ---- The processes that ask math-verify
#
# A thread that has a question takes a worker that is idle, or waits for one; the first questions start them. The time
# limit is the kernel's: it also ends a computation inside C code, which no Python signal handler or thread could stop.

WORKERS = 4  # at most, and no more than there are threads that ask
CPU_LIMIT = 1.0  # seconds of processor time for one question; ordinary ones take some milliseconds
WALL_LIMIT = 30.0  # seconds of waiting, for a worker that the machine does not let run
MEMORY_LIMIT = 1 << 30  # bytes


def empty_pool():
    """WORKERS places without a process yet. A forked child needs its own: two readers of a pipe mix up the replies."""
    global idle
    idle = queue.LifoQueue()  # last in, first out: one asking thread keeps to one worker
    for _ in range(WORKERS):
        idle.put(None)


def ask(answer, gold):
    """math-verify's verdict on two texts with formulas between dollars, and if they differ, why: (bool, str)."""
    worker = idle.get()
    try:
        for _ in range(2):  # a worker that something else has killed is replaced, once
            if worker is None:
                worker = subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__)], text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            start = time.monotonic()
            timer = threading.Timer(WALL_LIMIT, worker.kill)
            timer.start()
            try:
                worker.stdin.write(json.dumps([answer, gold]) + "\n")
                worker.stdin.flush()
                reply = worker.stdout.readline()
            except BrokenPipeError:
                reply = ""
            finally:
                timer.cancel()
            if reply:
                return (True, "correct") if json.loads(reply) else (False, f"{answer!r:.60} is not {gold!r:.60}")
            worker.kill()
            status, worker = worker.wait(), None
            if status == -signal.SIGPROF or time.monotonic() - start >= WALL_LIMIT:
                return False, f"{answer!r:.60} takes too long to compare"
        return False, f"math-verify died of {answer!r:.60}"
    except BaseException:  # Ctrl-C: the reply that is still to come must not answer the next question
        if worker:
            worker.kill()
        worker = None
        raise
    finally:
        idle.put(worker)


@functools.lru_cache(maxsize=20_000)  # most completions of a problem give one of a few answers
def compare(answer, gold):
    return ask(answer, gold)


def stop_workers():
    while not idle.empty():
        worker = idle.get_nowait()
        if worker:
            worker.kill()
            worker.wait()


def serve():
    """A worker: reads a line with [answer, gold] in JSON, writes `true` or `false`, until the parent is gone."""
    import resource

    from math_verify import parse, verify

    replies, sys.stdout = sys.stdout, sys.stderr
    logging.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # what the timer sends: it ends the process
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for line in sys.stdin:
        answer, gold = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT)
        # math-verify's own time limits need the main thread and do not stop C code.
        right = verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(bool(right)), file=replies, flush=True)
        try:
            bytes(MEMORY_LIMIT // 2)
        except MemoryError:  # sympy keeps much of what it has seen: a new worker begins with empty caches
            return


if __name__ == "__main__":
    serve()
else:
    empty_pool()
    atexit.register(stop_workers)
    os.register_at_fork(after_in_child=empty_pool)
