import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import math_rewards
from math_rewards import equivalent, final_answer, format_prompt, last_boxed, lenient, load_problems, reward, subgroups
from plumbing import data, math_workers
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


# The reward's values


def test_the_gold_answer_in_a_box_earns_two():
    assert reward(box("\\frac{1}{2}"), PROBLEM) == (2.0, 1.0, 1.0, "correct")


def test_an_equivalent_answer_in_a_box_earns_two():
    assert reward(box("0.5"), PROBLEM) == (2.0, 1.0, 1.0, "correct")


def test_a_wrong_answer_in_a_box_earns_the_format_point_only():
    assert reward(box("2"), PROBLEM)[:3] == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("text", ["\\boxed{}", "\\boxed{ \n }", "\\boxed{\\frac{1}{2}", "\\boxed{", "\\boxed{1\\}"])
def test_a_box_that_is_empty_or_never_closed_earns_half_a_format_point(text):
    assert reward(text, PROBLEM) == (0.5, 0.5, 0.0, "the last \\boxed{ is empty or never closed")


@pytest.mark.parametrize("text", ["", "0.5", "The answer is $\\frac{1}{2}$.", "\\boxed", "boxed{0.5}", "\\fbox{0.5}"])
def test_without_a_box_nothing_is_earned(text):
    assert reward(text, PROBLEM) == (0.0, 0.0, 0.0, "no \\boxed{...}")


@pytest.mark.parametrize("end", ["\n", "<|im_end|>", " I hope it is correct.", "\nProblem: What is 2 + 2?"])
def test_text_after_the_box_is_harmless(end):
    assert reward(box("0.5") + end, PROBLEM).total == 2.0


def test_the_last_box_decides_when_it_is_wrong():
    assert reward(box("0.5") + box("2"), PROBLEM)[:3] == (1.0, 1.0, 0.0)


def test_the_last_box_decides_when_it_is_right():
    assert reward(box("2") + box("0.5"), PROBLEM).total == 2.0


def test_the_last_box_decides_when_it_is_unfinished():
    assert reward(box("0.5") + "\\boxed{", PROBLEM)[:3] == (0.5, 0.5, 0.0)


def test_why_names_both_answers():
    assert reward(box("2"), PROBLEM).why == "'$2$' is not '$\\\\frac{1}{2}$'"


@pytest.mark.parametrize("style", math_rewards.PROMPTS)
def test_every_prompt_is_rewarded_alike(style):
    assert reward(box("0.5"), PROBLEM, style).total == 2.0


# What a box holds


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


@needs_data
def test_the_box_of_every_reference_solution_holds_its_answer():
    rows = real("math500.jsonl")
    assert len(rows) == 500
    assert [r["answer"] for r in rows if last_boxed(r["solution"]) != r["answer"].strip()] == []


# Which answers are equivalent


