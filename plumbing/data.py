"""Problems from files and from the hub: rows of jsonl, json, csv, parquet or arrow; held-out rows.

A module of its own because nano_sft.py reads its rows with it, too. Whatever is wrong with a source
becomes one sentence, a ValueError.
"""

import functools
import gzip
import json
import os
import random
import re

from tqdm import tqdm

HELD_OUT = 500  # problems kept for the test split of a hub or file source
JSON_FILES = (".jsonl", ".json")  # read here: exact whole numbers, and no import that takes seconds
OTHER_FILES = {".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}  # `datasets` reads these


def with_bar(items, what):
    """The items, with a progress bar where they take some seconds; nothing of it stays."""
    return tqdm(items, desc=f"reading {what}", delay=3, leave=False)


def load_rows(source, columns, hub, split="train"):
    """Rows of a local file (JSON_FILES, OTHER_FILES; also with .gz) or of a hub data set.

    Args:
        source: a file's path, or "hub".
        columns: the names that must be there; "nums|numbers" is one of two.
        hub: what `datasets.load_dataset` calls the set: {"path": "openai/gsm8k"}, or None.
        split: of the hub's set; a file is one split.
    Raises:
        ValueError: one sentence for the user: no such file, unreadable, a missing column, no rows,
            no network.
    """
    rows = hub_rows(hub, split) if source == "hub" else file_rows(source)
    if not rows:
        raise ValueError(f"{source} has no rows.")
    if "reward_model" in rows[0]:
        rows = [unnest(row) for row in rows]
    names = list(rows[0])
    missing = [name for name in columns if not set(name.split("|")) & set(names)]
    if missing:
        needed = " and ".join(missing).replace("|", " or ")
        raise ValueError(f"{source} has columns {names}; {needed} missing.")
    return rows


def hub_rows(hub, split):
    if hub is None:
        raise ValueError("--data must be a file here: no hub data set has these columns.")
    try:
        return list(import_datasets().load_dataset(**hub, split=split))
    except Exception as error:  # what `datasets` raises differs by version and network
        what = f"The hub data set {hub['path']} could not be read"
        hint = "(is there a network? `--data FILE` reads a local copy)"
        raise ValueError(f"{what}: {first_line(error)} {hint}") from None


def file_rows(path):
    if os.path.isdir(path):
        raise ValueError(f"{path} is a directory: name one of its files.")
    if not os.path.isfile(path):
        raise ValueError(f"No such data file: {path}.")
    ending = os.path.splitext(path.lower().removesuffix(".gz"))[1]
    if ending not in (*JSON_FILES, *OTHER_FILES):
        known = ", ".join([*JSON_FILES, *OTHER_FILES])
        raise ValueError(f"{path}: the name must end in one of {known}, or in that and .gz.")
    if os.path.getsize(path) == 0:
        raise ValueError(f"{path} is empty.")
    try:
        if ending in JSON_FILES:
            return json_rows(path)
        reader = OTHER_FILES[ending]
        return list(import_datasets().load_dataset(reader, data_files=path, split="train"))
    except Exception as error:  # gzip, UTF-8, JSON, and what `datasets` raises
        error = error.__cause__ or error
        if isinstance(error, StopIteration) or "corresponds to no data" in str(error):
            raise ValueError(f"{path} has no rows.") from None
        raise ValueError(f"{path} could not be read: {first_line(error)}") from None


def import_datasets():
    """The package `datasets`, silent: what goes wrong is said here, in one sentence."""
    import datasets  # heavy: imported only when it is needed

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # or reading a local file waits for a network
    return datasets


def json_rows(path):
    """The rows of a JSON file: an array of objects, or one object a line. All have all columns."""
    opened = gzip.open if path.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        text = file.read()
    try:
        value = parse_json(text) if text.strip() else []
        rows = value if isinstance(value, list) else [value]
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":  # behind the first value: there is one a line
            raise
        lines = enumerate(with_bar(text.split("\n"), path), start=1)
        rows = [json_line(line, number) for number, line in lines if line.strip()]
    names = {}
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"expected a row as {{...}}, got {row!r:.80}")
        names |= dict.fromkeys(row)
    return [names | row for row in rows]


