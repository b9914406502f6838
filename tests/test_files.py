"""Files of problems: the three tasks read them alike, as they are written, or refuse them."""

import gzip
import json
import random
import sys
from datetime import datetime
from unittest import mock

import pandas  # comes with datasets
import pytest

import countdown_rewards
import gsm8k_rewards
import problem_files
from tasks import math_rewards

COUNTDOWN = [{"nums": [n, n + 1, 3 * n], "target": 10 + n} for n in range(1, 41)]
GSM8K = [{"question": f"What is {n}?", "answer": f"It is {n}, ü.\n#### {n}"} for n in range(40)]
MATH = [{"problem": f"What is {n}, ü?", "answer": f"\\frac{{{n}}}{{7}}"} for n in range(40)]
TASKS = [(countdown_rewards, COUNTDOWN), (gsm8k_rewards, GSM8K), (math_rewards, MATH)]
each_task = pytest.mark.parametrize("task, rows", TASKS, ids=["countdown", "gsm8k", "math"])


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@each_task
def test_a_file_of_each_kind_gives_its_rows_in_order(task, rows, tmp_path, capfd):
    text = jsonl(rows).encode()
    table = pandas.DataFrame(rows)
    files = {  # the content decides, not the name
        "a[1]*? ü.jsonl": text,
        "blank.jsonl": text.replace(b"\n", b"\r\n\r\n"),
        "bom.jsonl": b"\xef\xbb\xbf" + text,
        "a.json": json.dumps(rows, indent=1).encode(),
        "a.jsonl.gz": gzip.compress(text),
        "bom.csv": table.to_csv(index=False, lineterminator="\r\n").encode("utf-8-sig"),
        "a.csv": table.to_csv(index=False).encode(),
        "a.txt": table.to_parquet(),
    }
    capfd.readouterr()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert task.load_problems("all", tmp_path / name) == rows, name
    assert capfd.readouterr() == ("", "")


def test_a_time_in_parquet_is_a_text_as_in_a_run_s_files(tmp_path):
    pandas.DataFrame({"at": [datetime(2026, 1, 2)]}).to_parquet(tmp_path / "rows")
    assert list(problem_files.read_file(tmp_path / "rows")) == [{"at": "2026-01-02 00:00:00"}]


ROW = b'{"question": "1?", "answer": "1"}'
WRONG = [  # (the content of a file, a part of the message)
    (b"ROW\nROW,\n", "row 2: Extra data"),
    (b'ROW\n{"question": "?", "x": [{"y": 1, "y": 2}]}\n', "row 2: a name occurs twice"),
    (b'ROW\n\n{"input": "x"}\n', "row 2: needs question"),
    (b"ROW\nnull\n", "row 2: needs an object"),
    (b'ROW\nROW\n{"answer": NaN, "x": 1}\n', "row 3: NaN and Infinity are no values"),
    (b'[ROW, {"target": [-Infinity]}, ROW]', "row 2: NaN and Infinity are no values"),
    (b"version https://git-lfs.github.com/spec/v1\n", "row 1: a pointer of git-lfs"),
    (b'{"question": "caf\xe9"}\n', "'utf-8' codec"),
    (b"ROW\nROW\nROW\n", "needs 2 different"),
    (b"[ROW, ROW,]", "row 1:"),
    (b"question,answer\n1?,1\n1?,1,1\n", "row 2: more or fewer cells"),
    (b"question,answer\n1?,1\n7\n", "row 2: more or fewer cells"),
    (b"question,answer,question\n1?,1,1\n", "row 1: more or fewer cells than columns"),
    (b'question,answer\n1?,1\n"7,8\n', "row 2: unexpected end of data"),
    (b"x;y\n1;2\n", "row 1: needs question"),
    (b"question,answer\0\n", "is UTF-16 or binary: save it as UTF-8"),
    (b"PAR1ROW", "row 1:"),
]


