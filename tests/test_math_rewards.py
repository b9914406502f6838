"""MATH: what a completion earns, which answers are equivalent, and the processes that decide it."""

import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from labelled import needs_data, real

import math_rewards
from math_rewards import (
    equivalent,
    final_answer,
    last_boxed,
    lenient,
    load_problems,
    reward,
    subgroups,
)
from plumbing import math_workers
from plumbing.tasks import load_task

PROBLEM = {"problem": "What is $1/4 + 1/4$?", "answer": "\\frac{1}{2}"}
SLOW = "9^{9^{9^9}}"
HOUSE = Path(math_rewards.__file__).parent


def box(answer):
    return f"Two quarters make a half. The final answer is $\\boxed{{{answer}}}$."


# What a completion earns


PAID = (2.0, 1.0, 1.0)  # total, format, answer
WRONG = (1.0, 1.0, 0.0)
OPEN = (0.5, 0.5, 0.0)
NOTHING = (0.0, 0.0, 0.0)
ROWS = [
    (box("\\frac{1}{2}"), PAID, "correct"),
    (box("0.5"), PAID, "correct"),
    (box("\\sqrt{1/4}"), PAID, "correct"),
    (box("2"), WRONG, "'2' is not '\\\\frac{1}{2}'"),
    (box("\\sqrt{2}"), WRONG, "is not '\\\\frac{1}{2}'"),
    (box("\\frac{1}{2} x 3"), WRONG, "not read in full"),
    (box("0" * 501), WRONG, "longer than 500 characters"),
    ("\\boxed{}", OPEN, "empty or never closed"),
    ("\\boxed{ \n }", OPEN, "empty or never closed"),
    ("\\boxed{1\\}", OPEN, "empty or never closed"),
    ("\\boxed{", OPEN, "empty or never closed"),
    ("", NOTHING, "no \\boxed{...}"),
    ("0.5", NOTHING, "no \\boxed{...}"),
    ("\\boxed", NOTHING, "no \\boxed{...}"),
    ("\\fbox{0.5}", NOTHING, "no \\boxed{...}"),
    (box("0.5") + "\n", PAID, "correct"),
    (box("0.5") + " I hope it is correct.<|im_end|>", PAID, "correct"),
    (box("0.5") + box("2"), WRONG, "'2' is not"),
    (box("2") + box("0.5"), PAID, "correct"),
    (box("0.5") + "\\boxed{", OPEN, "empty or never closed"),
]


@pytest.mark.parametrize("text, verdict, why", ROWS, ids=range(len(ROWS)))
@pytest.mark.parametrize("style", math_rewards.PROMPTS)
def test_what_a_completion_earns_and_why(text, verdict, why, style):
    result = reward(text, PROBLEM, style)
    assert result[:3] == verdict and why in result.why
    assert (result.why == "correct") == (result.total == 2.0)


@pytest.mark.parametrize(
    "text, content",
    [
        ("\\boxed{5}", "5"),
        ("\\boxed{ \\frac{1}{\\sqrt{2}} }.", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),
        ("\\boxed{1 \\\\{2}}", "1 \\\\{2}"),
        ("\\boxed{x = \\boxed{5}}", "5"),
        ("\\boxed{1} and \\boxed{2}", "2"),
        ("\\boxed{5", ""),
        ("\\boxed{}", ""),
        ("5", None),
    ],
)
def test_the_last_box_ends_at_its_own_brace(text, content):
    assert last_boxed(text) == content


# Which answers are equivalent

