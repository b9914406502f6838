r"""MATH: problems of competition mathematics; the answer is a number or an expression in LaTeX.

One problem, and one completion that earns the full reward of 2:

    {"problem": "What is the probability that two fair coins both show heads?",
     "answer": "\\frac{1}{4}"}

    Each coin shows heads with probability 1/2, so both do with probability 1/4 = 0.25.
    The answer is $\boxed{0.25}$.

The reward (0 to 2) is a sum of two parts, both about the last `\boxed{` of the completion:
    format 1.0  it is closed and holds something
           0.5  it is empty or not closed within 100,000 characters
           0.0  there is none
    answer 1.0  what it holds is equivalent to the problem's answer, else 0.0
So a completion falls into one of three categories: format and answer right (2), format only (1),
neither (0 or 0.5).

Two texts are equivalent if they are equal but for spacing and such; if both are plain numbers of
the same value; or if plumbing/math_equality.py says so: it reads both in full, the formulas in
them with a LaTeX grammar, and sympy computes their values. An answer of which a part cannot be read
is wrong, never shortened. As text from a model can keep sympy busy for years (9^{9^{9^9}}) or fill
the memory, this happens in processes of its own (plumbing/math_workers.py): an answer that needs
more than 0.5 seconds of processor time or a gibibyte, or is longer than 500 characters, is wrong.
What no verifier can see: an expression that merely repeats the question (`\boxed{\binom{5}{2}}`
for 10) is equivalent too. How this agrees with other people's verdicts: docs/agreement.md.
"""

import functools
import math
import re

from plumbing.arithmetic import plain_number, same_number
from plumbing.data import read_problems, text_column
from plumbing.math_reading import normalize
from plumbing.math_workers import COMMAND, TOO_LONG, WORKERS, ask
from plumbing.tasks import Prompt, make_reward, render

# ---- The problems

HUB_DATASET = (
    "hiyouga/math12k"  # MATH's problems: 12,000 to train on, and the 500 of MATH-500 to test on
)
MAX_PROBLEM = 20_000  # characters
MAX_ANSWER = 500  # characters; the longest answer of MATH-500 has 53


def problem_key(problem):
    """What makes two problems the same: the question, whatever its spacing and case."""
    return " ".join(problem["problem"].lower().split())


def load_problems(split, source=None, seed=0):
    """Problems as dicts with `problem` and `answer` (str), and `level` and `subject` where known.

    Rows of the original data set (problem, level, type, solution) are read, too: the solution's
    last box is the answer. source: "hub" for `hiyouga/math12k`, else a file's path. There is no
    generator of competition problems. What is wrong with a source is a ValueError, one sentence;
    `split` and `seed` are any task's (docs/own_task.md).
    """
    if source is None:
        raise ValueError("MATH has no built-in problems: use `--data hub` or `--data FILE`.")
    if not ask(r"\sqrt{4}", "2")[0]:  # without it every answer would silently be wrong
        hint = f"`{' '.join(COMMAND)} </dev/null` shows what is missing"
        raise ValueError(f"sympy cannot read LaTeX: `pip install -r requirements.txt`; {hint}.")
    columns = ("problem", "answer|solution")
    hub = {"path": HUB_DATASET}
    return read_problems(split, source, seed, columns, _problem, hub, key=problem_key)


def _problem(row):
    """The columns we keep of a row; ValueError if no box could hold the answer."""
    problem = {
        "problem": row.get("problem"),
        "answer": _answer(row.get("answer"), row.get("solution")),
        "level": row.get("level"),
        "subject": row.get("subject") or row.get("type"),
    }
    text_column(problem, "problem", MAX_PROBLEM)
    answer = text_column(problem, "answer", MAX_ANSWER)
    if last_boxed(f"{BOXED}{answer}}}") != answer.strip():
        raise ValueError(f"expected balanced braces in the answer, got {answer!r:.80}")
    return {name: value for name, value in problem.items() if value is not None}


