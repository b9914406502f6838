"""`--eval_only`, and what may be wrong with the data or the model that one brings along."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import countdown_rewards as countdown
import gsm8k_rewards as gsm8k
import nano_r1 as r1

SMALL = ["--eval_problems", "24", "--eval_samples", "4", "--max_tokens", "80"]


def nano_r1(*args, processes=1):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), "nano_r1.py", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done


def results(path):
    with open(path / "evaluation.json") as file:
        return json.load(file)


def episodes(path, name):
    with open(path / "episodes" / f"{name}.jsonl") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """(finished process, its directory): the base model, evaluated by one process."""
    out = tmp_path_factory.mktemp("out")
    done = nano_r1("--eval_only", "--out", out, "--name", "one", *SMALL)
    assert done.returncode == 0, done.stderr
    return done, out / "one"


def test_the_table_has_greedy_and_sampled_side_by_side(evaluated):
    table = evaluated[0].stdout[evaluated[0].stdout.index("greedy") :]
    lines = {line[:28].strip(): line[28:].split() for line in table.splitlines()[1:-1]}
    assert {"pass@1", "pass@4", "maj@4", "right and in form", "right wherever it stands"} <= set(lines)
    assert {"in form", "in form, not right", "neither right nor in form"} <= set(lines)
    assert {"mean length (tokens)", "cut off", "3_numbers: pass@1", "needs_muldiv: pass@1"} <= set(lines)
    assert len(lines["pass@1"]) == 6 and len(lines["pass@4"]) == 3  # a value and two ends of an interval each
    assert evaluated[0].stderr == ""


def test_every_completion_is_written_with_its_verdict(evaluated):
    assert len(episodes(evaluated[1], "greedy")) == 24 and len(episodes(evaluated[1], "sampled")) == 4 * 24
    for row in episodes(evaluated[1], "sampled"):
        again = countdown.reward(row["completion"], row["problem"])
        assert (row["reward"], row["answer_reward"], row["why"]) == (again.total, again.answer, again.why)


def test_the_numbers_are_those_of_the_written_completions(evaluated):
    rows, metrics = episodes(evaluated[1], "sampled"), results(evaluated[1])["sampled"]
    right = [row["answer_reward"] for row in rows]
    assert metrics["eval/pass@1"] == pytest.approx(sum(right) / 96)
    assert metrics["eval/pass@4"] == pytest.approx(sum(max(right[i : i + 4]) for i in range(0, 96, 4)) / 24)
    in_form = [row["answer_reward"] * (row["format_reward"] == 1) for row in rows]
    assert metrics["eval/strict"] == pytest.approx(sum(in_form) / 96)
    assert metrics["eval/mean_length"] == pytest.approx(sum(row["length"] for row in rows) / 96)


def test_strict_is_at_most_pass_at_1_and_that_at_most_lenient(evaluated):
    for metrics in results(evaluated[1]).values():
        assert metrics["eval/strict"] <= metrics["eval/pass@1"] <= metrics["eval/lenient"]
        assert metrics["eval/format"] == pytest.approx(metrics["eval/strict"] + metrics["eval/format_only"])


def test_two_processes_evaluate_to_the_same_numbers(evaluated):
    done = nano_r1("--eval_only", "--out", evaluated[1].parent, "--name", "two", *SMALL, processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = results(evaluated[1]), results(evaluated[1].parent / "two")
    assert one == {name: pytest.approx(metrics) for name, metrics in two.items()}


def test_word_problems_are_evaluated_with_their_own_subgroups(tmp_path):
    done = nano_r1("--eval_only", "--task", "gsm8k", "--out", tmp_path, "--name", "g", *SMALL)
    assert done.returncode == 0, done.stderr
    metrics = results(tmp_path / "g")["greedy"]
    assert metrics["eval/2_steps/problems"] + metrics.get("eval/3_steps/problems", 0) <= 24


def test_competition_problems_of_a_file_are_evaluated_by_level_with_the_three_categories(tmp_path):
    rows = [{"problem": f"What is {n} plus {n}?", "answer": str(2 * n), "level": n % 2 + 1} for n in range(20)]
    data = tmp_path / "math.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = nano_r1("--eval_only", "--task", "math", "--eval_data", data, "--out", tmp_path, "--name", "m", *SMALL)
    assert done.returncode == 0, done.stderr
    metrics = results(tmp_path / "m")["sampled"]
    assert metrics["eval/level_1/problems"] == metrics["eval/level_2/problems"] == 10
    shares = [metrics[f"eval/{name}"] for name in ("strict", "format_only", "neither")]
    assert sum(shares) == pytest.approx(1) and metrics["eval/pass@1"] == metrics["eval/strict"]


def test_without_a_file_or_the_hub_there_are_no_competition_problems(tmp_path):
    done = nano_r1("--task", "math", "--out", tmp_path / "out")
    assert done.returncode == 2 and "--data hub" in done.stderr and not (tmp_path / "out").exists()


def test_a_model_without_chat_template_and_pad_token_trains_and_is_evaluated(tmp_path):
    model = tmp_path / "bare"
    shutil.copytree("models/nano-base", model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (model / name).exists():
            settings = json.loads((model / name).read_text())
            settings.pop("chat_template", None), settings.pop("pad_token", None)
            (model / name).write_text(json.dumps(settings))
    tokenizer = r1.load_tokenizer(str(model))
    assert tokenizer.chat_template is None
    sizes = ["--steps", 1, "--questions", 2, "--completions", 2, "--max_tokens", 40, "--eval_problems", 4]
    done = nano_r1("--model", model, "--out", tmp_path, "--name", "a", *sizes)
    assert done.returncode == 0, done.stderr
    assert "  | Assistant: <think>" in done.stdout


# Data


def word_problems(path, extra=()):
    rows = [*gsm8k.generate_problems("train", 40, 0), *extra]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_that_do_not_fit_are_left_out_counted_and_reported(tmp_path):
    long = {"question": "How many coins are there? " * 2000, "answer": "1+1=<<1+1=2>>2\n#### 2"}
    data = word_problems(tmp_path / "d.jsonl", [long, long])
    sizes = ["--steps", 1, "--questions", 2, "--completions", 2, "--max_tokens", 40, "--eval_problems", 24]
    done = nano_r1("--task", "gsm8k", "--data", data, "--out", tmp_path, "--name", "a", *sizes)
    assert done.returncode == 0, done.stderr
    assert "2 left out, their prompts are too long" in done.stdout


@pytest.mark.parametrize(
    "row, says",
    [
        ({"question": "How many?", "answer": "two"}, "row 41: expected an answer that ends in #### and a number"),
        ({"question": "", "answer": "#### 2"}, "row 41: expected text as question"),
        ({"question": "x" * 10_000_000, "answer": "#### 2"}, "row 41: expected at most 100,000 characters as question"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(tmp_path, row, says):
    data = word_problems(tmp_path / "d.jsonl", [row])
    done = nano_r1("--task", "gsm8k", "--data", data, "--out", tmp_path / "out")
    assert done.returncode == 2 and f"nano_r1.py: {data}, {says}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "is empty."),
        (b"\n\n", "has no rows."),
        (b'{"question": "caf\xe9", "answer": "#### 2"}\n', "codec can't decode byte"),
        (b"no json\n", "could not be read: JSON parse error"),
        (b'{"nums": [1, 2], "target": 3}\n', "has columns ['nums', 'target']; question and answer missing."),
    ],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path, content, says):
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        gsm8k.load_problems("train", str(path))
    assert str(path) in str(caught.value) and says in str(caught.value) and "\n" not in str(caught.value)


def test_evaluation_needs_no_training_problems(tmp_path):
    data = word_problems(tmp_path / "d.jsonl")
    done = nano_r1("--eval_only", "--task", "gsm8k", "--eval_data", data, "--out", tmp_path, "--name", "e", *SMALL)
    assert done.returncode == 0 and "gsm8k: 0 problems to train on, 24 to evaluate on" in done.stdout
    assert not os.path.exists(tmp_path / "e" / "metrics.jsonl")