PAIRS = [
    ("\\frac{1}{2}", True, ["1/2", "\\dfrac12", "\\frac1{2}", "\\frac{2}{4}", "0.50", ".5"]),
    ("\\frac{1}{2}", True, ["\\tfrac12"]),
    ("-\\frac{1}{2}", True, ["\\frac{-1}{2}", "-0.5", "−1/2"]),
    ("2\\frac{1}{2}", True, ["2.5", "\\frac{5}{2}", "2 \\frac12"]),
    ("43500", True, ["43,500", "43{,}500", "43\\,500", "43,\\!500", "$43500$", "43500."]),
    ("43500", True, ["\\$43,500"]),
    ("111, \\! 111, \\! 111", True, ["111111111", "111,111,111"]),
    ("5", True, ["5\\text{ cm}", "5 cm", "5 apples", "x = 5", "x=\\ 5", "5 = x", "5\\text{ cm}^2"]),
    ("5", True, ["2+3=5"]),
    ("5\\text{ cm}^2", True, ["5", "5 square centimeters", "5\\mathrm{cm}^2"]),
    ("90^\\circ", True, ["90", "90^{\\circ}", "90°", "90\\text{ degrees}"]),
    ("10", True, ["10\\%", "\\binom52", "\\binom{5}{2}", "2(5)", "(2)(5)", "2\\cdot 5"]),
    ("5.3\\%", True, ["5.3", "0.053", "5.3 percent", "5.30\\%"]),
    ("2516_8", True, ["2516", "2516_{8}", "(2516)_8"]),
    ("1e-5", True, ["10^{-5}", "0.00001", "1\\times 10^{-5}"]),
    ("\\frac{1}{3}", True, ["0.333333", "\\frac{3}{9}"]),
    ("\\pi", True, ["3.14159265", "\\frac{2\\pi}{2}"]),
    ("\\frac12c", True, ["\\frac{c}{2}", "c/2", "0.5c"]),
    ("1-\\mathrm{e}", True, ["1-e", "-(e-1)"]),
    ("\\sqrt{8}", True, ["2\\sqrt{2}", "2\\sqrt2", "\\sqrt[3]{8}\\sqrt{2}"]),
    ("\\frac{1}{\\sqrt{3}}", True, ["\\frac{\\sqrt{3}}{3}"]),
    ("x^2 + 2x + 1", True, ["(x+1)^2", "(1+x)(x+1)", "y=(x+1)^2", "f(x) = (x+1)^2"]),
    ("F_{n-k-1} F_k+a", True, ["a+F_kF_{n-k-1}"]),
    ("24", True, ["\\Gamma(5)"]),
    ("\\frac{2}{3}", True, ["2:3"]),
    ("5:30", True, ["5:30", "05:30", "5 : 30"]),
    ("2i", True, ["\\sqrt{-4}", "(1+i)^2"]),
    ("\\frac{1}{2004!}", True, ["\\frac{1}{2003! \\cdot 2004}"]),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", True, ["( 3 , \\pi / 2 )", "(3,0.5\\pi)"]),
    ("1, 2", True, ["2, 1", "\\{1,2\\}", "2 \\text{ and } 1", "1 or 2", "x=1 \\text{ or } x=2"]),
    ("100, 200", True, ["200, 100"]),
    ("2000, 1000", True, ["1,000, 2,000"]),
    ("4,\\ 9", True, ["9,\\,4", "9,~4", "4,\\quad 9"]),
    ("(100, 200)", True, ["(100,200)", "(100,\\ 200)", "100, 200"]),
    ("1\\pm\\sqrt2", True, ["1+\\sqrt 2, 1-\\sqrt 2", "1-\\sqrt{2},\\ 1+\\sqrt{2}"]),
    ("E_{1},E_{2}", True, ["E_1, E_2"]),
    ("[1,2)", True, ["x\\in[1,2)", "1\\le x<2", "2>x\\ge 1", "[1,2.0)"]),
    ("(-\\infty,1)\\cup(2,\\infty)", True, ["(2,\\infty)\\cup(-\\infty,1)"]),
    ("x>3", True, ["3<x", "2x>6", "(3,\\infty)"]),
    ("y = 3x+5", True, ["3x+5", "3x-y=-5", "y-5=3x"]),
    ("\\text{Evelyn}", True, ["Evelyn", "\\textbf{evelyn}", "\\mbox{Evelyn}"]),
    ("\\text{B}", True, ["(B)", "B", "b", "\\text{(B)}"]),
    ("\\text{odd}", True, ["odd"]),
    ("p=5,q=2;p=7,q=2", True, ["(5,2),(7,2)"]),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", True, ["\\begin{pmatrix} 1 \\\\ \n 2 \\end{pmatrix}"]),
    (
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        True,
        ["\\left[\\begin{array}{c}1\\\\2\\end{array}\\right]"],
    ),
    (
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        True,
        ["\\frac12\\begin{bmatrix}2\\\\4\\end{bmatrix}"],
    ),
    ("250", True, ["250." + "0" * 496]),
    # What stands side by side is never a sum.
    ("148", False, ["145 3", "145 \\quad 3", "140\\ 8"]),
    ("6", False, ["1 2 3", "6(-1)^{n}, n\\geq0, n\\in\\mathbb{Z}", "(1)(2)(3)+1", "3(3)", "4(2)"]),
    ("12", False, ["1 2", "1\\,2"]),
    ("1 2", False, ["12", "3"]),
    # A part that is not read, or that says something else, is not dropped.
    ("2", False, ["2k, k \\in Z", "2\\ldots", "2'", "2 \\to 3", "2x=4", "2, 3", "2_3+0"]),
    ("5", False, ["-5", "\\neq 5", "\\geq 5", "5 \\text{ million}", "5 million", "5k"]),
    ("5", False, ["5\\text{ or }6"]),
    ("5", False, ["\\text{I think } 5", "5,\\ 6,\\ 7", "\\frac{1}{0}", "\\frac{", "$", "5t"]),
    ("5", False, ["f(5)", "5!"]),
    ("4t", False, ["4", "4c", "4s", "4T"]),
    ("1-\\mathrm{e}", False, ["1", "1-\\mathrm{f}"]),
    ("1-\\frac1{\\mathrm e}", False, ["1+\\frac1{\\mathrm e}", "1"]),
    ("5\\text{ cm}^2", False, ["5\\text{ cm}^3", "5\\text{ m}^2", "5\\text{ cm}"]),
    ("A", False, ["A^T", "A'", "a"]),
    ("1e-5", False, ["e-5", "1e-6"]),
    ("2516_8", False, ["2516_9", "2517_8"]),
    # Numbers are compared exactly, or relative to their size.
    ("\\frac{1}{2004!}", False, ["\\frac{1}{3004!}", "0"]),
    ("2^{-99}", False, ["2^{-98}", "0"]),
    ("0.0000002", False, ["0.0000001", "0"]),
    ("10^{60}", False, ["10^{60}+1", "10^{61}"]),
    ("\\frac{1}{3}", False, ["0.333", "0.3333", "0.333334"]),
    ("\\pi", False, ["3.14", "3.1416", "\\frac{22}{7}"]),
    ("0", False, ["\\frac{0}{0}", "10^{-40}"]),
    # Order, brackets and signs count.
    ("1234", False, ["12,34"]),
    ("32349", False, ["32, 349", "32 ,349"]),
    ("100, 200", False, ["100200", "100,\\,200,", "(200,100)"]),
    ("100200", False, ["100,\\,200"]),
    ("23", False, ["2\\,3"]),
    ("1,000, 2,000", False, ["0, 1, 2"]),
    ("4,\\ 9", False, ["4"]),
    ("3", False, ["3 or 4", "3,4", "1+\\sqrt 2,\\ 1-\\sqrt 2", "\\{3,3\\}"]),
    ("1,2,3", False, ["1,2", "1,2,2"]),
    ("(2,1)", False, ["(1,2)", "[2,1]", "\\{2,1\\}", "(2,1"]),
    ("[0,1]", False, ["[0,1)", "(0,1]", "0,1", "\\{0,1\\}"]),
    ("x < 1", False, ["x > 1", "x \\le 1", "-x<-1", "x<2"]),
    ("y = 3", False, ["x = 3", "y=4", "y=3, x=3"]),
    ("y^2", False, ["x^2", "Y^2", "y^3"]),
    ("|x|", False, ["x", "-x"]),
    ("\\gamma", False, ["\\Gamma", "0.577215665", "\\mathrm{\\Gamma}"]),
    ("\\frac{1}{6}", False, ["5:30", "1:2:3"]),
    ("5:30", False, ["6:30", "11:66", "1:6"]),
    ("\\text{even}", False, ["\\text{odd}", "even number"]),
    ("No", False, ["Yes", "on"]),
]


