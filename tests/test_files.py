"""Files of problems: the three tasks read them alike, as they are written, or refuse them."""

import gzip
import inspect
import json
import random
import re
import sys

import datasets
import pytest

import countdown_rewards
import gsm8k_rewards
import math_rewards

COUNTDOWN = [{"nums": [n, n + 1, 3 * n], "target": 10 + n} for n in range(1, 41)]
GSM8K = [{"question": f"What is {n}?", "answer": f"It is {n}, ü.\n#### {n}"} for n in range(40)]
MATH = [{"problem": f"What is {n}, ü?", "answer": f"\\frac{{{n}}}{{7}}"} for n in range(40)]
TASKS = [(countdown_rewards, COUNTDOWN), (gsm8k_rewards, GSM8K), (math_rewards, MATH)]
each_task = pytest.mark.parametrize("task, rows", TASKS, ids=["countdown", "gsm8k", "math"])


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def cell(value):
    return '"' + str(value).replace('"', '""') + '"'


def csv(rows):
    return "".join(",".join(map(cell, row)) + "\n" for row in [rows[0], *map(dict.values, rows)])


def parquet(rows, path):
    datasets.Dataset.from_list(rows).to_parquet(path)
    return path.read_bytes()


@each_task
def test_a_file_of_each_kind_gives_its_rows_in_order_and_in_silence(task, rows, tmp_path, capfd):
    text = lines(rows).encode()
    files = {
        "a.jsonl": text,
        "A.JSONL": text.replace(b"\n", b"\r\n\r\n"),
        "bom.jsonl": b"\xef\xbb\xbf" + text,
        "a.json": json.dumps(rows, indent=1).encode(),
        "lines.json": text,
        "a.jsonl.gz": gzip.compress(text),
        "a.csv": csv(rows).encode(),
        "bom.csv": b"\xef\xbb\xbf" + csv(rows).replace("\n", "\r\n").encode().replace(b".\r", b"."),
        "A.CSV.GZ": gzip.compress(csv(rows).encode()),
        "a.parquet": parquet(rows, tmp_path / "rows"),
        "a.txt": text,
        "a[1]*? ü.jsonl": text,
        "a[1]*? ü.parquet": parquet(rows, tmp_path / "rows"),
    }
    (tmp_path / "a1x ü.jsonl").write_text("other\n")
    capfd.readouterr()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert task.load_problems("all", str(tmp_path / name)) == rows, name
    assert capfd.readouterr() == ("", "")
    (tmp_path / "a.jsonl").write_text(lines(rows[::-1]), encoding="utf-8")  # read anew
    assert task.load_problems("all", str(tmp_path / "a.jsonl")) == rows[::-1]


# name | content | a part of the message. ROW is a good row, CELLS the same row of a csv file, NAMES
# its columns, A its first column.
WRONG = r"""
a.jsonl | ROW\nROW,\n | row 2: Extra data
a.jsonl | ROW\nROW ROW\n | row 2: Extra data
a.jsonl | ROW\n{"A": 1,}\n | row 2:
a.jsonl | ROW\n{"A": [1, 2,]}\n | row 2:
a.jsonl | ROW\n{"A": 1, "x": [{"y": 1, "y": 2}]}\n | row 2: a name occurs twice
a.jsonl | ROW\n{"A": 1, "A": 1}\n | row 2: a name occurs twice
a.jsonl | ROW\n\n{"input": "x", "output": "y"}\n | row 2: needs A
a.jsonl | ROW\n{"input": "x", "output": "y"}\n | got {'input': 'x', 'output': 'y'}
a.jsonl | ROW\n{"A": null}\n | row 2: needs
a.jsonl | ROW\nnull\n | row 2: needs
a.jsonl | ROW\n[1, 2]\n | row 2: needs
a.jsonl | ROW\n{"A": "\ud800", "answer": "1"}\n | row 2:
a.jsonl | ROW\n{"A": "\b", "answer": "1"}\n | row 2:
a.jsonl | version https://git-lfs.github.com/spec/v1\noid x\n | row 1: needs A
a.jsonl | ROW\nversion\n | row 2: Expecting value
a.jsonl | ROW\n{"A": "caf\xe9"}\n | 'utf-8' codec
a.jsonl | | needs 2
a.jsonl | \n \n | needs 2
a.jsonl | ROW\n | needs 2
a.json | [] | needs 2
a.json | [ROW, ROW,] | row 1:
a.json | [ROW, 7] | row 2: needs
a.json | [ROW, ROW | row 1:
a.csv | | needs 2
a.csv | NAMES\n | needs 2
a.csv | NAMES\nCELLS\nCELLS,1\n | row 2: more or fewer cells
a.csv | NAMES\nCELLS\n[1, 2, 3],6\n | row 2: more or fewer cells
a.csv | NAMES\nCELLS\n7\n | row 2: more or fewer cells
a.csv | NAMES,A\nCELLS,1\n | row 1: more or fewer cells than columns
a.csv | NAMES\nCELLS\n"7,8\n | row 2: unexpected end of data
a.csv | NAMES\nCELLS\n,\n | row 2: needs
a.csv | x;y\n1;2\n | needs A
a.tsv | x\ty\n1\t2\n | row 1: needs A
a.txt | hello | needs 2
a.parquet | PAR1ROW | row 1:
absent.jsonl | None | No such file
"""


@each_task
@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_what_is_not_clear_is_refused_with_file_and_row(task, rows, case, tmp_path):
    name, content, said = case.split("| ", 2)
    path = tmp_path / name.strip()
    text = content.strip(" ").replace("\\n", "\n").replace("ROW", lines(rows[:1]).strip())
    head, cells = csv(rows[:1]).split("\n", 1)
    text = text.replace("NAMES", head).replace("CELLS", cells.strip())
    first = list(rows[0])[0]
    text = re.sub(r"\bA(?=[\"\n])", first, text)
    if text != "None":
        path.write_bytes(text.encode().replace(b"\\xe9", b"\xe9"))
    with pytest.raises(ValueError) as raised:
        task.load_problems("train", str(path))
    message = str(raised.value)
    assert message.startswith(str(path)) and said.replace(" A", f" {first}") in message


@each_task
def test_neither_the_seed_nor_the_order_of_the_rows_moves_a_problem_to_the_other_split(
    task, rows, tmp_path
):
    path = tmp_path / "a.jsonl"
    splits = []
    for seed in (0, 1):
        path.write_text(lines(random.Random(seed).sample(rows, 40) + rows[:9]), encoding="utf-8")
        splits.append([task.load_problems(name, str(path), seed) for name in ("test", "train")])
    test, train = splits[0]
    assert splits[0] == splits[1] and len(test) == 4
    assert sorted(map(str, test + train)) == sorted(map(str, rows))
    path.write_text(lines(test + train[:8]), encoding="utf-8")  # a part of the file
    assert task.load_problems("test", str(path)) == test[:1]


def test_the_three_tasks_read_files_and_hold_out_problems_by_the_same_lines():
    for name in ("csv_rows", "to_row", "held_out"):
        texts = {inspect.getsource(getattr(task, name)) for task, _ in TASKS}
        assert len(texts) == 1, name


def test_a_missing_package_or_network_is_a_sentence(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", open)
    for task, _ in TASKS:
        with pytest.raises(ValueError, match="hub, row 1: "):
            task.load_problems("train", "hub")
    monkeypatch.setitem(sys.modules, "datasets", None)
    for task, _ in TASKS:
        with pytest.raises(ValueError, match="pip install datasets"):
            task.load_problems("train", "hub")
