"""Values of a step as JSON: type, shape, first numbers, and the row of each followed completion.

A value stands once in the table, however often a line sets it. A row is one of

    {"num": 0.5}  {"text": "..."}  {"list": [...]}     as it is
    {"tok": [...]}                                     a number for each token of the completion
    {"ids": [...]}                                     token ids, the prompt's too
    {"runs": [[0, 70], [1, 92]]}                       a mask: 70 times 0, then 92 times 1
    {"top": [[id, 0.6], ...]}                          the largest of a number for each token id
    {"at": 12}                                         a place of the table
"""

import dataclasses
import json

import torch
from lesson.rounding import rounded

from plumbing.sampler import Completion

# Names under which the lessons keep token ids: a whole number alone does not say what it is.
IDS = {"tokens", "token", "ids", "input_ids", "labels", "token_ids", "prompt_ids", "prompt"}
IDS |= {"prompts", "rows", "prompt_token_ids", "stop_ids"}
FIRST = 6  # numbers that are shown of a value
ITEMS = 14  # of a dictionary


class Group:
    """The group that is followed: which of its completions a value is about."""

    def __init__(self, number, size, groups, problem):
        self.number = number
        self.size = size
        self.groups = groups
        self.problem = problem
        self.members = {}  # id of a Completion -> its place in the group
        self.completions = []  # kept, so that no id is given away again
        self.prompt_length = 0

    def learn(self, value):
        """The sampler's result, a list of groups: from here on its completions are known."""
        if self.members or not isinstance(value, list) or not 0 < len(value) == self.groups:
            return
        if all(isinstance(g, list) and len(g) == self.size for g in value) and all(
            isinstance(c, Completion) for c in value[self.number]
        ):
            self.completions = value[self.number]
            self.members = {id(c): k for k, c in enumerate(self.completions)}

    def place(self, value):
        """Of an episode or a completion in the group, or None."""
        return self.members.get(id(getattr(value, "completion", value)))

    def who(self, value):
        """The completions that a value is about; None: it is not about completions."""
        if isinstance(value, Completion) or hasattr(value, "completion"):
            return {self.place(value)} - {None}
        if self.problem and isinstance(value, dict) and value.keys() == self.problem.keys():
            return set(range(self.size)) if value == self.problem else set()
        if isinstance(value, list) and value and self.who(value[0]) is not None:
            return set().union(*map(self.who, value))
        return None


def numbers(tensor):
    return [rounded(x) for x in tensor.detach().cpu().flatten().tolist()]