@pytest.mark.parametrize("gold, right, answers", PAIRS, ids=range(len(PAIRS)))
def test_which_answers_are_equivalent(gold, right, answers):
    verdicts = {answer: equivalent(answer, gold)[0] for answer in answers}
    assert verdicts == dict.fromkeys(answers, right)


def mutants(gold):
    """The answer with one sign, digit, exponent, letter or bracket changed."""
    yield "-" + gold
    other = {"-": "+", "+": "-", "(": "[", ")": "]", "[": "(", "]": ")"}
    for i, character in enumerate(gold):
        before = gold[:i]
        after = gold[i + 1 :]
        in_words = re.search(r"\\[a-zA-Z]*$|\\(?:text|mbox|begin|end|mathrm)\{[^}]*$", before)
        changed = [other[character]] if character in other else []
        if character.isdigit():
            changed = [str((int(character) + more) % 10) for more in (1, 7)]
        elif character.isalpha() and not in_words:
            changed = ["b" if character == "a" else "a", character.swapcase()]
        elif character in "()[]^":
            changed.append("")
        for new in changed:
            yield before + new + after


EQUAL_MUTANTS = {("0", "-0")}


@needs_data
def test_no_real_answer_is_paid_after_one_sign_digit_letter_or_bracket_is_changed():
    golds = sorted({row["answer"] for row in real("math500")})
    cases = [(text, gold) for gold in golds for text in mutants(gold)]
    with ThreadPoolExecutor(math_workers.WORKERS) as pool:
        rewards = list(pool.map(lambda case: reward(box(case[0]), {"answer": case[1]}), cases))
    paid = {(gold, text) for (text, gold), result in zip(cases, rewards) if result.answer}
    assert len(cases) > 2000 and paid == EQUAL_MUTANTS