def _answer(answer, solution):
    """The answer as text: from 2, "2", ["2"], "\\boxed{2}", or the last box of a solution."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if type(answer) in (int, float) and math.isfinite(answer):
        return str(answer)
    if isinstance(answer, str) and answer.strip(" $.").startswith(BOXED):
        return last_boxed(answer)
    if isinstance(solution, list) and len(solution) == 1:
        solution = solution[0]
    if answer is not None or not isinstance(solution, str):
        return answer
    # Old solutions also have \fbox{2} and \boxed 2.
    solution = re.sub(r"\\boxed\s+([^\s{}$.]+)", r"\\boxed{\1}", solution.replace("\\fbox{", BOXED))
    answer = last_boxed(solution)
    if not answer:
        got = f"{solution[-60:]!r:.80}"
        raise ValueError(f"expected a solution with the answer in its last \\boxed{{}}, got {got}")
    return answer


def subgroups(problem):
    """The evaluation subgroups a problem belongs to: its level and its subject, where known."""
    names = []
    level = re.search(r"[0-9]+", str(problem.get("level", "")))  # 5 or "Level 5"
    if level:
        names.append(f"level_{level[0]}")
    subject = re.sub(r"[^a-z0-9]+", "_", str(problem.get("subject", "")).lower()).strip("_")
    if subject:
        names.append(subject)
    return names


# ---- The prompt

INSTRUCTIONS = (
    "Solve this math problem. Think step by step and explain each step before you answer. "
    "Conclude with the final answer in the form\n\n"
    "The final answer is $\\boxed{{answer}}$.\n\n"
    "where the answer is nothing but the number or expression asked for (for a multiple choice "
    "question, the letter of your choice).\n\n"
)
PROMPTS = {
    # The question, and where to put the answer.
    "short": Prompt("{problem}\nPut the final answer in \\boxed{{}}.", opening="", thinking=""),
    # With instructions: for a model that follows them.
    "chat": Prompt(INSTRUCTIONS + "{problem}", opening="", thinking=""),
    # The same for a base model that knows no chat template: the form of the course's assignment.
    "plain": Prompt(
        INSTRUCTIONS + "Problem: {problem}\n\nSolution:", chat=False, opening="", thinking=""
    ),
}


def format_prompt(problem, tokenizer, style="short"):
    """The prompt as text: the user's turn in the model's chat template, or the text alone."""
    return render(PROMPTS[style], problem, tokenizer)


# ---- The reward

BOXED = "\\boxed{"
MAX_BOX = 100_000  # characters in which a box must end, spaces included
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # `\{` and `\}` are passed over: they print a brace
REWARD_THREADS = WORKERS  # completions that are compared side by side
BOUNDED = True  # the workers have a limit of their own


def reward(completion, problem, style="short"):
    """The `Reward` of a completion of `format_prompt(problem, tokenizer, style)`. Never raises."""
    boxed = last_boxed(completion)
    if boxed is None:
        return make_reward(PROMPTS[style], 0.0, False, "no \\boxed{...}")
    if boxed == "":
        why = "the last \\boxed{ is empty or never closed"
        return make_reward(PROMPTS[style], 0.5, False, why)
    right, why = equivalent(boxed, problem["answer"])
    return make_reward(PROMPTS[style], 1.0, right, why)


def last_boxed(text):
    """What the last `\\boxed{...}` holds, "" if it is empty or not closed, None without one."""
    start = text.rfind(BOXED) + len(BOXED)
    if start < len(BOXED):
        return None
    depth = 1
    for match in BRACE.finditer(text, start, start + MAX_BOX):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start : match.start()].strip()
    return ""


def equivalent(answer, gold):
    """Whether what two boxes hold has the same value, and if not, why: (bool, str)."""
    answer = normalize(answer)
    gold = normalize(gold)
    if answer == gold:
        return True, "correct"
    if len(answer) > MAX_ANSWER:
        return False, f"answer longer than {MAX_ANSWER} characters"
    number = plain_number(answer)
    gold_number = plain_number(gold)
    if number and gold_number:  # most answers are: these need neither sympy nor another process
        right = same_number(number, gold_number)
        return right, "correct" if right else f"{answer!r:.60} is not {gold!r:.60}"
    return compare(answer, gold)


# Most completions of a problem give one of a few answers.
compare = functools.lru_cache(maxsize=20_000)(ask)
LENIENT_TEXT = 2_000  # characters at the end of a completion without a box in which `lenient` looks
ANSWER_IS = re.compile(r"\banswer(?: is:?|:)", re.IGNORECASE)
FORMULA = re.compile(r"\$+([^$]+)\$+")
NUMBER = re.compile(r"(?<![0-9.])-?[0-9](?:[0-9,./]*[0-9])?")


def lenient(completion, problem):
    """1.0 if the right answer stands where it can be read, whatever the form, else 0.0.

    The last box decides. Without one it is what follows the last "answer is" or "answer:" (its
    first formula between dollars, else its first line), else the last formula, else the last line;
    of a line all, or the number in it. Beside the strict reward it tells how much of a gain is
    format alone.
    """
    candidate = last_boxed(completion)
    if candidate:
        return float(equivalent(candidate, problem["answer"])[0])
    text = re.sub(r"\\[()\[\]]", "$", completion[-LENIENT_TEXT:])
    *before, conclusion = ANSWER_IS.split(text)
    which = 0 if before else -1
    lines = conclusion.strip(" *\n").splitlines() or [""]
    line = lines[which]
    formulas = FORMULA.findall(conclusion)
    if formulas and ("$" in line or not before):
        return float(equivalent(formulas[which], problem["answer"])[0])
    candidates = [line, *NUMBER.findall(line)[which:][:1]]
    return float(any(equivalent(text, problem["answer"])[0] for text in candidates))


def final_answer(completion, problem, style="short"):
    """What this completion votes for in maj@k: the text in its last box, or None."""
    return normalize(last_boxed(completion) or "") or None


def same_answer(vote, other, problem):
    """Whether two votes are one: 1/2 and 0.5 are. One that takes too long is none but itself."""
    if vote == other:
        return True
    for text in (vote, other):
        if equivalent(text, problem["answer"])[1].endswith(TOO_LONG):
            return False
    return equivalent(vote, other)[0]
