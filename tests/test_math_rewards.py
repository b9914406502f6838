"""MATH: what a completion earns, which answers are equivalent, and the processes that decide it."""

import json
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
from hypothesis import given, settings
from hypothesis import strategies as st

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
from plumbing.tasks import Reward, load_task

PROBLEM = {"problem": "What is $1/4 + 1/4$?", "answer": "\\frac{1}{2}"}
SLOW = "9^{9^{9^9}}"
HOUSE = Path(math_rewards.__file__).parent
DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real cases is absent")


def box(answer):
    return f"Two quarters make a half. The final answer is $\\boxed{{{answer}}}$."


def real(name):
    return [json.loads(line) for line in open(DATA / name)]


# What a completion earns


@pytest.mark.parametrize(
    "text, parts, why",
    [
        (box("\\frac{1}{2}"), (2.0, 1.0, 1.0), "correct"),
        (box("0.5"), (2.0, 1.0, 1.0), "correct"),
        (box("\\sqrt{1/4}"), (2.0, 1.0, 1.0), "correct"),
        (box("2"), (1.0, 1.0, 0.0), "'2' is not '\\\\frac{1}{2}'"),
        (box("\\sqrt{2}"), (1.0, 1.0, 0.0), "is not '\\\\frac{1}{2}'"),
        (box("\\frac{1}{2} x 3"), (1.0, 1.0, 0.0), "not read in full"),
        (box("0" * 501), (1.0, 1.0, 0.0), "longer than 500 characters"),
        *(
            (text, (0.5, 0.5, 0.0), "empty or never closed")
            for text in ("\\boxed{}", "\\boxed{1\\}")
        ),
        *(
            (text, (0.5, 0.5, 0.0), "empty or never closed")
            for text in ("\\boxed{ \n }", "\\boxed{")
        ),
        *((text, (0, 0, 0), "no \\boxed{...}") for text in ("", "0.5", "\\boxed", "\\fbox{0.5}")),
        (box("0.5") + "\n", (2.0, 1.0, 1.0), "correct"),
        (box("0.5") + " I hope it is correct.<|im_end|>", (2.0, 1.0, 1.0), "correct"),
        (box("0.5") + box("2"), (1.0, 1.0, 0.0), "'2' is not"),
        (box("2") + box("0.5"), (2.0, 1.0, 1.0), "correct"),
        (box("0.5") + "\\boxed{", (0.5, 0.5, 0.0), "empty or never closed"),
    ],
)
@pytest.mark.parametrize("style", math_rewards.PROMPTS)
def test_what_a_completion_earns_and_why(text, parts, why, style):
    result = reward(text, PROBLEM, style)
    assert result[:3] == parts and why in result.why
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


