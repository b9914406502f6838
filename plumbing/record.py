"""The record of a run: its directory, and through it the console, the curves and wandb.

`out/NAME/` holds config.json, metrics.jsonl (one object a step), episodes/ (every completion with
its reward), tokens/ (the same by token), held_out/ (the same few problems at each evaluation),
curves.png, checkpoints/, and at the end model/ and report.html; of --eval_only, evaluation.json
and episodes/.
"""

import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np
import torch.distributed as dist

from plumbing import console, curves, report, systems, token_record
from plumbing.checkpoints import RECORD, changed_files
from plumbing.evaluation import measure_step
from plumbing.files import atomic_write, numbered, read_rows, remove, write_text, writing
from plumbing.problems import overlap
from plumbing.processes import all_gather_object, broadcast, shutdown_hooks
from plumbing.settings import UserError
from plumbing.timing import take_seconds
from plumbing.waiting import tell, waiting

HELD_OUT = 8  # problems whose completions are kept at each evaluation


def open_directory(config):
    """Make the run's directory and lock it until the run ends. Returns its path. UserError."""
    name = getattr(config, "label", config.task)
    name = f"eval-{name}" if getattr(config, "eval_only", False) else name
    name = config.name or f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = config.resume or os.path.join(config.out, name)
    while not (config.resume or config.name) and os.path.exists(path):
        path += "_"  # another run of the same second
    with writing(path):
        os.makedirs(path, exist_ok=True)
        lock = open(os.path.join(path, ".lock"), "w")
    shutdown_hooks.append(lock.close)  # unlocks it; so does the kernel if the process is killed
    try:
        systems.lock(lock)
    except systems.LOCKED:
        raise UserError(f"{path} is of a run that is still going on; take a --name.") from None
    if not config.resume and os.path.exists(os.path.join(path, "config.json")):
        raise UserError(f"{path} exists: --resume {path} resumes it; or take another --name.")
    return path


