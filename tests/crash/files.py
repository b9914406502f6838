"""A fault at every file that a run writes, --resume, and the same again for flipped bits.

    python tests/crash/files.py              # everything: some 175 faults, each with its resume
    python tests/crash/files.py --every 10   # each tenth

Which files a run writes is no list: an audit hook sees each one that Python opens for writing,
renames or deletes. A file that no event accounts for is an error. At the Nth of these events
    kill   kill -9, before it happens
    half   kill -9, after half a line was written into the file
    full   the disk is full from here on: the kernel refuses to write (RLIMIT_FSIZE 0)
and then the run is resumed: metrics, episodes and final weights must be bit for bit those of a run
without a fault. A full disk must end it with one sentence that names a file of the run. `flip`
changes one bit in each file of an unfinished run: the resumed one is that exact run, or a sentence
names the file.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import kill

from gsm8k_rewards import generate_problems

FAULTS = ("kill", "half", "full")
OPTIONS = (
    "--task gsm8k --steps 2 --prompts_per_step 4 --group_size 4 --max_tokens 40 --eval_problems 2 "
    "--eval_every 0 --save_every 1 --record_tokens_every 1 --kl_coef 0 --warmup_steps 0"
).split()
EVENTS = {"open", "os.rename", "os.remove", "shutil.rmtree"}


class Trace:
    """Counts what Python does to files of a directory, and meets a fault at the Nth event."""

    def __init__(self, directory, log, fault, number):
        self.directory = f"{directory}/"
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.fault = fault
        self.left = number
        self.within = False

    def __call__(self, event, args):
        if event not in EVENTS or self.within or isinstance(args[0], int):
            return
        writes = event != "open" or (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not writes or not str(args[0]).startswith(self.directory):
            return
        if event == "shutil.rmtree" and not os.path.exists(args[0]):
            return
        self.within = True
        place = str(args[1] if event == "os.rename" else args[0])
        os.write(self.log, f"{event} {os.path.relpath(place, self.directory)}\n".encode())
        self.left -= 1
        if self.left == 0:
            self.strike(event, args)
        self.within = False

    def strike(self, event, args):
        if self.fault == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        if self.fault == "half" and event == "open":
            keep = os.O_APPEND if args[2] & os.O_APPEND else os.O_TRUNC
            os.write(os.open(args[0], os.O_WRONLY | os.O_CREAT | keep), b'{"step": 1, "rew')
        os.kill(os.getpid(), signal.SIGKILL)


def traced(args, output, trace):
    """`nano_r1.py ARGS` in a process of its own, with a fault; exit code 2 for a UserError."""
    sys.addaudithook(Trace(*trace))
    from plumbing.settings import UserError

    try:
        kill.run(args, output)
    except UserError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(error, flush=True)
        os._exit(2)


def run(path, fault=None, number=0):
    """(exit code, what it printed) of a run with a fault at its Nth event, or of its resume."""
    args = kill.arguments(path, *OPTIONS, "--data", str(path.parent / "problems.jsonl"))
    trace = (str(path), f"{path}.events", fault, number)
    process = kill.forks.fork(traced, args, f"{path}.log", trace)
    process.join()
    return process.exitcode, Path(f"{path}.log").read_text(errors="replace")


def events_of(path):
    """The events of a run without a fault. Every file that it left must have had one."""
    events = Path(f"{path}.events").read_text().splitlines()
    places = {event.split(" ", 1)[1] for event in events}
    for file in path.rglob("*"):
        name = file.relative_to(path)
        seen = {str(part) for part in (name, *name.parents)} & places
        assert seen or not file.is_file(), f"{name} was written by something that is not traced"
    return events


def check_fault(whole, event, fault, number):
    path = whole.parent / f"{fault}{number}"
    code, said = run(path, fault, number)
    if fault == "full" and code != 0:  # 0: where nothing more was to be written
        last = said.strip().splitlines()[-1]
        assert code == 2 and str(path) in last and "Traceback" not in said, f"{event}: {said}"
    assert fault == "full" or code == -signal.SIGKILL, f"{event}: {said}"
    code, said = run(path)
    assert code == 0, f"{event}, {fault}, resumed: {said}"
    differ = kill.differences(whole, path)
    assert not differ, f"{event}, {fault}: {differ} differ"
    print(f"{fault} at {event}: as if it had not been", flush=True)


def check_flip(whole, file):
    path = whole.parent / f"flip_{str(file).replace('/', '_')}"
    shutil.copytree(whole, path)
    for later in ("checkpoints/step_000002", "model"):
        if not str(file).startswith(later):
            shutil.rmtree(path / later)
    content = bytearray((path / file).read_bytes())
    content[len(content) // 2] ^= 1
    (path / file).write_bytes(content)
    code, said = run(path)
    named = file.name in said
    exact = code == 0 and not kill.differences(whole, path)
    assert code in (0, 2) and (named or exact) and "Traceback" not in said, f"{file}: {said}"
    print(f"bit in {file}: {'named' if named else 'as if it had not been'}", flush=True)


def harness(out, every=1, first=0):
    """All faults, or each `every`th from the `first`. Returns how many."""
    out = Path(out)
    rows = [json.dumps(row) + "\n" for row in generate_problems("train", 24, 0)]
    (out / "problems.jsonl").write_text("".join(rows))
    whole = out / "whole"
    code, said = run(whole)
    assert code == 0, said
    events = events_of(whole)
    cases = []
    for number, event in enumerate(events, start=1):
        faults = FAULTS if event.startswith("open") else ("kill", "full")
        cases += [(check_fault, event, fault, number) for fault in faults]
    files = sorted(f.relative_to(whole) for f in whole.rglob("*") if f.is_file())
    cases += [(check_flip, file) for file in files if file.name != ".lock"]
    for check, *case in cases[first::every]:
        check(whole, *case)
    return len(cases[first::every])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        count = harness(directory, args.every, args.first)
    print(f"{count} faults, all survived")