@pytest.mark.parametrize(
    "gold, answers",
    [
        (
            "\\frac{1}{2}",
            ["1/2", "\\dfrac12", "\\frac1{2}", "\\frac{2}{4}", "0.50", ".5", "\\tfrac12"],
        ),
        ("-\\frac{1}{2}", ["\\frac{-1}{2}", "-0.5", "−1/2"]),
        ("2\\frac{1}{2}", ["2.5", "\\frac{5}{2}", "2 \\frac12"]),
        (
            "43500",
            ["43,500", "43{,}500", "43\\,500", "43,\\!500", "$43500$", "43500.", "\\$43,500"],
        ),
        ("111, \\! 111, \\! 111", ["111111111", "111,111,111"]),
        (
            "5",
            [
                "5\\text{ cm}",
                "5 cm",
                "5 apples",
                "x = 5",
                "x=\\ 5",
                "5 = x",
                "5\\text{ cm}^2",
                "2+3=5",
            ],
        ),
        ("5\\text{ cm}^2", ["5", "5 square centimeters", "5\\mathrm{cm}^2"]),
        ("90^\\circ", ["90", "90^{\\circ}", "90°", "90\\text{ degrees}"]),
        ("10", ["10\\%", "\\binom52", "\\binom{5}{2}", "2(5)", "(2)(5)", "2\\cdot 5"]),
        ("5.3\\%", ["5.3", "0.053", "5.3 percent", "5.30\\%"]),
        ("2516_8", ["2516", "2516_{8}", "(2516)_8"]),
        ("1e-5", ["10^{-5}", "0.00001", "1\\times 10^{-5}"]),
        ("\\frac{1}{3}", ["0.333333", "\\frac{3}{9}"]),
        ("\\pi", ["3.14159265", "\\frac{2\\pi}{2}"]),
        ("\\frac12c", ["\\frac{c}{2}", "c/2", "0.5c"]),
        ("1-\\mathrm{e}", ["1-e", "-(e-1)"]),
        ("\\sqrt{8}", ["2\\sqrt{2}", "2\\sqrt2", "\\sqrt[3]{8}\\sqrt{2}"]),
        ("\\frac{1}{\\sqrt{3}}", ["\\frac{\\sqrt{3}}{3}"]),
        ("x^2 + 2x + 1", ["(x+1)^2", "(1+x)(x+1)", "y=(x+1)^2", "f(x) = (x+1)^2"]),
        ("F_{n-k-1} F_k+a", ["a+F_kF_{n-k-1}"]),
        ("24", ["\\Gamma(5)"]),
        ("\\frac{2}{3}", ["2:3"]),
        ("5:30", ["5:30", "05:30", "5 : 30"]),
        ("2i", ["\\sqrt{-4}", "(1+i)^2"]),
        ("\\frac{1}{2004!}", ["\\frac{1}{2003! \\cdot 2004}"]),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", ["( 3 , \\pi / 2 )", "(3,0.5\\pi)"]),
        ("1, 2", ["2, 1", "\\{1,2\\}", "2 \\text{ and } 1", "1 or 2", "x=1 \\text{ or } x=2"]),
        ("100, 200", ["200, 100"]),
        ("2000, 1000", ["1,000, 2,000"]),
        ("4,\\ 9", ["9,\\,4", "9,~4", "4,\\quad 9"]),
        ("(100, 200)", ["(100,200)", "(100,\\ 200)", "100, 200"]),
        ("1\\pm\\sqrt2", ["1+\\sqrt 2, 1-\\sqrt 2", "1-\\sqrt{2},\\ 1+\\sqrt{2}"]),
        ("E_{1},E_{2}", ["E_1, E_2"]),
        ("[1,2)", ["x\\in[1,2)", "1\\le x<2", "2>x\\ge 1", "[1,2.0)"]),
        ("(-\\infty,1)\\cup(2,\\infty)", ["(2,\\infty)\\cup(-\\infty,1)"]),
        ("x>3", ["3<x", "2x>6", "(3,\\infty)"]),
        ("y = 3x+5", ["3x+5", "3x-y=-5", "y-5=3x"]),
        ("\\text{Evelyn}", ["Evelyn", "\\textbf{evelyn}", "\\mbox{Evelyn}"]),
        ("\\text{B}", ["(B)", "B", "b", "\\text{(B)}"]),
        ("\\text{odd}", ["odd"]),
        ("p=5,q=2;p=7,q=2", ["(5,2),(7,2)"]),
        (
            "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
            [
                "\\begin{pmatrix} 1 \\\\ \n 2 \\end{pmatrix}",
                "\\left[\\begin{array}{c}1\\\\2\\end{array}\\right]",
                "\\frac12\\begin{bmatrix}2\\\\4\\end{bmatrix}",
            ],
        ),
        ("250", ["250." + "0" * 496]),
    ],
)
def test_equivalent_answers_are_right(gold, answers):
    assert {answer: equivalent(answer, gold) for answer in answers} == dict.fromkeys(
        answers, (True, "correct")
    )