class RunLog:
    """The record of a run. Only the first process writes."""

    current = None  # the one of this process's run

    def __init__(self, config, panels=curves.PANELS):
        self.config = config
        self.first = dist.get_rank() == 0
        (self.path,) = broadcast(open_directory(config) if self.first else None)
        RunLog.current = self
        self.metrics_file = os.path.join(self.path, "metrics.jsonl")
        self.checkpoints = os.path.join(self.path, "checkpoints")
        self.model = os.path.join(self.path, "model")
        self.records = []  # of metrics.jsonl
        self.bad_steps = 0  # in a row
        self.tokens_every = 0
        self.wandb = None
        self.panels = panels
        self.task = None  # of the problems; known once the run starts
        self.headed = False  # whether the names of the columns stand above the next step
        self.left = ""  # time of the steps to come, in words
        self.in_notebook = curves.in_notebook()
        self.shown = None  # the curves below the notebook's cell
        self.draw_at = 0.0  # s
        if self.first:
            settings = {**dataclasses.asdict(config), "resume": None}
            if getattr(config, "functions", ""):  # of one's own, for --resume
                settings["functions"] = config.functions
            write_text(os.path.join(self.path, "config.json"), json.dumps(settings, indent=2), True)
            self.wandb = start_wandb(config, self.path) if config.wandb != "off" else None

    def start(self, policy, task, data):
        """Say what will be run; decide whether tokens are recorded, and write down their text."""
        if not self.config.eval_only:
            self.tokens_every = token_record.tokens_every(self.config, policy)
        if self.tokens_every and self.first:
            vocabulary = token_record.vocabulary(task.tokenizer)
            text = json.dumps(vocabulary, ensure_ascii=False)
            write_text(os.path.join(self.path, "vocabulary.json"), text)
        header = console.header(self.config, policy, task, data)
        self.begin(f"{header}{overlap(task, data)}", task, data.eval)

    def start_tuning(self, examples, left_out, task, problems):
        """Say what will be tuned."""
        task.seconds = self.config.reward_seconds
        text = console.tuning_header(self.config, examples, left_out, task, problems)
        self.begin(text, task, problems)

    def begin(self, text, task, problems):
        """Print the header; from here on completions that take too long are kept."""
        task.directory = self.path
        self.task = task
        tell(f"{text}\nrecord: {self.path}")
        if not self.config.resume and not getattr(self.config, "eval_only", False):
            waiting(f"evaluating {len(problems)} problems before training")

    def rewind(self, step):
        """Delete what was recorded after `step`, since those steps run again; at 0 all."""
        again = "" if step else ": there is no checkpoint yet; the same seed gives the same steps"
        tell(f"Resuming after step {step}{again}.\n")
        take_seconds()  # of a run before, in the same notebook
        if not self.first:
            return
        self.records = [
            r for r in read_rows(self.metrics_file) if step and r.get("step", step + 1) <= step
        ]
        lines = "".join(json.dumps(record) + "\n" for record in self.records)
        write_text(self.metrics_file, lines)
        for folder in ("", "episodes", "held_out", "tokens", "checkpoints"):
            folder = os.path.join(self.path, folder)
            for number, path in numbered(folder).items():
                if number > step or not step:  # a later checkpoint was skipped: it is damaged
                    remove(path)
            for half in Path(folder).glob(".*.tmp"):  # of an interrupted write
                remove(half)
        listing = os.path.join(self.checkpoints, f"step_{step:06d}", "record.json")
        for name in changed_files(self.path, listing, RECORD) if step else ():
            tell(f"WARNING: {self.path}/{name} is missing, cut short or changed.")

    def is_due(self, step, what):
        """Whether "tokens", an "evaluation" or a "checkpoint" is due after `step`."""
        if what == "tokens":  # of the first step, and of every Nth from there
            return self.tokens_every > 0 and (step - 1) % self.tokens_every == 0
        if what == "checkpoint" and not self.config.save_every:
            return False
        every = self.config.eval_every if what == "evaluation" else self.config.save_every
        return step == self.config.steps or every > 0 and step % every == 0

    # ---- Of a step

    def save_step(self, step, lr, episodes, update):
        """Print the step's line and save its episodes and tokens; returns its metrics.

        If an update was not finite, its episodes are kept with their token ids as well.
        """
        measured = measure_step(episodes, self.config, update)
        metrics = {"step": step, "lr": lr, **measured, **take_seconds()}
        name = f"step_{step:06d}"
        self.save_episodes(f"episodes/{name}", episodes)
        if self.is_due(step, "tokens"):
            self.save_tokens(f"tokens/{name}.npz", episodes)
        if metrics["bad_updates"]:
            self.save_episodes(f"bad_{name}", episodes, token_ids=True)
        self.print_step(metrics, f": the batches are in {self.path}/bad_step_*.jsonl")
        return metrics

    def print_step(self, metrics, batches=""):
        """A line, and warnings. UserError after --max_bad_steps steps in a row without update.

        `batches`: the end of that sentence, where it says in which files they are.
        """
        # At the mean of the last ten steps; evaluations are not counted.
        recent = [r["time/step"] for r in [*self.records, metrics][-10:] if "time/step" in r]
        seconds = (self.config.steps - metrics["step"]) * sum(recent) / len(recent)
        self.left = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        tell(console.step_line(metrics, self.config, self.left, self.headed))
        self.headed = True  # until an evaluation
        if self.is_due(metrics["step"], "evaluation"):
            waiting(f"evaluating {self.config.eval_problems} problems")
        self.bad_steps = self.bad_steps + 1 if metrics["bad_updates"] else 0
        if self.bad_steps == self.config.max_bad_steps:
            raise UserError(f"{self.bad_steps} steps in a row were not finite{batches}.")

    def save_episodes(self, name, episodes, token_ids=False):
        """Every process's episodes, in one file of the run's directory."""
        # A part of the loss is of one optimizer step on one process: here it is of the whole step.
        losses = dist.get_world_size() * getattr(self.config, "minibatches", 1)
        rows = []
        for e in episodes:
            scored = [name for name in ("kl", "entropy") if len(e.measured.get(name, ()))]
            row = {
                "problem": e.problem,
                "completion": e.text,
                "reward": e.reward.total,
                "format_reward": e.reward.format,
                "answer_reward": e.reward.answer,
                "why": e.reward.why,
                "advantage": e.advantage,
                "loss": e.measured["loss"] / losses if "loss" in e.measured else None,
                "length": e.length,
                "prompt_length": len(e.prompt_ids),
                "finish_reason": e.completion.finish_reason,
            }
            row |= {name: e.measured[name].mean().item() for name in scored}  # over its tokens
            more = {"prompt_ids": e.prompt_ids, **dataclasses.asdict(e.completion)}
            rows.append(json.dumps({**row, **(more if token_ids else {})}) + "\n")
        parts = all_gather_object("".join(rows))
        if self.first:
            write_text(os.path.join(self.path, f"{name}.jsonl"), "".join(parts))

    def save_tokens(self, name, episodes):
        """Every process's tokens, in one file; plumbing/token_record.py says what is in it."""
        parts = all_gather_object(token_record.token_arrays(episodes, self.config))
        if self.first:
            with atomic_write(os.path.join(self.path, name)) as hidden, open(hidden, "wb") as file:
                np.savez_compressed(file, **token_record.join(parts))

    def write_metrics(self, metrics):
        """Append to metrics.jsonl; draw the curves after an evaluation."""
        take_seconds()  # an evaluation is no part of the next step
        if not self.first:
            return
        self.records.append(metrics)
        with writing(self.metrics_file), open(self.metrics_file, "a") as file:
            file.write(json.dumps(metrics) + "\n")
        if self.wandb:
            self.wandb.log(metrics, step=metrics["step"])
        # After each evaluation, in a notebook every ten seconds.
        waited = self.in_notebook and time.monotonic() > self.draw_at
        if metrics["step"] and ("eval/pass@1" in metrics or waited):
            of = f"{self.config.model} on {self.config.task}"
            title = f"{of}: step {metrics['step']} of {self.config.steps}, {self.left} left"
            path = os.path.join(self.path, "curves.png")
            self.shown = curves.draw(self.records, path, title, self.panels, self.shown)
            self.draw_at = time.monotonic() + 10

    # ---- Evaluations

    def save_evaluation(self, step, metrics, episodes):
        """Print it; keep the completions of the first problems."""
        held_out = range(dist.get_rank(), HELD_OUT, dist.get_world_size())  # of this process
        self.save_episodes(f"held_out/step_{step:06d}", episodes[: len(held_out)])
        tell(console.evaluation_text(step, metrics, episodes, self.task))
        self.headed = False

    def evaluate_only(self, evaluate):
        """--eval_only: greedy and sampled, on the console, in evaluation.json, and as episodes."""
        results = {}
        sampled = (self.config.eval_samples, self.config.temperature)
        for name, (n, temperature) in {"greedy": (1, 0.0), "sampled": sampled}.items():
            waiting(f"evaluating {self.config.eval_problems} problems, {name}")
            results[name], episodes = evaluate(n, temperature)
            self.save_episodes(f"episodes/{name}", episodes)
        if self.first:
            write_text(os.path.join(self.path, "evaluation.json"), json.dumps(results, indent=2))
        tell(console.evaluation_table(results) + f"; completions: {self.path}/episodes")
        return self.path

    def finish(self, stopped):
        """Write the report; print the result, or how to resume a run that was stopped."""
        if self.first and self.config.report:
            waiting("writing the report")
            report.write([self.path])
        if not stopped:
            tell(console.summary(self.records, self.path, self.config.report))
        elif self.first:
            tell(f"Saved after step {self.records[-1]['step']}: --resume {self.path} goes on.")


def start_wandb(config, path):
    """A run of Weights & Biases. Raises UserError."""
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    if config.wandb == "online" and not wandb.login(prompt=False):
        raise UserError("--wandb online needs `wandb login` first; --wandb offline no account.")
    settings = {"mode": config.wandb, "dir": path, "config": dataclasses.asdict(config)}
    return wandb.init(project="nano_r1", name=os.path.basename(os.path.normpath(path)), **settings)
