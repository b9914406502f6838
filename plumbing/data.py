"""Problems from files and from the hub: rows of jsonl, json, csv, parquet or arrow, read by `datasets`; held-out rows.
A module of its own because nano_sft.py reads its rows with it, too.
Whatever is wrong with a source becomes one sentence, a ValueError."""

import gzip
import json
import os
import random
import re
import zlib

HELD_OUT = 500  # problems kept for the test split of a hub or file source
FILE_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}


def load_rows(source, columns, hub, split="train"):
    """Rows of a local file (see FILE_READERS; also with .gz) or of a hub data set, read by `datasets`.

    Args:
        source: a file's path, or "hub".
        columns: the names that must be there; "nums|numbers" is one of two.
        hub: what `datasets.load_dataset` calls the set, as keyword arguments, e.g. {"path": "openai/gsm8k"}.
        split: of the hub's set; a file is one split.
    Raises:
        ValueError: one sentence for the user: no such file, unreadable, a missing column, no rows, no network.
    """
    if source == "hub" and hub is None:
        raise ValueError("--data must be a file here: no hub data set has these columns.")
    import datasets  # heavy: imported only when a file or the hub is asked for

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what goes wrong is said below, in one sentence
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # or reading a local file waits for the network
    if source != "hub":
        if os.path.isdir(source):
            raise ValueError(f"{source} is a directory: name one of its files.")
        if not os.path.isfile(source):
            raise ValueError(f"No such data file: {source}.")
        reader = FILE_READERS.get(os.path.splitext(source.lower().removesuffix(".gz"))[1])
        if reader is None:
            raise ValueError(f"{source}: the name must end in one of {', '.join(FILE_READERS)}, or in that and .gz.")
        if os.path.getsize(source) == 0:
            raise ValueError(f"{source} is empty.")
    try:
        if source == "hub":
            rows = datasets.load_dataset(**hub, split=split)
        else:
            rows = datasets.load_dataset(reader, data_files=source, split="train")
        names, rows = rows.column_names, list(rows)  # bytes become text only here
    except Exception as error:  # what `datasets` raises differs by reader, version and network
        error = error.__cause__ or error
        if isinstance(error, StopIteration) or "corresponds to no data" in str(error):
            raise ValueError(f"{source} has no rows.") from None
        if source == "hub":
            hint = "(is there a network? `--data FILE` reads a local copy)"
            raise ValueError(f"The hub data set {hub['path']} could not be read: {first_line(error)} {hint}") from None
        raise ValueError(f"{source} could not be read: {broken_line(source) or first_line(error)}") from None
    missing = [name.replace("|", " or ") for name in columns if not set(name.split("|")) & set(names)]
    if missing:
        raise ValueError(f"{source} has columns {names}; {' and '.join(missing)} missing.")
    if not rows:
        raise ValueError(f"{source} has no rows.")
    return rows


def broken_line(path):
    """What is wrong with which line of a jsonl file (its readers count from 0, or bytes); None if that is not it."""
    if ".jsonl" not in path.lower():
        return None
    number = 0
    try:
        with (gzip.open if path.lower().endswith(".gz") else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007 (used in the except clause)
                if line.strip():
                    json.loads(line)
    except json.JSONDecodeError as error:
        return f"JSON parse error in line {number}: {error.msg} at character {error.colno}"
    except (OSError, EOFError, ValueError, zlib.error):  # not gzip, not UTF-8
        pass
    return None


def read_problems(split, source, seed, columns, to_problem, hub=None, hub_has_test=True):
    """The problems of one split of a file or of a hub data set: what a task's `load_problems` returns for a source.

    Args:
        split: "train", "test", or "all" (an evaluation set: every row of a file, or the hub's test split).
        source, columns, hub: as for `load_rows`.
        seed: of the shuffle that picks the held-out rows where the source has no test split of its own.
        to_problem: a row (dict) -> the problem (dict), or a ValueError that says what was expected.
    Raises:
        ValueError: one sentence saying which file, which row, what was expected.
    """
    own_splits = source == "hub" and hub_has_test
    rows = load_rows(source, columns, hub, "test" if own_splits and split != "train" else "train")
    problems = []
    for number, row in enumerate(rows, start=1):
        try:
            problems.append(to_problem(row))
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise ValueError(f"{source}, row {number}: {error}.") from None
    return problems if own_splits else hold_out(problems, split, source, seed)


def text_column(row, name, longest):
    """The text that a row has under `name`; ValueError if it is no text, blank, or longer than that many characters."""
    text = row[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"expected text as {name}, got {text!r:.80}")
    if len(text) > longest:
        raise ValueError(f"expected at most {longest:,} characters as {name}, got {len(text):,}")
    return text


def whole_number(row, name):
    """An int from 19, 19.0 or "19"; ValueError for anything else (3.5, nan, True)."""
    try:
        number = float(row[name])
        if number.is_integer() and not isinstance(row[name], bool):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"expected a whole number as {name}, got {row[name]!r:.80}")


def whole_numbers(row, name):
    """A list of one int or more from a list, or from a text such as "[19, 36]", "[19 36]" or "19,36"."""
    numbers = row[name]
    if isinstance(numbers, str):
        text = re.fullmatch(r"\s*(?:\[([^][]*)\]|([^][]*,[^][]*))\s*", numbers)
        numbers = re.findall(r"[^\s,\"']+", text[1] or text[2]) if text else None
    if not isinstance(numbers, list) or not numbers:
        raise ValueError(f"expected a list of whole numbers as {name}, got {row[name]!r:.80}")
    return [whole_number({name: number}, name) for number in numbers]


def hold_out(problems, split, source, seed):
    """One split of a source that has none of its own: HELD_OUT problems (at most a tenth) are kept for the test."""
    if split == "all":
        return problems
    problems = problems.copy()
    random.Random(f"held out {seed}").shuffle(problems)
    held_out = min(HELD_OUT, max(1, len(problems) // 10))
    if len(problems) <= held_out:
        raise ValueError(f"{source} has {len(problems)} row: at least 2 are needed, to train on and to test on.")
    return problems[:held_out] if split == "test" else problems[held_out:]


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
