"""The embedded base: what its authors write, its tokenizer, a tiny run of the script."""

import importlib.util
import operator
import random
import re
import sys
import zlib
from pathlib import Path

import pytest

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
import nano_r1 as r1

MODEL = Path(__file__).parents[1] / "models" / "nano-base"
spec = importlib.util.spec_from_file_location("make_base", MODEL / "make_base.py")
base = sys.modules["make_base"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(base)

EXACT = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
STEP = re.compile(r"(?<!\d)(?=(\d+)([-+*/])(\d+)=(\d+))")
PROBLEMS = countdown.generate_problems("train", 300, 0)
STORIES = gsm8k.generate_problems("train", 400, 0)
CHECKSUMS = [1971950815, 3622202853, 2944035107, 184704435, 3926409704, 2943898813, 2797989680]
CHECKSUMS += [1577523739]  # stage 8


@pytest.fixture(scope="module")
def tokenizer():
    return base.make_tokenizer()


def rows(tokenizer, stage):
    """Of a stage's last step."""
    return base.rows_of(stage, stage.last, PROBLEMS, STORIES, tokenizer, seed=0)


def checks_of(text):
    """(is the result the target?, does it say yes?) of each check, in a prompt's answer or not."""
    for target, attempts in re.findall(
        r"(?:\] |equals )(\d+)\.?\n(?:assistant: <think>\n)?((?:.*(?: yes| no)\n)+)", text
    ):
        for value, verdict in re.findall(r"=(\d+) (yes|no)\n", attempts):
            yield value == target, verdict == "yes"


@pytest.mark.parametrize("stage", base.STAGES, ids=lambda stage: f"stage {stage.number}")
def test_every_calculation_is_correct_and_until_stage_8_every_check_true(stage, tokenizer):
    checked = 0
    for prompt, response in rows(tokenizer, stage):
        text = tokenizer.decode(prompt + response)
        for a, sign, b, result in STEP.findall(text.partition("<answer>")[0]):
            assert EXACT[sign](int(a), int(b)) == int(result), text
            checked += 1
        if stage.number < 8 or not text.startswith("user: "):  # practice has no prompt
            assert all(hit == yes for hit, yes in checks_of(text)), text
    assert checked > 100


def test_the_checks_of_stage_8_do_not_depend_on_the_result():
    rng = random.Random(0)
    said = {True: [], False: []}
    for problem in PROBLEMS * 4:
        nums, target = problem["nums"], problem["target"]
        author = base.RANDOM_AUTHORS["systematic"]
        text = f"equals {target}.\n{base.write_as(author, nums, target, rng).strip()}"
        for hit, yes in checks_of(text):
            said[hit].append(yes)
    for verdicts in said.values():
        assert sum(verdicts) / len(verdicts) == pytest.approx(author.random_yes, abs=0.03)


def test_the_rows_are_those_that_made_the_embedded_model(tokenizer):
    """Checksums of the same rows by the scripts that made it: stages 1 to 7, commit beb1656."""
    found = [zlib.crc32(repr(rows(tokenizer, stage)).encode()) for stage in base.STAGES]
    assert found == CHECKSUMS


def test_the_embedded_tokenizer_is_the_one_that_the_script_makes(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (MODEL / name).read_bytes()


def test_the_prompts_are_those_of_the_tasks(tokenizer):
    policy, _ = r1.load_model(r1.Config())
    for task, problem in (("countdown", PROBLEMS[0]), ("gsm8k", STORIES[0])):
        question = problem.get("question") or base.question_of(problem["nums"], problem["target"])
        ids = r1.Task(tokenizer, policy, r1.Config(task=task)).prompt_ids(problem)
        assert tokenizer.decode(ids) == base.prompt_of(question)


def test_a_base_is_made_and_saved(tmp_path):
    few = {name: 2 for name in ("completions", "practice", "searches")}
    stages = [stage._replace(last=stage.first, **few) for stage in base.STAGES[-2:]]
    settings = base.Settings(out=str(tmp_path / "base"), problems=100)
    base.make_base(settings, stages)
    policy, _ = r1.load_model(r1.Config(model=settings.out))
    assert policy.num_parameters() == 1_195_648