class Values:
    """The table of all values, for a group that is followed."""

    def __init__(self, group):
        self.group = group
        self.table = []
        self.places = {}  # a value's JSON -> its place

    def add(self, value, name="", whose=None, lists=(), depth=0):
        """The place of a value.

        Args:
            name: of the variable; it says whether numbers are token ids.
            whose: the completions that the line is about, if it is about some.
            lists: the lists of episodes at hand, whose order is that of a tensor's rows.
        """
        entry = self.describe(value, name, whose, lists, depth)
        rows = {}
        for k in self.group.members.values():
            if whose is not None and k not in whose:
                continue
            row = self.row(value, name, k, whose, lists, depth)
            if row is not None:
                rows[str(k)] = row
        if rows:
            entry["rows"] = rows
        text = json.dumps(entry)
        if text not in self.places:
            self.places[text] = len(self.table)
            self.table.append(entry)
        return self.places[text]

    # ---- A value as a whole

    def describe(self, value, name, whose, lists, depth):
        if isinstance(value, torch.Tensor):
            return self.describe_tensor(value, name, lists)
        if value is None or isinstance(value, bool):
            return {"type": type(value).__name__, "text": str(value)}
        if isinstance(value, (int, float)):
            key = "id" if name == "token" else "num"
            return {"type": type(value).__name__, key: rounded(value)}
        if isinstance(value, str):
            return {"type": "str", "text": value[:2000], "n": len(value)}
        if isinstance(value, slice):
            return {"type": "slice", "text": f"{value.start} to {value.stop}"}
        if isinstance(value, dict):
            return self.describe_items(value.items(), len(value), "dict", depth, whose, lists)
        if hasattr(value, "_asdict"):
            items = value._asdict().items()
            return self.describe_items(items, None, type(value).__name__, depth, whose, lists)
        if (
            dataclasses.is_dataclass(value)
            and hasattr(value, "prompt_ids")
            or isinstance(value, Completion)
        ):
            items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
            return self.describe_items(items, None, type(value).__name__, depth, whose, lists)
        if isinstance(value, (list, tuple, range)):
            return self.describe_list(value, name, whose, lists, depth)
        return describe_object(value)

    def describe_tensor(self, value, name, lists):
        entry = {"type": "tensor", "shape": list(value.shape)}
        entry["dtype"] = str(value.dtype).removeprefix("torch.")
        part = value
        for episodes in lists:
            if value.dim() == 2 and len(value) == len(episodes) and value.is_floating_point():
                part = response(value[0], episodes[0])
                entry["of"] = "the first completion's tokens"
        entry["first"] = numbers(part.flatten()[:FIRST])
        if name in IDS and not value.is_floating_point():
            entry["ids"] = entry.pop("first")
        return entry

    def describe_items(self, items, count, kind, depth, whose, lists):
        entry = {"type": kind}
        if count is not None:
            entry["n"] = count
        if depth < 3:
            entry["items"] = [
                [str(key), self.add(value, str(key), whose, lists, depth + 1)]
                for key, value in list(items)[:ITEMS]
            ]
        return entry

    def describe_list(self, value, name, whose, lists, depth):
        entry = {"type": type(value).__name__, "n": len(value)}
        if len(value) and all(isinstance(x, (int, float)) for x in value):
            whole = all(isinstance(x, int) for x in value)
            key = "ids" if name in IDS and whole else "first"
            entry[key] = [rounded(x) for x in value[:FIRST]]
        elif depth < 3:
            some = value if isinstance(value, tuple) else value[:1]
            entry["items"] = [
                [str(i), self.add(x, name, whose, lists, depth + 1)] for i, x in enumerate(some)
            ]
        return entry

    # ---- The row of one completion

    def row(self, value, name, k, whose, lists, depth):
        """What belongs to completion k, or None if the value is about no completion."""
        part = None
        many = isinstance(value, (torch.Tensor, list)) and getattr(value, "ndim", 1) > 0
        length = len(self.group.completions[k].token_ids)
        if many and not (whose == {k} and len(value) == length):
            part = self.part_of(value, k, lists)
        if part is not None:
            return self.own(part, name, k, lists, depth)
        return self.own(value, name, k, lists, depth, top=False) if whose == {k} else None

    def part_of(self, value, k, lists):
        """The row of a tensor or list that is completion k's, by its length."""
        size = len(value)
        for episodes in lists:
            places = [i for i, e in enumerate(episodes) if self.group.place(e) == k]
            if size == len(episodes):
                return value[places[0]] if places else None
            if not places:
                continue
            if size == sum(e.length for e in episodes) and isinstance(value, torch.Tensor):
                start = sum(e.length for e in episodes[: places[0]])
                return value[start : start + episodes[places[0]].length]
        return self.by_group(value, k, lists)

    def by_group(self, value, k, lists):
        """The row of a value that has one for each group, or for each completion of the step."""
        g = self.group
        groups = g.groups
        number = g.number
        for episodes in lists:
            places = [i for i, e in enumerate(episodes) if self.group.place(e) == 0]
            if places and len(episodes) % g.size == 0 and len(episodes) >= groups * g.size:
                groups = len(episodes) // g.size  # dynamic sampling draws more, in another order
                number = places[0] // g.size
        if len(value) == groups * g.size:
            return value[number * g.size + k]
        if len(value) != groups:
            return None
        row = value[number]
        if isinstance(row, torch.Tensor) and row.dim() == 1:
            return row[k if len(row) == g.size else 0] if len(row) in (1, g.size) else None
        inner = (
            isinstance(row, list) and len(row) == g.size and isinstance(row[0], (list, Completion))
        )
        return row[k] if inner or isinstance(row, list) and isinstance(row[0], Completion) else row

    def own(self, value, name, k, lists, depth, top=True):
        """A value that is completion k's own, as a row."""
        length = len(self.group.completions[k].token_ids)
        if isinstance(value, torch.Tensor):
            return self.own_tensor(value, name, length)
        if isinstance(value, (bool, int, float)):
            return {"num": rounded(value)}
        if isinstance(value, str):
            return {"text": value}
        if isinstance(value, list) and value and all(isinstance(x, (int, float)) for x in value):
            if name in IDS:
                return {"ids": value}
            values = [rounded(x) for x in value]
            return {"tok": values} if len(value) == length else {"list": values[:12]}
        # A container: its parts have rows of their own.
        return {"at": self.add(value, name, {k}, lists, depth + 1)} if top and depth < 3 else None

    def own_tensor(self, value, name, length):
        if value.dim() == 1 and len(value) == length and value.is_floating_point():
            return {"tok": numbers(value)}
        if value.dim() == 0 or value.numel() == 1:
            key = "ids" if name in IDS and not value.is_floating_point() else "num"
            single = rounded(value.item())
            return {key: [single] if key == "ids" else single}
        if value.dim() == 2:
            return {"top": largest(value[0]), "of": "the first of its tokens"}
        end = self.group.prompt_length - 1 + length
        if value.dtype == torch.bool:
            return {"runs": runs(value.tolist())}
        if name in IDS and not value.is_floating_point():
            return {"ids": value[: end + 1].tolist()}
        if len(value) in self.vocabulary:
            rising = bool((value[1:] >= value[:-1]).all())
            return {"list": numbers(value[:12])} if rising else {"top": largest(value)}
        if len(value) >= end:
            return {"tok": numbers(value[end - length : end])}
        return {"list": numbers(value[:12])}

    vocabulary = ()  # how many numbers a distribution over tokens has: with padding and without


def response(row, episode):
    """The part of a row (T,) that belongs to the completion's tokens."""
    start = len(episode.prompt_ids) - 1
    return row[start : start + episode.length] if len(row) >= start + episode.length else row


def largest(row):
    values, ids = row.float().topk(min(5, len(row)))
    return [[int(i), rounded(x)] for i, x in zip(ids, values.tolist())]


def runs(values):
    """[[value, how often], ...]"""
    found = []
    for value in values:
        if found and found[-1][0] == int(value):
            found[-1][1] += 1
        else:
            found.append([int(value), 1])
    return found


def describe_object(value):
    kind = type(value).__name__
    if isinstance(value, torch.nn.Module):
        count = sum(p.numel() for p in value.parameters())
        return {"type": kind, "text": f"{count:,} parameters"}
    if callable(value) and hasattr(value, "__name__"):
        return {"type": "function", "text": value.__name__}
    return {"type": kind}