@needs_data
def test_the_verdict_agrees_with_all_but_seven_labelled_pairs_and_pays_no_wrong_one():
    def content(text):
        return last_boxed(text) or [text, *math_rewards.FORMULA.findall(text)][-1]

    rows = real("math_equivalence")
    verdicts = [equivalent(content(r["pred"]), content(r["gold"]))[0] for r in rows]
    wrong = [r for r, verdict in zip(rows, verdicts) if verdict != r["equivalent"]]
    assert (len(rows), len(wrong)) == (300, 7)
    assert [r for r in wrong if not r["equivalent"]] == []


@needs_data
def test_every_reference_solution_earns_two_and_every_gold_answer_is_read():
    rows = real("math500")
    assert [r["answer"] for r in rows if last_boxed(r["solution"]) != r["answer"].strip()] == []
    assert [r["answer"] for r in rows if reward(r["solution"], r).total != 2.0] == []
    unread = [r["answer"] for r in rows if "read" in equivalent("\\sqrt{7}", r["answer"])[1]]
    assert unread == []


# Lenient reading and votes


@pytest.mark.parametrize(
    "text, found",
    [
        (box("0.5"), 1),
        (box("0.5") + " I hope it is correct." * 500, 1),
        ("It is a half, so the answer is 1/2.", 1),
        ("The answer is 0.5 litres\nand no more.", 1),
        ("The final answer is: $\\frac12$ because $x = 3$.", 1),
        ("**Answer:** $1/2$", 1),
        ("Answer:\n\\[\n\\frac{1}{2}\n\\]", 1),
        ("First $x = 3$, then $y = \\frac{2}{4}$. Done.", 1),
        ("So \\(y = 0.5\\).", 1),
        ("Adding up:\n1/2", 1),
        ("The answer is 3. No, the answer is 0.5", 1),
        ("", 0),
        ("3", 0),
        (box("3") + " The answer is 0.5", 0),
        ("The answer is 0.5. No, the answer is 3", 0),
        ("$0.5$ or $3$", 0),
        ("0.5\n3", 0),
    ],
)
def test_the_lenient_reading_takes_the_last_answer(text, found):
    assert lenient(text, PROBLEM) == found


@pytest.mark.parametrize(
    "answers, votes",
    [
        (
            ["1/2", "0.5", "3", "\\frac{1}{2}", "3.0", "x", ""],
            ["1/2", "1/2", "3", "1/2", "3", "x", None],
        ),
        (["3", SLOW, "2+1", SLOW, "4"], ["3", SLOW, "3", SLOW, "4"]),  # too slow: equal to itself
        ([" \\left( 3, \\dfrac{1}{2} \\right). ", "$"], ["(3,\\frac{1}{2})", None]),
    ],
)
def test_equivalent_answers_vote_together(answers, votes):
    assert load_task("math", "short", None).votes(map(box, answers), PROBLEM) == votes
    assert final_answer("\\boxed{", PROBLEM) is None


