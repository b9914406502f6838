"""What each line of a lesson computed: the calls of one step as a tree, with the values they set.

snoop and birdseye were looked at first. Both keep the short repr of a value and nothing of a
tensor's rows, so one completion cannot be followed through them, and both keep all iterations of a
loop or the first few, not those of a group; birdseye also runs another, rewritten code. What is
needed beside `sys.settrace` is the statement of a line and its targets, which `ast` knows.
"""

import ast
import functools
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST_CALLS = 2  # that are kept where a line, or plumbing, calls the same function over and over
SAME = 3  # iterations that are kept of a loop over something else than completions


class Statements:
    """The statements of one function, numbered in the order of the file."""

    def __init__(self, function):
        self.node = function
        self.first = function.lineno
        self.all = []
        self.loops = []  # of each, the numbers of the `for`s around it
        self.bodies = {}  # of a compound statement: the numbers of its body
        body = function.body
        if ast.get_docstring(function) is not None:
            body = body[1:]
        self.collect(body, [])
        self.at = {}
        for i, node in enumerate(self.all):
            last = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno
            self.at.update(dict.fromkeys(range(node.lineno, last + 1), i))

    def collect(self, nodes, loops):
        for node in nodes:
            i = len(self.all)
            self.all.append(node)
            self.loops.append(loops)
            inner = [*loops, i] if isinstance(node, (ast.For, ast.While)) else loops
            if hasattr(node, "body"):
                self.collect(node.body, inner)
                self.bodies[i] = range(i + 1, len(self.all))
                self.collect(getattr(node, "orelse", []), loops)
                for handler in getattr(node, "handlers", []):
                    self.collect(handler.body, loops)
                self.collect(getattr(node, "finalbody", []), loops)


def functions_of(source):
    """{qualified name: `Statements`} of a file's functions, also of its classes'."""
    found = {}
    for node in ast.parse(source).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef):
                found[prefix + member.name] = Statements(member)
    return found


@functools.cache
def expression(text):
    return compile(text, "<target>", "eval")


def shown_of(node):
    """The expressions whose values a statement shows, as texts: what it sets, or tests."""
    targets = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
        targets = [node.target]
    elif isinstance(node, ast.With):
        targets = [item.optional_vars for item in node.items if item.optional_vars]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func  # a method that changes what it belongs to: batches.append(...)
        if isinstance(called, ast.Attribute) and called.attr in ("append", "setdefault", "sort"):
            targets = [called.value]
    texts = []
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        for part in parts:
            texts += [ast.unparse(x) for x in getattr(part, "elts", [part])]
    return [text for text in texts if text != "_"]


def read_of(node):
    """The settings that a statement reads, as texts: config.cliprange."""
    header = [node]
    if hasattr(node, "body"):
        header = [getattr(node, name) for name in ("test", "iter") if hasattr(node, name)]
    found = []
    for part in header:
        for inner in ast.walk(part):
            if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) == "config":
                found.append(ast.unparse(inner))
    return list(dict.fromkeys(found))


class Call:
    """One call: what it got, what its lines set, what it returned."""

    def __init__(self, name, file, parent, who):
        self.parent = parent  # another Call, or None
        self.who = who  # the followed completions that it is about; None: all
        self.statements = None  # of a function that is not of the lesson: no lines
        self.current = None  # the number of the statement that runs
        self.rounds = {}  # of each loop: its iteration, and whom that is about
        self.lists = {}  # of episodes, by name
        self.visit = None
        self.record = {
            "name": name,
            "file": file,
            "who": who,
            "args": [],
            "visits": [],
            "returns": None,
        }

    def all_lists(self):
        """Lists of episodes, the nearest first: a tensor's rows are in the order of one of them."""
        above = self.parent.all_lists() if self.parent else []
        return [*reversed(self.lists.values()), *above]

    def calls(self):
        """Where a call from here is written down; None where this line is not kept."""
        if self.statements is None:
            return self.record.setdefault("calls", [])
        return None if self.visit is None else self.visit.setdefault("calls", [])