def parse_json(text):
    """The value of a text; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too many brackets within brackets") from None


def json_line(line, number):
    """The value of one line; an error counts lines as an editor does."""
    try:
        return parse_json(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {getattr(error, 'msg', error)}") from None


def unnest(row):
    """A row of verl's form, its parts as columns: `extra_info`, `reward_model`, `prompt`.

    The answer is reward_model's `ground_truth` (a dict there gives columns of its own); the
    question is extra_info's, or else the last message of the prompt.
    """
    truth = (row.get("reward_model") or {}).get("ground_truth")
    messages = row.get("prompt")
    question = messages[-1].get("content") if isinstance(messages, list) and messages else messages
    columns = {"question": question, "problem": question}
    columns |= {name: value for name, value in (row.get("extra_info") or {}).items() if value}
    columns |= truth if isinstance(truth, dict) else {"answer": truth}
    return columns | {name: value for name, value in row.items() if value is not None}


def as_text(problem):
    """A problem's columns as one text."""
    return json.dumps(problem, sort_keys=True, default=str)


def read_problems(
    split, source, seed, columns, to_problem, hub=None, hub_has_test=True, key=as_text
):
    """The problems of one split of a file or of a hub data set: a task's `load_problems`.

    Args:
        split: "train", "test", or "all" (a file's rows, or the hub's test split).
        source, columns, hub: as for `load_rows`.
        seed: of the shuffle that picks the held-out rows of a source without a test split.
        to_problem: a row (dict) -> the problem (dict), or a ValueError that says what was expected.
        key: a problem -> what two rows that are the same problem have in common.
    Raises:
        ValueError: one sentence saying which file, which row, what was expected.
    """
    own_splits = source == "hub" and hub_has_test
    hub_split = "test" if own_splits and split != "train" else "train"
    version = (os.path.getmtime(source), os.path.getsize(source)) if os.path.isfile(source) else 0
    hub = tuple(hub.items()) if hub else None
    problems = all_problems(source, version, tuple(columns), to_problem, hub, hub_split)
    return list(problems) if own_splits else hold_out(problems, split, source, seed, key)


@functools.lru_cache(maxsize=2)  # --data and --eval_data: each is read once in a run
def all_problems(source, version, columns, to_problem, hub, split):
    """Every problem of a source; `version` tells whether a file has changed since."""
    rows = load_rows(source, columns, dict(hub) if hub else None, split)
    problems = []
    for number, row in enumerate(with_bar(rows, f"rows of {source}"), start=1):
        try:
            problems.append(to_problem(row))
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise ValueError(f"{source}, row {number}: {error}.") from None
    return problems


def text_column(row, name, longest):
    """The text that a row has under `name`; ValueError if it is no text, blank, or too long."""
    text = row[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"expected text as {name}, got {text!r:.80}")
    if len(text) > longest:
        raise ValueError(f"expected at most {longest:,} characters as {name}, got {len(text):,}")
    return text


def whole_number(row, name):
    """An int from 19, 19.0 or "19", of any size; ValueError for anything else (3.5, nan, True)."""
    value = row[name]
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9]{1,1000}(?:\.0*)?\s*", value):
        return int(value.partition(".")[0])
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"expected a whole number as {name}, got {value!r:.80}")


LIST_IN_A_TEXT = re.compile(r"\s*(?:\[([^][]*)\]|\(([^()]*)\)|([^][()]*[\s,][^][()]*))\s*")


def whole_numbers(row, name):
    """A list of one int or more, also from a text: "[19, 36]", "(19, 36)", "19,36", "19 36"."""
    numbers = row[name]
    if isinstance(numbers, str):
        text = LIST_IN_A_TEXT.fullmatch(numbers.strip())
        numbers = re.findall(r"[^\s,\"']+", next(filter(None, text.groups()), "")) if text else None
    if not isinstance(numbers, list) or not numbers:
        raise ValueError(f"expected a list of whole numbers as {name}, got {row[name]!r:.80}")
    return [whole_number({name: number}, name) for number in numbers]


def hold_out(problems, split, source, seed, key):
    """One split of a source that has none of its own: a tenth, at most HELD_OUT, for the test.

    A problem that is held out is not trained on where the file repeats it, either.
    """
    problems = list(problems)
    if split == "all":
        return problems
    random.Random(f"held out {seed}").shuffle(problems)
    size = min(HELD_OUT, max(1, len(problems) // 10))
    held_out = problems[:size]
    keys = {key(problem) for problem in held_out}
    training = [problem for problem in problems[size:] if key(problem) not in keys]
    if not training:
        needed = "at least 2 different problems are needed, to train on and to test on"
        raise ValueError(f"{source}, with {len(problems)} row(s): {needed}.")
    return held_out if split == "test" else training


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