@pytest.mark.parametrize(
    "columns, names",
    [
        ({"level": 5, "subject": "Counting & Probability"}, ["level_5", "counting_probability"]),
        ({"level": "Level 1", "subject": "Geometry"}, ["level_1", "geometry"]),
        ({"level": "Level ?"}, []),
        ({}, []),
    ],
)
def test_subgroups_name_level_and_subject_where_they_are_known(columns, names):
    assert subgroups({**PROBLEM, **columns}) == names


@pytest.mark.parametrize(
    "answer",
    [
        SLOW,
        "10^{10^{10}}",
        "((9!)!)!",
        "\\binom{10^9}{10^8}",
        "(x+y+z+w)^{300}",
        "\\sum_{k=1}^{10^9} k^k",
        "\\sqrt{" * 5000 + "2" + "}" * 5000,
        "\\sqrt{" * 60 + "2" + "}" * 60,
        "(" * 240 + "2" + ")" * 240,
    ],
)
def test_an_answer_that_would_take_years_is_wrong_within_seconds(answer):
    start = time.monotonic()
    assert reward(f"\\boxed{{{answer}}}", PROBLEM)[:3] == (1.0, 1.0, 0.0)
    assert time.monotonic() - start < 10  # on a machine with other work


# The workers


def idle():
    """The pids of the idle workers, the last one used first."""
    return [worker.pid for worker in reversed(math_workers.idle.queue) if worker]


def right_and_wrong():
    """Two verdicts that only a worker can give; all others are forgotten."""
    math_rewards.compare.cache_clear()
    return tuple(reward(box(text), PROBLEM).answer for text in ("\\sqrt{0.25}", "\\sqrt{0.5}"))


def test_plain_numbers_need_no_worker(monkeypatch):
    monkeypatch.setattr(math_rewards, "compare", None)
    assert [reward(box(text), PROBLEM).answer for text in ("0.5", "1/2", "3")] == [1, 1, 0]


def test_the_limits_hold_the_verdict_is_remembered_and_the_worker_goes_on():
    right_and_wrong()
    before = idle()
    for tower in (SLOW, "8^{9^{9^9}}", SLOW):
        assert reward(box(tower), PROBLEM).why == f"'{tower}' takes too long to compare"
    assert math_rewards.compare.cache_info().hits == 1
    assert right_and_wrong() == (1.0, 0.0) and idle() == before
    if sys.platform == "linux":
        limits = resource.prlimit(before[0], resource.RLIMIT_AS)
        assert limits == (math_workers.MEMORY_LIMIT, math_workers.MEMORY_LIMIT)


def test_a_worker_that_never_gets_to_run_counts_as_too_slow(monkeypatch):
    right_and_wrong()
    os.killpg(idle()[0], signal.SIGSTOP)
    monkeypatch.setattr(math_workers, "WALL_LIMIT", 0.2)
    assert reward(box("\\sqrt{0.75}"), PROBLEM).why.endswith("takes too long to compare")
    monkeypatch.undo()
    assert right_and_wrong() == (1.0, 0.0)


@pytest.mark.parametrize("who", ["both", "the worker", "its child"])
def test_a_worker_killed_from_outside_is_replaced_and_changes_no_verdict(who):
    right_and_wrong()
    worker = idle()[0]
    child = int(Path(f"/proc/{worker}/task/{worker}/children").read_text())
    for pid in {"both": (worker, child), "the worker": (worker,), "its child": (child,)}[who]:
        os.kill(pid, signal.SIGKILL)
    assert [right_and_wrong() for _ in range(3)] == [(1.0, 0.0)] * 3
    assert ends(worker) and (who == "the worker" or ends(child))
    math_workers.stop_workers()  # a child whose worker is dead goes on answering till then
    math_workers.empty_pool()