@pytest.mark.parametrize(
    "answer, gold",
    [
        ("1/2", "\\frac{1}{2}"),
        ("\\dfrac12", "\\frac{1}{2}"),
        ("2.0", "2"),
        ("43,500", "43500"),
        ("43{,}500", "43500"),
        ("43\\,500", "43500"),
        ("10,\\!000", "10000"),
        ("32,\\! 349", "32349"),
        ("$5$", "5"),
        ("5.", "5"),
        ("5\\text{ cm}", "5"),
        ("90", "90^\\circ"),
        ("\\$5", "5"),
        ("10\\%", "10"),
        ("x = 5", "5"),
        ("(x+1)^2", "x^2 + 2x + 1"),
        ("b + a", "a + b"),
        ("2\\sqrt{2}", "\\sqrt{8}"),
        ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"),
        ("( 3 , \\pi / 2 )", "\\left( 3, \\frac{\\pi}{2} \\right)"),
        ("2, 1", "1, 2"),
        ("200, 100", "100, 200"),
        ("10, 100", "100, 10"),
        ("9,\\,4", "4,\\ 9"),
        ("9,~4", "4,\\quad 9"),
        ("(7,\\ 11)", "(7,11)"),
        ("(100,200)", "(100, 200)"),
        ("x=\\ 5", "5"),
        ("1,000, 2,000", "2000, 1000"),
        ("1+\\sqrt 2, 1-\\sqrt 2, 2+\\sqrt 3, 2-\\sqrt 3", "1+\\sqrt 2,\\ 1-\\sqrt 2,\\ 2+\\sqrt 3,\\ 2-\\sqrt 3"),
        ("\\{2, 1\\}", "\\{1,2\\}"),
        ("Evelyn", "\\text{Evelyn}"),
        ("(B)", "\\text{B}"),
        ("\\begin{pmatrix} 1 \\\\ \n 2 \\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ],
)
def test_equivalent_answers_are_right(answer, gold):
    assert equivalent(answer, gold) == (True, "correct")


@pytest.mark.parametrize(
    "answer, gold",
    [
        ("-5", "5"),
        ("0.333", "\\frac{1}{3}"),
        ("3.14", "\\pi"),
        ("1 2", "12"),
        ("12", "1 2"),
        ("12,34", "1234"),
        ("32, 349", "32349"),
        ("32 ,349", "32349"),
        ("100200", "100, 200"),
        ("100,\\,200", "100200"),
        ("2\\,3", "23"),
        ("0, 1, 2", "1,000, 2,000"),
        ("4", "4,\\ 9"),
        ("5,\\ 6,\\ 7", "5"),
        ("3", "1+\\sqrt 2,\\ 1-\\sqrt 2,\\ 2+\\sqrt 3,\\ 2-\\sqrt 3"),
        ("3 or 4", "3"),
        ("3,4", "3"),
        ("1,2", "1,2,3"),
        ("(1,2)", "(2,1)"),
        ("[0,1)", "[0,1]"),
        ("x > 1", "x < 1"),
        ("x = 3", "y = 3"),
        ("x^2", "y^2"),
        ("\\text{odd}", "\\text{even}"),
        ("Yes", "No"),
        ("\\frac{0}{0}", "0"),
        ("\\frac{1}{0}", "5"),
        ("\\text{I think } 5", "5"),
        ("\\frac{", "5"),
        ("$", "5"),
    ],
)
def test_different_answers_are_wrong(answer, gold):
    assert not equivalent(answer, gold)[0]


def test_an_answer_of_five_hundred_characters_is_read_and_a_longer_one_is_not():
    assert equivalent("250." + "0" * 496, "250")[0]
    assert equivalent("250." + "0" * 497, "250") == (False, "answer longer than 500 characters")


@needs_data
def test_the_verdict_agrees_with_ninety_seven_percent_of_labelled_pairs_and_never_pays_for_a_wrong_one():
    def content(text):
        return last_boxed(text) or [text, *math_rewards.FORMULA.findall(text)][-1]

    rows = real("math_equivalence.jsonl")
    assert len(rows) == 300
    wrong = [r for r in rows if equivalent(content(r["pred"]), content(r["gold"]))[0] != r["equivalent"]]
    assert len(wrong) <= 7
    assert [r for r in wrong if not r["equivalent"]] == []


@needs_data
def test_math_verify_itself_finds_every_gold_answer_equal_to_itself():
    golds = [f"${row['answer']}$" for row in real("math500.jsonl")]
    assert [gold for gold in golds if not math_workers.ask(gold, gold)[0]] == []


@needs_data
def test_every_reference_solution_earns_two():
    assert [row["answer"] for row in real("math500.jsonl") if reward(row["solution"], row).total != 2.0] == []


# Lenient reading and votes


@pytest.mark.parametrize(
    "text",
    [
        box("0.5"),
        "It is a half, so the answer is 1/2.",
        "The answer is 0.5 litres\nand no more.",
        "The final answer is: $\\frac12$ because $x = 3$.",
        "**Answer:** $1/2$",
        "Answer:\n\\[\n\\frac{1}{2}\n\\]",
        "First $x = 3$, then $y = \\frac{2}{4}$. Done.",
        "So \\(y = 0.5\\).",
        "Adding up:\n1/2",
        "The answer is 3. No, the answer is 0.5",
    ],
)
def test_the_lenient_reading_finds_a_right_answer(text):
    assert lenient(text, PROBLEM) == 1.0


@pytest.mark.parametrize(
    "text",
    ["", "3", box("3") + " The answer is 0.5", "The answer is 0.5. No, the answer is 3", "$0.5$ or $3$", "0.5\n3"],
)
def test_the_lenient_reading_takes_the_last_answer_only(text):
    assert lenient(text, PROBLEM) == 0.0


def test_the_lenient_reading_finds_a_right_box_wherever_it_stands():
    assert lenient(box("0.5") + " I hope it is correct." * 500, PROBLEM) == 1.0


def test_equivalent_answers_vote_together():
    texts = [box(answer) for answer in ("1/2", "0.5", "3", "\\frac{1}{2}", "3.0", "x", "")]
    assert load_task("math", "short", None).votes(texts, PROBLEM) == ["1/2", "1/2", "3", "1/2", "3", "x", None]


def test_a_vote_that_takes_too_long_to_compare_is_the_same_as_itself_only():
    texts = [box("3"), box(SLOW), box("2+1"), box(SLOW), box("4")]
    assert load_task("math", "short", None).votes(texts, PROBLEM) == ["3", SLOW, "3", SLOW, "4"]


def test_a_vote_is_the_normalized_text_of_the_last_box():
    assert final_answer(box("1") + box(" \\left( 3, \\dfrac{1}{2} \\right). "), PROBLEM) == "(3,\\frac{1}{2})"


@pytest.mark.parametrize("text", ["0.5", "\\boxed{", "\\boxed{}", "\\boxed{$}"])
def test_without_a_finished_box_there_is_no_vote(text):
    assert final_answer(text, PROBLEM) is None


# Hostile text

FRAGMENTS = [
    "\\boxed{", "\\boxed{}", "\\boxed{5}", "}", "{", "\\{", "\\", "\\\\", "$", "$$", "\\[", "\\)", "\\text{",
    "\\frac", "\\frac{1}{", "\\sqrt{", "\\infty", "\\pi", "\\pm", "\\cup", "\\sum_{k=1}^{n}", "\\int", "\\binom",
    "\\begin{pmatrix}", "\\end{pmatrix}", "&", "^", "^{", "_", "!", "(", ")", "[", "|", "%", "=", "<", "/", "-", "+",
    "9", "99999999", "1e999", "0", ".", ",", "x", "i", "e", "A", " or ", " and ", "answer is ", "Answer:", "\n", " ",
    "\\!", "\\ ", "\\,", "~", "1, ", "1,000", " ,1", "a  b", "\x00", "\ud800", "٣", "½", "√", "{0}", "%s",
    "__import__('os')", "<|im_end|>",
]  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join)


def check_bounded(text):
    start = time.process_time()
    result = reward(text, PROBLEM)
    assert lenient(text, PROBLEM) >= result.answer
    assert final_answer(text, PROBLEM) or result.answer == 0.0
    seconds = time.process_time() - start
    assert type(result) is Reward
    assert result.total == result.format + result.answer
    assert result.format in (0.0, 0.5, 1.0) and result.answer in (0.0, 1.0)
    assert result.answer == 0.0 or result.format == 1.0
    assert 0 < len(result.why) <= 160 and result.why.isprintable()
    assert seconds < 1


@settings(max_examples=300)
@given(st.text(max_size=200) | hostile)
def test_arbitrary_text_gets_a_reward_and_never_an_answer_without_its_format(text):
    check_bounded(text)


@settings(max_examples=300)
@given(st.text(max_size=40) | st.text("0123456789+-*/()^{}_.,x ", max_size=12) | hostile)
def test_arbitrary_answers_get_a_reward(answer):
    check_bounded(f"\\boxed{{{answer}}}")


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
    assert time.monotonic() - start < 10  # 1 s of processor time and a new process, on a machine with other work


# The workers


@pytest.fixture
def pool():
    """No worker is running, nothing is remembered; returns the pids of those that are idle."""
    math_workers.stop_workers()
    math_workers.empty_pool()
    math_rewards.compare.cache_clear()
    yield lambda: [worker.pid for worker in math_workers.idle.queue if worker]
    math_workers.stop_workers()
    math_workers.empty_pool()


def right_and_wrong():
    """Two verdicts that only math-verify can give."""
    math_rewards.compare.cache_clear()
    return reward(box("0.5"), PROBLEM).answer, reward(box("0.25"), PROBLEM).answer


def test_no_worker_runs_before_the_first_question(pool):
    assert reward(box("\\frac{1}{2}"), PROBLEM).answer == 1.0
    assert pool() == []


def test_the_time_limit_holds_in_the_main_thread(pool):
    assert reward(f"\\boxed{{{SLOW}}}", PROBLEM).why == f"'${SLOW}$' takes too long to compare"
    assert right_and_wrong() == (1.0, 0.0)


def test_the_time_limit_holds_in_another_thread(pool):
    results = []
    thread = threading.Thread(target=lambda: results.append(reward(f"\\boxed{{{SLOW}}}", PROBLEM).why))
    thread.start()
    thread.join(30)
    assert results == [f"'${SLOW}$' takes too long to compare"]


def test_a_slow_answer_is_remembered(pool):
    reward(f"\\boxed{{{SLOW}}}", PROBLEM)
    start = time.monotonic()
    reward(f"\\boxed{{{SLOW}}}", PROBLEM)
    assert time.monotonic() - start < 0.1


def test_a_worker_that_never_gets_to_run_counts_as_too_slow(pool, monkeypatch):
    right_and_wrong()
    os.killpg(pool()[0], signal.SIGSTOP)
    monkeypatch.setattr(math_workers, "WALL_LIMIT", 0.2)
    assert reward(box("0.75"), PROBLEM).why == "'$0.75$' takes too long to compare"
    monkeypatch.undo()
    assert right_and_wrong() == (1.0, 0.0)


def test_a_worker_killed_from_outside_is_replaced(pool):
    right_and_wrong()
    before = pool()
    os.killpg(before[0], signal.SIGKILL)
    assert right_and_wrong() == (1.0, 0.0)
    assert len(pool()) == 1 and pool() != before


def test_an_interrupted_question_does_not_answer_the_next_one(pool):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with Ctrl-C ignored
    right_and_wrong()
    main = threading.main_thread().ident
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        reward(f"\\boxed{{{SLOW}}}", PROBLEM)
    assert right_and_wrong() == (1.0, 0.0)


def test_several_threads_get_their_own_verdicts_from_at_most_four_workers(pool):
    wrong = []

    def score(start):
        for n in range(start, start + 20):
            if reward(box(f"{n}+{n}"), {"answer": str(2 * n)}).answer != 1.0:
                wrong.append(n)
            if reward(box(f"{n}+{n}"), {"answer": str(2 * n + 1)}).answer != 0.0:
                wrong.append(n)

    threads = [threading.Thread(target=score, args=(100 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == [] and 1 <= len(pool()) <= math_workers.WORKERS <= 4


def test_a_worker_that_is_slow_once_goes_on_answering(pool):
    right_and_wrong()
    before = pool()
    for tower in ("9^{9^{9^9}}", "8^{9^{9^9}}", "7^{9^{9^9}}"):
        assert reward(f"\\boxed{{{tower}}}", PROBLEM).why == f"'${tower}$' takes too long to compare"
    assert right_and_wrong() == (1.0, 0.0) and pool() == before


@pytest.mark.parametrize("who", ["the worker", "its child"])
def test_half_a_worker_killed_from_outside_changes_no_verdict(pool, who):
    right_and_wrong()
    (worker,) = pool()
    child = int(Path(f"/proc/{worker}/task/{worker}/children").read_text())
    os.kill(worker if who == "the worker" else child, signal.SIGKILL)
    for _ in range(3):
        assert right_and_wrong() == (1.0, 0.0)
    assert ends(worker) and (who == "the worker" or ends(child))


def test_one_thread_keeps_to_one_worker(pool):
    for n in range(10):
        reward(box(f"{n}+{n}"), {"answer": str(2 * n)})
    assert len(pool()) == 1


def test_a_forked_child_has_workers_of_its_own(pool):
    right_and_wrong()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send((right_and_wrong(), pool())))
    child.start()
    assert receiver.poll(30)
    verdicts, pids = receiver.recv()
    child.join()
    assert verdicts == (1.0, 0.0) and len(pids) == 1 and pids != pool()
    assert right_and_wrong() == (1.0, 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_the_memory_of_a_worker_is_bounded(pool):
    right_and_wrong()
    assert resource.prlimit(pool()[0], resource.RLIMIT_AS) == (math_workers.MEMORY_LIMIT,) * 2


SCRIPT = """
    import os, sys, threading, time
    sys.path.insert(0, {house!r})
    import math_rewards
    from plumbing import math_workers
    print("main", math_rewards.reward("\\\\boxed{{0.5}}", {{"answer": "1/2"}}).answer)
    math_rewards.reward("\\\\boxed{{\\\\frac{{x}}}}", {{"answer": "1/2"}})
    math_rewards.reward("\\\\boxed{{9^{{9^{{9^9}}}}}}", {{"answer": "1/2"}})
    print("main", math_rewards.reward("\\\\boxed{{0.25}}", {{"answer": "1/4"}}).answer)
    print(*[worker.pid for worker in math_workers.idle.queue if worker], flush=True)
    {last}
"""


def run_script(tmp_path, last=""):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT.format(house=str(HOUSE), last=last)))
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    *lines, pid = result.stdout.splitlines()
    return result, lines, int(pid)


def ends(pid):
    """True once no process has this pid (or only its unread exit status is left)."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    "last",
    [
        "",
        "os._exit(0)",
        "os.kill(os.getpid(), 9)",
        "threading.Thread(target=math_workers.ask, args=('$9^{9^9}$', '$1$'), daemon=True).start(); time.sleep(0.2)",
    ],
    ids=["by itself", "at once", "killed", "with a question in flight"],
)
def test_no_worker_outlives_the_program_however_it_ends(tmp_path, last):
    assert ends(run_script(tmp_path, last)[2])


def test_the_users_script_runs_once_and_nothing_else_appears_on_the_console(tmp_path):
    result, lines, _ = run_script(tmp_path)
    assert lines == ["main 1.0", "main 1.0"] and result.stderr == "" and result.returncode == 0


# Speed


DIRECTLY = """
from math_verify import parse, verify
from plumbing.math_workers import WARM_UP
questions = [(f"${text}$", f"$\\\\frac{{{n}}}{{7}}$") for n in range(8, 133) for text in (f"{n}/7", f"{n}", f"{n}", f"-\\\\frac{{{n}}}{{7}}")]
for answer, gold in [*WARM_UP, *questions]:
    verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)
"""


def processor_time_of_children():
    """Of those that have ended: workers are asked to, as a killed one would not count the child that it had not waited for."""
    for worker in filter(None, math_workers.idle.queue):
        worker.stdin.close()
        worker.wait()
    math_workers.empty_pool()
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def test_a_thousand_typical_completions_take_little_more_processor_time_than_math_verify_alone(pool):
    # 125 problems; of 8 completions 4 say the gold text, 1 the same in other words, 3 two wrong numbers.
    gold, *others = "\\frac{{{}}}{{7}}", "{}/7", "{}", "{}", "-\\frac{{{}}}{{7}}"
    cases = [(box(answer.format(n)), gold.format(n)) for n in range(8, 133) for answer in [gold] * 4 + others]
    assert len(cases) == 1000
    ours, alone = [], []
    for _ in range(3):  # the fastest of each: a virtual core's speed comes and goes
        math_rewards.compare.cache_clear()
        start = time.process_time(), processor_time_of_children()
        right = sum(reward("step by step " * 100 + text, {"answer": gold}).answer for text, gold in cases)
        own, workers = time.process_time() - start[0], processor_time_of_children() - start[1]
        assert right == 5 * 125
        assert workers > 0.1  # it is the workers that we have timed
        ours.append(own + workers)
        start = processor_time_of_children()
        subprocess.run([sys.executable, "-c", DIRECTLY], check=True, capture_output=True, cwd=math_workers.HERE)
        alone.append(processor_time_of_children() - start)  # the 500 that do not say the gold text, and the start
    assert min(ours) < 1.5 * min(alone), (ours, alone)


def test_20_slow_answers_among_100_cost_their_limit_and_little_more(pool):
    """A fork each, and no import of sympy; as processor time, since other work on the machine must not decide the test."""
    texts = [f"\\boxed{{9^{{9^{{9^{{{n}}}}}}}}}" for n in range(2, 22)] + [box(f"{n}/{n + 3}") for n in range(1, 81)]
    texts = [texts[n * 37 % 100] for n in range(100)]  # mixed
    start = processor_time_of_children() + time.process_time()
    rewards = load_task("math", "short", None).rewards(texts, [PROBLEM] * 100)
    workers = len(pool())
    seconds = processor_time_of_children() + time.process_time() - start
    assert sum("too long" in reward.why for reward in rewards) == 20
    assert [reward.answer for reward in rewards] == [float(text == box("3/6")) for text in texts]
    assert workers == math_workers.WORKERS and seconds < 20 * (math_workers.CPU_LIMIT + 0.6)


# Problems from files

ROWS = [
    {"problem": f"{n}/7 + {n}/7?", "answer": f"\\frac{{{2 * n}}}{{7}}", "level": n % 5 + 1, "subject": "Algebra"}
    for n in range(1, 41)
]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write rows (or plain text) to a file of the given name; returns its path."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write_file(name, rows):
        path = tmp_path / name
        if isinstance(rows, str):
            path.write_text(rows)
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif path.suffix == ".json":
            path.write_text(json.dumps(rows))
        elif path.suffix == ".csv":
            pandas.DataFrame(rows).to_csv(path, index=False)
        else:
            pandas.DataFrame(rows).to_parquet(path)
        return str(path)

    return write_file


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_all_rows_of_a_file_are_loaded_in_order(write, name):
    assert load_problems("all", write(name, ROWS)) == ROWS


def test_other_columns_are_left_out_and_missing_ones_stay_missing(write):
    rows = [{"problem": "1+1?", "answer": "2", "solution": "x"}]
    assert load_problems("all", write("rows.jsonl", rows)) == [{"problem": "1+1?", "answer": "2"}]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_plain_numbers_in_the_answer_column_become_text(write, name):
    path = write(name, [{"problem": "1+1?", "answer": 2}, {"problem": "1+2?", "answer": 3}])
    assert [p["answer"] for p in load_problems("all", path)] == ["2", "3"]


def test_train_and_test_split_a_file_without_overlap_or_loss(write):
    path = write("rows.jsonl", ROWS)
    train, test = load_problems("train", path), load_problems("test", path)
    assert (len(train), len(test)) == (36, 4)
    assert sorted(p["problem"] for p in train + test) == sorted(p["problem"] for p in ROWS)


def test_the_split_of_a_file_depends_on_the_seed_only(write):
    path = write("rows.jsonl", ROWS)
    assert load_problems("test", path, 5) == load_problems("test", path, 5) != load_problems("test", path, 6)


@pytest.mark.parametrize("split, asked", [("train", "train"), ("test", "test"), ("all", "test")])
def test_the_hub_has_splits_of_its_own(monkeypatch, split, asked):
    calls = []

    def load_rows(source, columns, hub, split):
        calls.append((source, columns, hub["path"], split))
        return ROWS

    monkeypatch.setattr(data, "load_rows", load_rows)
    assert load_problems(split, "hub") == ROWS
    assert calls == [("hub", ("problem", "answer|solution"), "hiyouga/math12k", asked)]


def error_of(path, split="train"):
    with pytest.raises(ValueError) as caught:
        load_problems(split, path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 400
    return message


def test_without_a_source_the_error_says_what_to_type():
    assert error_of(None) == "MATH has no built-in problems: use `--data hub` or `--data FILE`."


def test_a_missing_file_is_a_sentence(tmp_path):
    assert "No such data file" in error_of(str(tmp_path / "none.jsonl"))


def test_a_missing_column_is_named(write):
    assert "answer or solution missing" in error_of(write("rows.jsonl", [{"problem": "1+1?", "result": "2"}]))


def test_rows_of_the_original_data_set_have_their_answer_in_the_last_box_of_the_solution(write):
    rows = [
        {
            "problem": "a?",
            "level": "Level 2",
            "type": "Algebra",
            "solution": "$\\boxed{1}$, no, $\\boxed{\\frac{1}{2}}$.",
        },
        {"problem": "b?", "level": "Level ?", "type": "Geometry", "solution": "So it is $\\boxed 2$."},
        {"problem": "c?", "level": "Level 5", "type": "Algebra", "solution": "\\fbox{C}"},
    ]
    problems = load_problems("all", write("rows.jsonl", rows))
    assert [problem["answer"] for problem in problems] == ["\\frac{1}{2}", "2", "C"]
    assert problems[0] == {"problem": "a?", "answer": "\\frac{1}{2}", "level": "Level 2", "subject": "Algebra"}
    assert subgroups(problems[0]) == ["level_2", "algebra"]


@pytest.mark.parametrize("solution", ["It is 2.", "\\boxed{}", "\\boxed{2", None])
def test_a_solution_without_a_box_is_a_bad_row(write, solution):
    rows = [{"problem": "a?", "solution": "\\boxed{1}"}, {"problem": "b?", "solution": solution}]
    assert ", row 2: expected " in error_of(write("rows.jsonl", rows))


@pytest.mark.parametrize("answer", ["\\frac{1}{2", "2}", "}{"])
def test_an_answer_that_no_box_can_hold_is_a_bad_row(write, answer):
    message = error_of(write("rows.jsonl", [ROWS[0], {"problem": "a?", "answer": answer}]))
    assert ", row 2: expected balanced braces in the answer, got " in message


@pytest.mark.parametrize(
    "bad",
    [
        {"problem": "", "answer": "2"},
        {"problem": "1+1?", "answer": "  "},
        {"problem": "1+1?", "answer": None},
        {"problem": None, "answer": "2"},
        {"problem": "1" * 20_001, "answer": "2"},
        {"problem": "1+1?", "answer": "2" * 501},
        {"problem": "1+1?"},
    ],
)
def test_a_bad_row_is_named(write, bad):
    path = write("rows.jsonl", [{**ROWS[0]}, bad, ROWS[1]])
    assert error_of(path).startswith(f"{path}, row 2: expected ")


def test_an_empty_cell_of_a_csv_file_is_a_bad_row(write):
    path = write("rows.csv", "problem,answer\n1+1?,2\n1+2?,\n")
    assert error_of(path).startswith(f"{path}, row 2: expected text as answer, got ")


def test_a_file_that_is_not_utf_8_is_a_sentence(tmp_path, write):
    path = write("rows.csv", "")
    Path(path).write_bytes("problem,answer\nWie groß?,2\n".encode("latin-1"))
    assert "could not be read" in error_of(path)


def test_without_a_working_math_verify_no_problems_are_loaded(write, tmp_path, pool, monkeypatch):
    broken = tmp_path / "broken.py"
    broken.write_text("import a_module_that_is_not_there")
    monkeypatch.setattr(math_workers, "COMMAND", [sys.executable, str(broken)])
    assert "math-verify does not work here: `pip install -r requirements.txt`" in error_of(write("rows.jsonl", ROWS))


@needs_data
def test_every_real_problem_is_loaded_with_its_level_and_subject():
    problems = load_problems("all", str(DATA / "math500.jsonl"))
    assert len(problems) == 500
    assert {tuple(p) for p in problems} == {("problem", "answer", "level", "subject")}


@pytest.mark.parametrize(
    "columns, names",
    [
        ({"level": 5, "subject": "Counting & Probability"}, ["level_5", "counting_probability"]),
        ({"level": "Level 1", "subject": "Intermediate Algebra"}, ["level_1", "intermediate_algebra"]),
        ({"level": "Level ?"}, []),
        ({"subject": "Geometry"}, ["geometry"]),
        ({}, []),
    ],
)
def test_subgroups_name_level_and_subject_where_they_are_known(columns, names):
    assert subgroups({**PROBLEM, **columns}) == names


# The prompt


@pytest.mark.parametrize("style", math_rewards.PROMPTS)
def test_every_prompt_holds_the_problem_and_asks_for_a_box(style):
    problem = {"problem": "Find $x$ in $\\{1, 2\\}$ with $x^{2} = {4}$.", "answer": "2"}
    prompt = format_prompt(problem, SimpleNamespace(chat_template=None), style)
    assert problem["problem"] in prompt and "\\boxed{" in prompt


def test_the_short_prompt_is_the_question_and_where_to_put_the_answer():
    assert format_prompt(PROBLEM, SimpleNamespace()) == (
        "User: What is $1/4 + 1/4$?\nPut the final answer in \\boxed{}.\nAssistant:"
    )


@pytest.mark.parametrize("style", ["short", "chat"])
def test_with_a_chat_template_the_prompt_is_the_users_turn(style):
    def apply_chat_template(messages, tokenize, add_generation_prompt):
        assert [m["role"] for m in messages] == ["user"] and not tokenize and add_generation_prompt
        return f"[user]{messages[0]['content']}[assistant]"

    tokenizer = SimpleNamespace(chat_template="...", apply_chat_template=apply_chat_template)
    prompt = format_prompt(PROBLEM, tokenizer, style)
    assert prompt.startswith("[user]") and prompt.endswith("[assistant]")


def test_the_plain_prompt_uses_no_chat_template():
    tokenizer = SimpleNamespace(chat_template="...")
    assert format_prompt(PROBLEM, tokenizer, "plain").endswith("Problem: What is $1/4 + 1/4$?\n\nSolution:")


def test_no_prompt_asks_for_tags_and_all_parts_weigh_the_same():
    assert {(p.opening, p.thinking, p.weights) for p in math_rewards.PROMPTS.values()} == {("", "", (1.0, 1.0))}