@pytest.mark.parametrize(
    "gold, answers",
    [
        # What stands side by side is never a sum.
        ("148", ["145 3", "145 \\quad 3", "140\\ 8"]),
        ("6", ["1 2 3", "6(-1)^{n}, n\\geq0, n\\in\\mathbb{Z}", "(1)(2)(3)+1", "3(3)", "4(2)"]),
        ("12", ["1 2", "1\\,2"]),
        ("1 2", ["12", "3"]),
        # A part that is not read, or that says something else, is not dropped.
        ("2", ["2k, k \\in Z", "2\\ldots", "2'", "2 \\to 3", "2x=4", "2, 3", "2_3+0"]),
        (
            "5",
            ["-5", "\\neq 5", "\\geq 5", "5 \\text{ million}", "5 million", "5k", "5\\text{ or }6"],
        ),
        (
            "5",
            [
                "\\text{I think } 5",
                "5,\\ 6,\\ 7",
                "\\frac{1}{0}",
                "\\frac{",
                "$",
                "5t",
                "f(5)",
                "5!",
            ],
        ),
        ("4t", ["4", "4c", "4s", "4T"]),
        ("1-\\mathrm{e}", ["1", "1-\\mathrm{f}"]),
        ("1-\\frac1{\\mathrm e}", ["1+\\frac1{\\mathrm e}", "1"]),
        ("5\\text{ cm}^2", ["5\\text{ cm}^3", "5\\text{ m}^2", "5\\text{ cm}"]),
        ("A", ["A^T", "A'", "a"]),
        ("1e-5", ["e-5", "1e-6"]),
        ("2516_8", ["2516_9", "2517_8"]),
        # Numbers are compared exactly, or relative to their size.
        ("\\frac{1}{2004!}", ["\\frac{1}{3004!}", "0"]),
        ("2^{-99}", ["2^{-98}", "0"]),
        ("0.0000002", ["0.0000001", "0"]),
        ("10^{60}", ["10^{60}+1", "10^{61}"]),
        ("\\frac{1}{3}", ["0.333", "0.3333", "0.333334"]),
        ("\\pi", ["3.14", "3.1416", "\\frac{22}{7}"]),
        ("0", ["\\frac{0}{0}", "10^{-40}"]),
        # Order, brackets and signs count.
        ("1234", ["12,34"]),
        ("32349", ["32, 349", "32 ,349"]),
        ("100, 200", ["100200", "100,\\,200,", "(200,100)"]),
        ("100200", ["100,\\,200"]),
        ("23", ["2\\,3"]),
        ("1,000, 2,000", ["0, 1, 2"]),
        ("4,\\ 9", ["4"]),
        ("3", ["3 or 4", "3,4", "1+\\sqrt 2,\\ 1-\\sqrt 2", "\\{3,3\\}"]),
        ("1,2,3", ["1,2", "1,2,2"]),
        ("(2,1)", ["(1,2)", "[2,1]", "\\{2,1\\}", "(2,1"]),
        ("[0,1]", ["[0,1)", "(0,1]", "0,1", "\\{0,1\\}"]),
        ("x < 1", ["x > 1", "x \\le 1", "-x<-1", "x<2"]),
        ("y = 3", ["x = 3", "y=4", "y=3, x=3"]),
        ("y^2", ["x^2", "Y^2", "y^3"]),
        ("|x|", ["x", "-x"]),
        ("\\gamma", ["\\Gamma", "0.577215665", "\\mathrm{\\Gamma}"]),
        ("\\frac{1}{6}", ["5:30", "1:2:3"]),
        ("5:30", ["6:30", "11:66", "1:6"]),
        ("\\text{even}", ["\\text{odd}", "even number"]),
        ("No", ["Yes", "on"]),
    ],
)
def test_different_answers_are_wrong(gold, answers):
    assert [answer for answer in answers if equivalent(answer, gold)[0]] == []


def mutants(gold):
    """The answer with one sign, digit, exponent, letter or bracket changed."""
    yield "-" + gold
    other = {"-": "+", "+": "-", "(": "[", ")": "]", "[": "(", "]": ")"}
    for i, character in enumerate(gold):
        before = gold[:i]
        after = gold[i + 1 :]
        in_words = re.search(r"\\[a-zA-Z]*$|\\(?:text|mbox|begin|end|mathrm)\{[^}]*$", before)
        if character.isdigit():
            yield before + str((int(character) + 1) % 10) + after
            yield before + str((int(character) + 7) % 10) + after
        elif character.isalpha() and not in_words:
            yield before + ("b" if character == "a" else "a") + after
            yield before + character.swapcase() + after
        elif character in other:
            yield before + other[character] + after
        if character in "()[]^":
            yield before + after


EQUAL_MUTANTS = {("0", "-0")}