def test_an_interrupted_question_does_not_answer_the_next_one():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start without
    right_and_wrong()
    main = threading.main_thread().ident
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        reward(f"\\boxed{{{SLOW}}}", PROBLEM)
    assert right_and_wrong() == (1.0, 0.0)


def test_several_threads_get_their_own_verdicts_and_one_keeps_to_one_worker():
    answers = [box(f"{n}\\sqrt{{4}}") for n in range(80)] + [box(SLOW)]
    problems = [{"answer": str(2 * n + n % 2)} for n in range(81)]
    expected = [1.0, 0.0] * 40 + [0.0]
    right_and_wrong()
    before = idle()
    assert [result.answer for result in map(reward, answers, problems)] == expected
    assert idle() == before
    math_rewards.compare.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert [result.answer for result in threads.map(reward, answers, problems)] == expected
    assert 1 <= len(idle()) <= math_workers.WORKERS <= 4


def test_a_forked_child_has_workers_of_its_own():
    right_and_wrong()
    with multiprocessing.get_context("fork").Pool(1) as child:
        assert child.apply_async(right_and_wrong).get(30) == (1.0, 0.0)
        theirs = child.apply_async(idle).get(30)
    assert len(theirs) == 1 and theirs[0] not in idle()
    assert right_and_wrong() == (1.0, 0.0)


SCRIPT = """
    import os, sys, threading, time
    sys.path.insert(0, {house!r})
    import math_rewards
    from plumbing import math_workers
    for text in ("\\\\sqrt{{4}}", "\\\\frac{{x}}", "9^{{9^{{9^9}}}}", "4/2"):
        print(math_rewards.reward(f"\\\\boxed{{{{{{text}}}}}}", {{"answer": "2"}}).answer)
    print(*[worker.pid for worker in math_workers.idle.queue if worker], flush=True)
    {last}
"""
IN_FLIGHT = (
    f"threading.Thread(target=math_workers.ask, args=('{SLOW}', '1'), daemon=True).start(); "
    "time.sleep(0.2)"
)


def ends(pid):
    """True once no process has this pid (or only its unread exit status is left)."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    "last, status",
    [("", 0), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9), (IN_FLIGHT, 0)],
    ids=["by itself", "at once", "killed", "with a question in flight"],
)
def test_a_script_runs_once_and_no_worker_outlives_it_however_it_ends(tmp_path, last, status):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).format(house=str(HOUSE), last=last))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    *lines, pid = done.stdout.splitlines()
    assert lines == ["1.0", "0.0", "0.0", "1.0"]
    assert (done.stderr, done.returncode) == ("", status) and ends(int(pid))


# Speed


def processor_time_of_children():
    """Of those that have ended: workers are asked to, as a killed one would not count its child."""
    for worker in filter(None, math_workers.idle.queue):
        worker.stdin.close()
        worker.wait()
    math_workers.empty_pool()
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def test_slow_answers_cost_their_limit_and_little_more_and_the_others_milliseconds():
    """As processor time, since other work on the machine must not decide the test."""
    cases = [f"\\frac{{{n}\\sqrt{{3}}}}{{7}}" for n in range(200)]
    slow = [f"{n}^{{9^{{9^9}}}}" for n in (5, 6, 7)]
    task = load_task("math", "short", None)
    seconds = []
    for texts in (cases[:1], cases, slow):
        start = processor_time_of_children() + time.process_time()
        rewards = [task.reward(box(text), PROBLEM) for text in texts]
        seconds.append(processor_time_of_children() + time.process_time() - start)
    assert all("too long" in result.why for result in rewards)
    assert seconds[1] - seconds[0] < 200 * 0.008
    assert seconds[2] - seconds[0] < len(slow) * (math_workers.CPU_LIMIT + 0.3)


def test_without_a_working_sympy_no_problems_are_loaded(tmp_path, monkeypatch):
    math_workers.stop_workers()
    math_workers.empty_pool()
    broken = tmp_path / "broken.py"
    broken.write_text("import a_module_that_is_not_there")
    monkeypatch.setattr(math_workers, "COMMAND", [sys.executable, str(broken)])
    with pytest.raises(ValueError, match="requirements.txt"):
        load_problems("train", "rows.jsonl")
