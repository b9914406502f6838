"""What a task reads from files and from the hub: as it is written, or refused with one sentence.

A task calls `load` in its `load_problems`, and says what a row has to be:

    problem_files.load(source, split, HUB, to_problem, problem_key)

Problems are JSON lines, a JSON array, csv or parquet, also with .gz, recognised by their content.
Only the hub and parquet need a package (`datasets`). A gold answer must be what the file says, so
JSON's numbers with a point stay texts unless a task wants floats, and NaN, Infinity or a name that
occurs twice is an error.
`read_prompt` reads the toml file of --prompt.
"""

import csv
import gzip
import io
import json
import os
import re
import tomllib
import zlib
from collections import namedtuple

Hub = namedtuple("Hub", "path name has_test_split", defaults=(None, True))  # as in load_dataset
CONTROL = re.compile(  # characters that no text has; JSON makes some of \frac, \text, \right
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]|\t(?=ext|imes|heta|frac)|\r(?!\n)"
)
COLUMN = re.compile(r"\{(\w+)\}")  # of a problem, in a prompt
LARGEST = 2**30  # bytes of an unpacked file: a gz of a few kilobytes can hold more


class Refused(SystemExit, ValueError):
    """One sentence for the user. A program ends with it; other code can catch the ValueError."""


def load(source, split, hub, to_problem, problem_key, gold=None, parse_float=str):
    """The problems of a source's split, a list.

    Args:
        source: "hub", or the path of a file.
        split: "train", "test", or "all" (every row of a file, in order; the hub's test split).
        hub: the task's Hub, or None.
        to_problem: row -> problem. ValueError with a reason for a row that is none.
        problem_key: problem -> text. Two problems with the same key are the same.
        gold: problem -> its answer. If it is given, problems with the same key must have the same.
        parse_float: the text of JSON's number with a point -> its value.
    Raises:
        Refused: what is wrong with the source, in one sentence for the user.
    """
    from_hub = hub and source == "hub"
    if not from_hub and not os.path.exists(source):
        hint = "; --data hub is the published data set" if hub else ""
        raise Refused(f"--data {source}: No such file{hint}")
    problems = []
    try:
        for row in read_hub(hub, split) if from_hub else read_file(source, parse_float):
            if not isinstance(row, dict):
                raise ValueError(
                    f"needs an object, {{...}}, with the task's columns; got {row!s:.200}"
                )
            problems.append(to_problem(row))
    except ImportError:
        raise Refused("reading parquet and the hub needs a package: pip install datasets") from None
    except Exception as error:  # of the disk, the network, the file's format, or the row
        raise Refused(f"--data {source}, row {len(problems) + 1}: {error}") from None
    is_split = hub.has_test_split if from_hub else split == "all"
    if problems and is_split:
        return problems
    try:
        return held_out(problems, problem_key, split, gold)
    except ValueError as error:
        raise Refused(f"--data {source}: {error}") from None


def held_out(problems, problem_key, split, gold=None):
    """The training or test split of a source, each problem once. ValueError if that cannot be.

    The tenth of the problems with the lowest hashes, at most 500, is the test split, so neither
    the seed nor the order of the rows moves a problem from one split to the other.
    """
    by_hash = {}
    for number, problem in enumerate(problems, 1):
        key = problem_key(problem)
        first = by_hash.setdefault((zlib.crc32(key.encode()), key), problem)
        if gold and gold(first) != gold(problem):
            raise ValueError(
                f"row {number} asks what an earlier row asks, but differs: {key!r:.200}"
            )
    if len(by_hash) < 2:
        raise Refused("needs 2 different problems or more, to train and to test")
    ordered = [by_hash[place] for place in sorted(by_hash)]
    size = min(500, max(1, len(ordered) // 10))
    return ordered[size:] if split == "train" else ordered[:size]


def read_hub(hub, split):
    """The rows of a published data set."""
    import datasets

    part = "test"
    if split == "train" or not hub.has_test_split:
        part = "train"
    return datasets.load_dataset(hub.path, hub.name, split=part)


def read_file(path, parse_float=str):
    """The rows of a file as dicts. Texts and numbers are as they are written."""
    with open(path, "rb") as file:
        content = file.read()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.open(io.BytesIO(content)).read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError("unpacks to more than 1 GiB")
    if content.startswith(b"version https://git-lfs"):
        raise ValueError("a pointer of git-lfs, not the file: git lfs pull")
    if content.startswith(b"PAR1"):
        import pyarrow.parquet  # comes with datasets

        return map(as_json, pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist())
    if b"\0" in content:
        raise ValueError("is UTF-16 or binary: save it as UTF-8")
    text = content.decode("utf-8-sig").strip()
    decode = json.JSONDecoder(object_pairs_hook=to_row, parse_float=parse_float).decode
    if text.startswith("["):
        return map(as_json, decode(text))
    if text.startswith("{"):
        lines = filter(str.strip, text.split("\n"))
        return map(as_json, map(decode, lines))
    return csv_rows(text)


def as_json(row):
    """A row as a run's files have it. ValueError for NaN and Infinity, which JSON lacks."""
    try:
        return json.loads(json.dumps(row, allow_nan=False, default=str))
    except ValueError:
        raise ValueError(f"NaN and Infinity are no values; got {row!s:.200}") from None


def csv_rows(text):
    """The rows below the names of the columns."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    for row in reader:
        if len(row) != len(reader.fieldnames) or None in row.values():
            raise ValueError(
                "more or fewer cells than columns (do two have one name?); a list needs quotes: "
                '"[1, 2]"'
            )
        yield row


def to_row(pairs):
    """A dict of (name, value). ValueError for a name that occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name occurs twice")
    return row


def read_prompt(path, module):
    """The Prompt of a toml file. Its fields must be of the same kinds as those of the task."""
    prompts = module.PROMPTS
    one = next(iter(prompts.values()))
    try:
        with open(path, encoding="utf-8-sig") as file:
            fields = tomllib.loads(file.read())
        prompt = module.Prompt(**fields)
        for name, value in fields.items():
            needed = kind(getattr(one, name))
            if kind(value) != needed:
                raise ValueError(f"{name} must be {needed}, not {kind(value)}")
        columns = COLUMN.findall(one.text)
        if columns and not set(columns) & set(COLUMN.findall(prompt.text)):
            raise ValueError(f"text must have a problem's columns: {{{columns[0]}}}")
        if CONTROL.search(prompt.text):
            raise ValueError(f"a control character in {prompt.text!r}; write \\\\ for a backslash")
    except (OSError, TypeError, ValueError) as error:
        names = ", ".join(prompts)
        raise Refused(f"--prompt must be a toml file or one of {names}: {path}: {error}") from None
    return prompt


def kind(value):
    """The kind of a prompt's field, in words."""
    if isinstance(value, (list, tuple)):
        kinds = list(map(kind, value))
        if set(kinds) <= {"a text"}:
            return "a list of texts"
        return f"[{', '.join(kinds)}]"
    names = {bool: "true or false", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