class Tracer:
    """Records calls of `entry` and what it calls, while `active(frame)` says so."""

    def __init__(self, lessons, entry, values, active):
        self.lessons = {
            str(ROOT / name): functions_of((ROOT / name).read_text()) for name in lessons
        }
        self.entry = entry
        self.values = values
        self.active = active
        self.recording = False
        self.paused = False
        self.open = {}  # frame -> Call
        self.root = None

    def __enter__(self):
        sys.settrace(self.on_call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def pause(self):
        """Tracing makes all of Python slower: off, until the step that is recorded."""
        self.paused = True
        sys.settrace(None)

    def resume(self, frame):
        """On again, in the middle of a line of the entry's frame."""
        if not self.paused:
            return
        self.paused = False
        call = self.open[frame]
        now = call.statements.at[frame.f_lineno]
        self.recording = True
        for i, body in sorted(call.statements.bodies.items()):
            if now in body:  # the loops and the `with`s around the line
                call.current = i
                call.visit = self.begin(call, i)
                self.finish(call, frame, body[0])
        call.current = now
        call.visit = self.begin(call, now)
        frame.f_trace = self.on_line
        sys.settrace(self.on_call)

    # ---- Calls

    @functools.cache  # noqa: B019 (one tracer a run)
    def kind(self, code):
        """ "lesson", "plumbing", or None for what is of another package."""
        if code.co_filename in self.lessons:
            return "lesson" if code.co_qualname in self.lessons[code.co_filename] else None
        path = Path(code.co_filename)
        inside = path.is_relative_to(ROOT) and "site-packages" not in path.parts
        if not inside or path.is_relative_to(ROOT / "docs") or "<" in code.co_qualname:
            return None
        return "plumbing"

    def on_call(self, frame, event, _):
        code = frame.f_code
        kind = self.kind(code)
        if kind is None:
            return None
        parent = self.caller(frame, kind)
        if parent is None and (Path(code.co_filename).name, code.co_qualname) == self.entry:
            self.recording = True
            self.root = self.open[frame] = self.new_call(frame, kind, None, None)
            return self.on_line
        if not self.recording or parent is None:
            return None
        written = parent.calls()
        if written is None or not self.wanted(parent, kind, frame):
            return None
        known = [self.values.group.who(value) for _, value in arguments(frame)]
        known = [who for who in known if who is not None]
        who = parent.visit["who"] if parent.visit else parent.who
        who = set.intersection(*known) if known else who
        self.open[frame] = call = self.new_call(frame, kind, parent, who)
        written.append(call.record)
        if kind == "plumbing":
            frame.f_trace_lines = False
        return self.on_line

    def caller(self, frame, kind):
        """The nearest call above that is recorded; of plumbing's functions only the lesson's."""
        frame = frame.f_back
        while frame and frame not in self.open:
            if kind == "plumbing" and self.kind(frame.f_code):
                return None
            frame = frame.f_back
        return self.open.get(frame)

    def wanted(self, parent, kind, frame):
        """Of many calls by one line the first ones are kept, and those about the group."""
        if parent.statements is None and kind == "plumbing":
            return False  # below plumbing's first function nothing of it is shown
        about = parent.record if parent.statements is None else parent.visit
        counts = about.setdefault("called", {})
        name = frame.f_code.co_qualname
        counts[name] = counts.get(name, 0) + 1
        known = [self.values.group.who(value) for _, value in arguments(frame)]
        return counts[name] <= FIRST_CALLS or any(known)

    def new_call(self, frame, kind, parent, who):
        code = frame.f_code
        file = str(Path(code.co_filename).relative_to(ROOT))
        call = Call(code.co_qualname, file, parent, who)
        if kind == "lesson":
            call.statements = self.lessons[code.co_filename][code.co_qualname]
        else:
            call.record["doc"] = first_line(frame)
        for name, value in arguments(frame):
            call.record["args"].append([name, self.value(call, name, value, who)])
        return call

    def value(self, call, name, value, who):
        self.values.group.learn(value)
        if isinstance(value, list) and value and hasattr(value[0], "per_token"):
            call.lists.pop(name, None)
            call.lists[name] = list(value)
        return self.values.add(value, last_name(name), who, call.all_lists())

    # ---- Lines

    def on_line(self, frame, event, arg):
        call = self.open[frame]
        if event == "line" and call.statements is not None:
            if call is self.root:
                self.recording = self.active(frame)
            following = call.statements.at.get(frame.f_lineno)
            if following != call.current and following is not None:
                self.finish(call, frame, following)
                call.current = following
                call.visit = self.begin(call, following)
        elif event == "return":
            self.finish(call, frame, None, arg)
            call.record["returns"] = self.value(call, "", arg, call.who)
            del self.open[frame]
        return self.on_line

    def begin(self, call, i):
        """A visit of statement i, or None if it is not kept."""
        if i in call.statements.bodies and i in call.rounds:
            call.rounds[i][0] += 1
        elif isinstance(call.statements.all[i], (ast.For, ast.While)):
            call.rounds[i] = [0, None]
        who = call.who
        for loop in call.statements.loops[i]:
            at, about = call.rounds.get(loop, [0, None])
            many = at >= SAME and call is not self.root  # whose loop is over the steps
            if at and (many if about is None else not about):
                return None
            who = who if about is None else about
        return {"s": i, "who": who}

    def finish(self, call, frame, following, result=None):
        """Write down what the statement has set, now that the next one begins."""
        i = call.current
        if i is None:
            return
        node = call.statements.all[i]
        inside = following in call.statements.bodies.get(i, ())
        visit = call.visit
        if isinstance(node, (ast.For, ast.While, ast.With)) and not inside:
            call.rounds.pop(i, None)  # the loop's end, or the way out of a `with`
            return
        names = shown_of(node)
        if isinstance(node, ast.For):
            found = [self.values.group.who(self.get(frame, name)) for name in names]
            found = [who for who in found if who is not None]
            call.rounds[i][1] = set.intersection(*found) if found else call.rounds[i][1]
            if found and visit:
                visit["who"] = call.rounds[i][1]
            at, about = call.rounds[i]
            if at and not about and (found or at >= SAME and call is not self.root):
                return
        if visit is None or not self.recording:
            return
        loops = call.statements.loops[i][call is self.root :]  # without the one over the steps
        visit["times"] = [call.rounds.get(loop, [0])[0] for loop in loops]
        visit["set"] = [[n, self.value(call, n, self.get(frame, n), visit["who"])] for n in names]
        reads = [[n, self.value(call, n, self.get(frame, n), None)] for n in read_of(node)]
        if reads:
            visit["read"] = reads
        if isinstance(node, ast.If):
            visit["taken"] = inside
        if isinstance(node, ast.Return):
            visit["set"] = [["return", self.value(call, "return", result, visit["who"])]]
        call.record["visits"].append(visit)

    @staticmethod
    def get(frame, text):
        return eval(expression(text), frame.f_globals, frame.f_locals)


def last_name(target):
    """What a target is called: labels of batch['labels'], tokens of tokens[i, :3]."""
    quoted = re.findall(r"'(\w+)'", target)
    return quoted[-1] if quoted else target.partition("[")[0].split(".")[-1]


def arguments(frame):
    """[(name, value), ...] of what a function was called with."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = [name for name in code.co_varnames[:count] if name != "self"]
    return [(name, frame.f_locals[name]) for name in names]


def first_line(frame):
    """The first sentence of a function's docstring, or of its class's."""
    code = frame.f_code
    text = code.co_consts[0] if code.co_consts and isinstance(code.co_consts[0], str) else ""
    if code.co_name == "__init__":
        text = type(frame.f_locals["self"]).__doc__ or ""
    return inspect.cleandoc(text).split("\n\n")[0].replace("\n", " ")
