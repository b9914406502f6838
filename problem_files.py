"""Problems from files and from the hub, for every task: a row is read as it is written, or refused.

A task calls `load` in its `load_problems`, and says what a row has to be:

    problem_files.load(source, split, HUB, to_problem, problem_key)

Files are JSON lines, a JSON array, csv or parquet, also with .gz, recognised by their content. Only
the hub and parquet need a package (`datasets`). JSON's numbers with a point stay texts, and a name
that occurs twice is an error, because a gold answer must be what the file says.
"""

import csv
import gzip
import io
import json
import zlib
from collections import namedtuple

Hub = namedtuple("Hub", "path name has_test_split", defaults=(None, True))  # as in load_dataset


def load(source, split, hub, to_problem, problem_key):
    """The problems of a source's split, a list.

    Args:
        source: "hub", or the path of a file.
        split: "train", "test", or "all" (every row of a file, in order; the hub's test split).
        hub: the task's data set, a Hub.
        to_problem: row -> problem. ValueError with a reason for a row that is none.
        problem_key: problem -> text. Two problems with the same key are the same.
    Raises:
        ValueError: what is wrong with the source, in one sentence for the user.
    """
    problems = []
    try:
        for row in read_hub(hub, split) if source == "hub" else read_file(source):
            problems.append(to_problem(row))
    except ImportError:
        raise ValueError(
            "reading files and the hub needs a package: pip install datasets"
        ) from None
    except Exception as error:  # of the disk, the network, the file's format, or the row
        raise ValueError(f"{source}, row {len(problems) + 1}: {error}") from None
    has_splits = source == "hub" and hub.has_test_split
    if problems and (split == "all" or has_splits):
        return problems
    if len(problems) < 2:
        raise ValueError(f"{source}: needs 2 different problems or more, to train and to test")
    return held_out(problems, problem_key, split)


def held_out(problems, problem_key, split):
    """The training or test split of a source, each problem once.

    The tenth of the problems with the lowest hashes, at most 500, is the test split. So neither
    the seed nor the order of the rows moves a problem from one split to the other.
    """
    by_hash = {}
    for problem in problems:
        key = problem_key(problem)
        by_hash.setdefault((zlib.crc32(key.encode()), key), problem)
    ordered = [by_hash[place] for place in sorted(by_hash)]
    size = min(500, max(1, len(ordered) // 10))
    return ordered[:size] if split == "test" else ordered[size:]


def read_hub(hub, split):
    """The rows of a published data set."""
    import datasets

    part = "test"
    if split == "train" or not hub.has_test_split:
        part = "train"
    return datasets.load_dataset(hub.path, hub.name, split=part)


def read_file(path):
    """The rows of a file as dicts. Texts and numbers are as they are written."""
    with open(path, "rb") as file:
        content = file.read()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    if content.startswith(b"PAR1"):
        import pyarrow.parquet  # comes with datasets

        return pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
    text = content.decode("utf-8-sig").strip()
    decode = json.JSONDecoder(object_pairs_hook=to_row, parse_float=str).decode
    if text.startswith("["):
        return decode(text)
    if text.startswith("{"):
        lines = filter(str.strip, text.split("\n"))
        return map(decode, lines)
    return csv_rows(text)


def csv_rows(text):
    """The rows below the names of the columns."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    for row in reader:
        if len(row) != len(reader.fieldnames) or None in row.values():
            raise ValueError('more or fewer cells than columns; a list needs quotes: "[1, 2]"')
        yield row


def to_row(pairs):
    """A dict of (name, value). ValueError for a name that occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name occurs twice")
    return row