@needs_data
def test_no_real_answer_is_paid_after_one_sign_digit_letter_or_bracket_is_changed():
    golds = sorted({row["answer"] for row in real("math500.jsonl")})
    cases = [(text, gold) for gold in golds for text in mutants(gold)]
    with ThreadPoolExecutor(math_workers.WORKERS) as pool:
        rewards = list(pool.map(lambda case: reward(box(case[0]), {"answer": case[1]}), cases))
    paid = {(gold, text) for (text, gold), result in zip(cases, rewards) if result.answer}
    assert len(cases) > 2000 and paid == EQUAL_MUTANTS


@needs_data
def test_the_verdict_agrees_with_all_but_seven_labelled_pairs_and_pays_no_wrong_one():
    def content(text):
        return last_boxed(text) or [text, *math_rewards.FORMULA.findall(text)][-1]

    rows = real("math_equivalence.jsonl")
    verdicts = [equivalent(content(r["pred"]), content(r["gold"]))[0] for r in rows]
    wrong = [r for r, verdict in zip(rows, verdicts) if verdict != r["equivalent"]]
    assert (len(rows), len(wrong)) == (300, 7)
    assert [r for r in wrong if not r["equivalent"]] == []


@needs_data
def test_every_reference_solution_earns_two_and_every_gold_answer_is_read():
    rows = real("math500.jsonl")
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


# Hostile text

FRAGMENTS = [
    "\\boxed{", "\\boxed{}", "\\boxed{5}", "}", "{", "\\{", "\\", "\\\\", "$", "$$", "\\[", "\\)",
    "\\text{", "\\frac", "\\frac{1}{", "\\sqrt{", "\\infty", "\\pi", "\\pm", "\\cup", "\\int",
    "\\sum_{k=1}^{n}", "\\binom", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "^", "^{", "_", "!",
    "(", ")", "[", "|", "%", "=", "<", "/", "-", "+", "9", "99999999", "1e999", "0", ".", ",", ";",
    "x", "i", "e", "A", " or ", " and ", "answer is ", "Answer:", "\n", " ", "\\!", "\\ ", "\\,",
    "~", "1, ", "1,000", " ,1", "a  b", "\x00", "\ud800", "٣", "½", "√", "{0}", "%s", "\\in",
    "__import__('os')", "<|im_end|>",
]  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join)
formulas = st.text("0123456789+-*/()^{}_.,x ", max_size=12)


def check_bounded(text):
    start = time.process_time()
    result = reward(text, PROBLEM)
    assert lenient(text, PROBLEM) >= result.answer
    assert final_answer(text, PROBLEM) or result.answer == 0.0
    seconds = time.process_time() - start
    assert type(result) is Reward and result.total == result.format + result.answer
    assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0)
    assert 0 < len(result.why) <= 160 and result.why.isprintable()
    assert seconds < 1