@pytest.mark.parametrize("content, said", WRONG)
def test_what_is_not_clear_is_refused_with_its_row(content, said, tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(content.replace(b"ROW", ROW))
    with pytest.raises(ValueError) as raised:
        gsm8k_rewards.load_problems("train", path)
    message = str(raised.value)
    assert message.startswith(f"--data {path}") and said in message


@each_task
def test_neither_the_seed_nor_the_order_of_the_rows_moves_a_problem_to_the_other_split(
    task, rows, tmp_path
):
    path = tmp_path / "a.jsonl"
    splits = []
    for seed in (0, 1):
        path.write_text(jsonl(random.Random(seed).sample(rows, 40) + rows[:9]), encoding="utf-8")
        splits.append([task.load_problems(name, path, seed) for name in ("test", "train")])
    test, train = splits[0]
    assert splits[0] == splits[1] and len(test) == 4
    assert sorted(map(str, test + train)) == sorted(map(str, rows))


@each_task
def test_the_hub_s_own_splits_are_used_whole_or_a_tenth_of_its_only_one_is_held_out(
    task, rows, monkeypatch
):
    load_dataset = mock.Mock(return_value=rows)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    found = [len(task.load_problems(split, "hub")) for split in ("train", "test", "all")]
    asked = [call.kwargs["split"] for call in load_dataset.call_args_list]
    only_one = task is countdown_rewards
    assert found == ([36, 4, 4] if only_one else [40] * 3)
    assert asked == (["train"] * 3 if only_one else ["train", "test", "test"])


def test_a_question_of_gsm8k_with_two_answers_is_refused_unless_all_rows_are_asked_for(tmp_path):
    rows = [*GSM8K, GSM8K[7] | {"answer": "It is 7.\n#### 7.0"}, GSM8K[3] | {"answer": "4"}]
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(rows))
    assert len(gsm8k_rewards.load_problems("all", path)) == 42
    with pytest.raises(ValueError, match="a.jsonl: row 42 asks what an earlier row asks"):
        gsm8k_rewards.load_problems("train", path)


def test_a_file_is_unpacked_only_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(problem_files, "LARGEST", 100)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b" " * 101))
    with pytest.raises(ValueError, match="row 1: unpacks to more than 1 GiB"):
        gsm8k_rewards.load_problems("train", tmp_path / "a.gz")


def test_a_missing_package_or_network_is_a_sentence(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", open)
    with pytest.raises(ValueError, match="hub, row 1: "):
        gsm8k_rewards.load_problems("train", "hub")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        gsm8k_rewards.load_problems("train", "hub")


@pytest.mark.parametrize(
    "fields, said",
    [
        ('stop = "</answer>"', "stop must be a list of texts, not a text"),
        ("stop = [1]", "stop must be a list of texts, not [a number]"),
        ('chat = "false"', "chat must be true or false, not a text"),
        ("weights = [1]", "weights must be [a number, a number], not [a number]"),
        ("partial = true", "partial must be a number, not true or false"),
        ("colour = 1", "unexpected keyword argument 'colour'"),
        ("text =", "Invalid value"),
        ('text = "Solve {problem}"', "text must have a problem's columns: {nums}"),
        (r'text = "{nums} \boxed{}"', r"'{nums} \x08oxed{}'; write \\ for a backslash"),
    ],
)
def test_a_prompt_of_a_toml_file_that_is_not_meant_so_is_refused(fields, said, tmp_path):
    path = tmp_path / "prompt.toml"
    path.write_text(fields if "text =" in fields else f'text = "{{nums}}"\n{fields}')
    with pytest.raises(SystemExit, match="--prompt must be a toml file or one of ") as raised:
        problem_files.read_prompt(path, countdown_rewards)
    assert said in str(raised.value)


def test_a_prompt_is_read_from_a_toml_file_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "prompt.toml"
    path.write_text('text = "{nums}"\nstop = ["</answer>"]\nweights = [1, 2]', encoding="utf-8-sig")
    prompt = problem_files.read_prompt(path, countdown_rewards)
    assert prompt == countdown_rewards.Prompt("{nums}", stop=["</answer>"], weights=[1, 2])