@settings(max_examples=300)
@given(st.text(max_size=200) | hostile | formulas, st.booleans())
def test_hostile_text_gets_a_reward_within_a_second(text, in_a_box):
    check_bounded(f"\\boxed{{{text}}}" if in_a_box else text)


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_megabyte_of_one_fragment_gets_a_reward(fragment):
    check_bounded(fragment * (1_000_000 // len(fragment)))
    check_bounded(f"\\boxed{{{fragment * (1_000_000 // len(fragment))}}}")


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


@pytest.fixture
def pool():
    """Nothing is remembered; returns the pids of the idle workers, the last one used first."""
    math_rewards.compare.cache_clear()
    return lambda: [worker.pid for worker in reversed(math_workers.idle.queue) if worker]


def right_and_wrong():
    """Two verdicts that only a worker can give."""
    math_rewards.compare.cache_clear()
    return tuple(reward(box(text), PROBLEM).answer for text in ("\\sqrt{0.25}", "\\sqrt{0.5}"))


def test_plain_numbers_need_no_worker(monkeypatch):
    monkeypatch.setattr(math_rewards, "ask", None)
    assert [reward(box(text), PROBLEM).answer for text in ("0.5", "1/2", "3")] == [1, 1, 0]


@pytest.mark.parametrize("where", ["the main thread", "another thread"])
def test_the_time_limit_holds_and_the_verdict_is_remembered(pool, where):
    whys = []
    question = lambda: whys.append(reward(f"\\boxed{{{SLOW}}}", PROBLEM).why)
    if where == "the main thread":
        question()
    else:
        thread = threading.Thread(target=question)
        thread.start()
        thread.join(30)
    start = time.monotonic()
    question()
    assert time.monotonic() - start < 0.1
    assert whys == [f"'{SLOW}' takes too long to compare"] * 2
    assert right_and_wrong() == (1.0, 0.0)


def test_a_worker_that_never_gets_to_run_counts_as_too_slow(pool, monkeypatch):
    right_and_wrong()
    os.killpg(pool()[0], signal.SIGSTOP)
    monkeypatch.setattr(math_workers, "WALL_LIMIT", 0.2)
    assert reward(box("\\sqrt{0.75}"), PROBLEM).why.endswith("takes too long to compare")
    monkeypatch.undo()
    assert right_and_wrong() == (1.0, 0.0)


@pytest.mark.parametrize("who", ["both", "the worker", "its child"])
def test_a_worker_killed_from_outside_is_replaced_and_changes_no_verdict(pool, who):
    right_and_wrong()
    worker = pool()[0]
    child = int(Path(f"/proc/{worker}/task/{worker}/children").read_text())
    for pid in {"both": (worker, child), "the worker": (worker,), "its child": (child,)}[who]:
        os.kill(pid, signal.SIGKILL)
    assert [right_and_wrong() for _ in range(3)] == [(1.0, 0.0)] * 3
    assert ends(worker) and (who == "the worker" or ends(child))
    math_workers.stop_workers()  # a child whose worker is dead goes on answering till then
    math_workers.empty_pool()


def test_an_interrupted_question_does_not_answer_the_next_one(pool):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start without
    right_and_wrong()
    main = threading.main_thread().ident
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        reward(f"\\boxed{{{SLOW}}}", PROBLEM)
    assert right_and_wrong() == (1.0, 0.0)


def test_several_threads_get_their_own_verdicts_and_one_keeps_to_one_worker(pool):
    cases = [(box(f"{n}\\sqrt{{4}}"), {"answer": str(2 * n + n % 2)}) for n in range(80)]
    expected = [float(n % 2 == 0) for n in range(80)]
    right_and_wrong()
    before = pool()
    assert [reward(*case).answer for case in cases] == expected and pool() == before
    math_rewards.compare.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert [result.answer for result in threads.map(lambda c: reward(*c), cases)] == expected
    assert 1 <= len(pool()) <= math_workers.WORKERS <= 4


def test_a_worker_that_is_slow_once_goes_on_answering_within_its_limits(pool):
    right_and_wrong()
    before = pool()
    for tower in ("9^{9^{9^9}}", "8^{9^{9^9}}"):
        assert reward(f"\\boxed{{{tower}}}", PROBLEM).why.endswith("takes too long to compare")
    assert right_and_wrong() == (1.0, 0.0) and pool() == before
    if sys.platform == "linux":
        limits = resource.prlimit(before[0], resource.RLIMIT_AS)
        assert limits == (math_workers.MEMORY_LIMIT, math_workers.MEMORY_LIMIT)


def test_a_forked_child_has_workers_of_its_own(pool):
    right_and_wrong()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send((right_and_wrong(), pool())))
    child.start()
    assert receiver.poll(30)
    verdicts, pids = receiver.recv()
    child.join()
    assert verdicts == (1.0, 0.0) and len(pids) == 1 and pids[0] not in pool()
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


def test_slow_answers_cost_their_limit_and_little_more_and_the_others_milliseconds(pool):
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


def test_without_a_working_sympy_no_problems_are_loaded(tmp_path, pool, monkeypatch):
    math_workers.stop_workers()
    math_workers.empty_pool()
    broken = tmp_path / "broken.py"
    broken.write_text("import a_module_that_is_not_there")
    monkeypatch.setattr(math_workers, "COMMAND", [sys.executable, str(broken)])
    with pytest.raises(ValueError, match="requirements.txt"):
        load_problems("train", "rows.jsonl")
