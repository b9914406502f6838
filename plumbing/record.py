"""The record of a run: its directory, the console, the curves.

`out/NAME/` holds config.json, metrics.jsonl (one object a step), episodes/ (every completion with its reward), tokens/
(the same by token), held_out/ (the same few problems at each evaluation), curves.png, checkpoints/, and at the end
model/ and report.html; of --eval_only, evaluation.json and episodes/.
"""

import dataclasses
import json
import math
import os
import time

import numpy as np
import torch.distributed as dist

from plumbing import curves, report, token_record
from plumbing.checkpoints import atomic_write, list_checkpoints, remove, writing
from plumbing.evaluation import measure_step
from plumbing.health import health_warnings
from plumbing.live import LiveCurves, in_notebook
from plumbing.memory import describe_memory
from plumbing.models import stop_token_ids
from plumbing.processes import broadcast
from plumbing.settings import UserError
from plumbing.start import check_new
from plumbing.timing import take_seconds

HELD_OUT = 8  # problems whose completions are kept at each evaluation


def quoted(text):
    """Put a bar before each line, to tell text of the model from output of the program."""
    return "\n".join(f"  | {line}" for line in text.splitlines())


class RunLog:
    """The run's directory and the console. Only the first process writes."""

    def __init__(self, config, panels=curves.PANELS):
        now = time.strftime("%Y%m%d-%H%M%S")  # the clocks of two processes may differ by a second
        label = getattr(config, "label", config.task)
        label = f"eval-{label}" if getattr(config, "eval_only", False) else label
        (name,) = broadcast(config.name or f"{label}-{now}")
        self.path = config.resume or os.path.join(config.out, name)
        self.first, self.config, self.panels, self.wandb = (
            dist.get_rank() == 0,
            config,
            panels,
            None,
        )
        self.metrics_file = os.path.join(self.path, "metrics.jsonl")
        self.checkpoints = os.path.join(self.path, "checkpoints")
        self.model = os.path.join(self.path, "model")
        self.live = (
            LiveCurves(f"{config.model} on {config.task}", panels)
            if self.first and in_notebook()
            else None
        )
        self.bad_steps, self.tokens_every = 0, 0  # bad steps in a row
        if not self.first:
            return
        if not config.resume:
            check_new(self.path)
        if config.wandb != "off":
            self.start_wandb(name)
        with writing(self.path):
            os.makedirs(os.path.join(self.path, "episodes"), exist_ok=True)
        self.write(
            "config.json", json.dumps({**dataclasses.asdict(config), "resume": None}, indent=2)
        )

    def start_wandb(self, name):
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        if self.config.wandb == "online" and not wandb.login(prompt=False):
            raise UserError(
                "--wandb online needs an account: run `wandb login` first, or take --wandb offline."
            )
        os.makedirs(self.path, exist_ok=True)
        settings = {
            "mode": self.config.wandb,
            "dir": self.path,
            "config": dataclasses.asdict(self.config),
        }
        self.wandb = wandb.init(project="nano_r1", name=name, **settings)

    def is_due(self, step, what):
        """Whether "tokens", an "evaluation" or a "checkpoint" is due after `step`."""
        if what == "tokens":  # of the first step, and of every Nth from there
            return self.tokens_every > 0 and (step - 1) % self.tokens_every == 0
        if what == "checkpoint" and not self.config.save_every:
            return False
        every = self.config.eval_every if what == "evaluation" else self.config.save_every
        return step == self.config.steps or every > 0 and step % every == 0

    # ---- Files

    def write(self, name, text):
        """Write a file of the run's directory atomically."""
        flush = name == "config.json"
        with (
            atomic_write(os.path.join(self.path, name), flush) as hidden,
            open(hidden, "w") as file,
        ):
            file.write(text)

    def records(self):
        """The objects of metrics.jsonl."""
        if not os.path.exists(self.metrics_file):
            return []
        with open(self.metrics_file) as file:
            return [
                json.loads(line) for line in file if line.endswith("\n")
            ]  # the last line may be incomplete

    def write_metrics(self, metrics):
        """Append to metrics.jsonl; after an evaluation redraw the curves."""
        take_seconds()  # an evaluation is no part of the next step
        if not self.first:
            return
        with writing(self.metrics_file), open(self.metrics_file, "a") as file:
            file.write(json.dumps(metrics) + "\n")
        if self.wandb:
            self.wandb.log(metrics, step=metrics["step"])
        evaluated = "eval/pass@1" in metrics and metrics["step"]
        if evaluated:
            curves.draw(
                self.records(), self.path, f"{self.config.model} on {self.config.task}", self.panels
            )
        if self.live and metrics["step"]:
            place = (
                f"step {metrics['step']} of {self.config.steps}, {self.time_left(self.records())}"
            )
            self.live.update(self.records(), place, at_once=evaluated)

    def save_episodes(self, name, episodes, token_ids=False):
        """Every process's episodes, in one file of the run's directory."""
        rows = [
            {
                "problem": e.problem,
                "completion": e.text,
                "reward": e.reward.total,
                "format_reward": e.reward.format,
                "answer_reward": e.reward.answer,
                "why": e.reward.why,
                "advantage": e.advantage,
                "loss": e.measured.get("loss"),
                "length": e.length,
                "prompt_length": len(e.prompt_ids),
                "finish_reason": e.completion.finish_reason,
                **(
                    {"prompt_ids": e.prompt_ids, **dataclasses.asdict(e.completion)}
                    if token_ids
                    else {}
                ),
            }
            for e in episodes
        ]
        gathered = [None] * dist.get_world_size() if self.first else None
        dist.gather_object(rows, gathered)
        if self.first:
            self.write(
                f"{name}.jsonl",
                "".join(json.dumps(row) + "\n" for rows in gathered for row in rows),
            )

    def save_step(self, step, lr, episodes, update):
        """Print the step's line and save its episodes and tokens; returns its metrics.

        If an update was not finite, its episodes are kept with their token ids as well.
        """
        measured = measure_step(episodes, self.config, update)
        metrics = {"step": step, "lr": lr, **measured, **take_seconds()}
        name = f"step_{step:06d}"
        self.print_step(metrics)
        self.save_episodes(f"episodes/{name}", episodes)
        if self.is_due(step, "tokens"):
            self.save_tokens(f"tokens/{name}.npz", episodes)
        if metrics["bad_updates"]:
            self.save_episodes(f"bad_{name}", episodes, token_ids=True)
        self.stop_if_not_finite(metrics["bad_updates"], f": see {self.path}/bad_{name}.jsonl")
        return metrics

    def save_tokens(self, name, episodes):
        """Every process's tokens, in one file; plumbing/token_record.py says what is in it."""
        arrays = token_record.token_arrays(episodes, self.config)
        gathered = [None] * dist.get_world_size() if self.first else None
        dist.gather_object(arrays, gathered)
        if self.first:
            with atomic_write(os.path.join(self.path, name)) as hidden, open(hidden, "wb") as file:
                np.savez_compressed(file, **token_record.join(gathered))

    def stop_if_not_finite(self, bad_update, hint=""):
        """Raise UserError after --max_bad_steps steps in a row with an update that was not finite."""
        self.bad_steps = self.bad_steps + 1 if bad_update else 0
        if self.bad_steps == self.config.max_bad_steps:
            raise UserError(f"{self.bad_steps} steps in a row were not finite{hint}.")

    def rewind(self, step):
        """Delete what was recorded after `step`, since those steps run again; at 0 the first evaluation as well."""
        again = (
            "" if step else ": there is no checkpoint yet; the same seed gives the same steps again"
        )
        self.print(f"Resuming after step {step}{again}.\n")
        if not self.first:
            return
        kept = [record for record in self.records() if step and record["step"] <= step]
        self.write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))
        done = {f"step_{s:06d}" for s in range(0 if step else 1, step + 1)}
        names = {self.checkpoints: list_checkpoints(self.checkpoints)}
        for directory in (
            os.path.join(self.path, name) for name in ("episodes", "held_out", "tokens")
        ):
            names[directory] = (
                os.listdir(directory) if os.path.isdir(directory) else []
            )  # in an older run
        names[self.path] = [name for name in os.listdir(self.path) if name.startswith("bad_step_")]
        for directory in names:
            for name in names[
                directory
            ]:  # later checkpoints are damaged, or they would have been used
                if os.path.splitext(name.removeprefix("bad_"))[0] not in done:
                    remove(os.path.join(directory, name))
        for directory in (self.path, self.checkpoints):  # left over from interrupted writes
            for name in os.listdir(directory) if os.path.isdir(directory) else ():
                if name.startswith(".") and name.endswith(".tmp"):
                    remove(os.path.join(directory, name))

    # ---- Console

    def print(self, text=""):
        if self.first:
            print(text, flush=True)

    def print_header(self, policy, task, data):
        """Print model, data, memory plan and the rendered prompt: most mistakes in a set-up can be seen here."""
        config, tokenizer = self.config, task.tokenizer
        if not config.eval_only:
            self.tokens_every = token_record.tokens_every(config, policy)
        size = sum(p.numel() for p in policy.parameters())
        trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
        stops = [f"{tokenizer.decode([i])!r} ({i})" for i in stop_token_ids(policy, tokenizer)]
        processes = f"{dist.get_world_size()} process(es) on {policy.device.type}"
        lines = [f"{config.model}: {size / 1e6:.1f}M parameters in {config.dtype}, {processes}"]
        if trained < size:
            lines.append(f"LoRA: {trained / 1e6:.3f}M of them are trained")
        left_out = (
            f"; {data.left_out} left out, their prompts are too long" if data.left_out else ""
        )
        lines.append(
            f"{task.name}: {len(data.train)} problems to train on, {len(data.eval)} to evaluate on{left_out}"
        )
        if not config.eval_only:
            per_step = f"{config.prompts_per_step} prompts x {config.group_size} completions"
            lines.append(f"{config.steps} steps of {per_step}")
            lines.append(f"memory, about: {describe_memory(policy, config, data.max_length)}")
        if self.tokens_every and self.first:
            os.makedirs(os.path.join(self.path, "tokens"), exist_ok=True)
            self.write("vocabulary.json", token_record.vocabulary(tokenizer))
        lines.append(f"record: {self.path}")
        lines.append(f"a completion ends at: {', '.join([*stops, *map(repr, task.stop_texts)])}")
        lines.append("the first prompt, as the model sees it:")
        self.print("\n".join(lines))
        self.print(quoted(task.prompt_text(data.eval[0])))

    def print_tuning_header(self, examples, left_out, task, problems):
        """Print rows and both prompts: the most common mistake is to tune on another prompt."""
        config = self.config
        passes = config.steps * config.batch_size / len(examples)
        theirs = [e.problem["prompt"] for e in examples]
        ours = task.prompt_text(problems[0])
        left_out = f"; {left_out} left out, they are too long" if left_out else ""
        self.print(
            f"{len(theirs)} rows of {config.data}{left_out}\n"
            f"{config.steps} steps of {config.batch_size} rows: {passes:.1f} passes\n"
            f"validation on {len(problems)} problems of {config.task}\nrecord: {self.path}\n"
            f"the first row's prompt:\n{quoted(theirs[0][:2000])}\n"
            "the first validation prompt; the two should have the same form:\n"
            f"{quoted(ours[:2000])}"
        )
        others = [prompt for prompt in theirs if prompt[-8:] != ours[-8:]]
        if others:
            ends = f"with {others[0][-20:]!r}, those of the validation with {ours[-20:]!r}"
            self.print(f"WARNING: {len(others)} rows have a prompt that ends {ends}.")

    def print_tuning_step(self, m):
        """The line of a step of fine-tuning."""
        self.print_progress(
            m, f"loss {m.get('loss', math.nan):.3f}  grad {m.get('grad_norm', math.nan):.2f}"
        )
        self.stop_if_not_finite(m["bad_updates"])

    def time_left(self, records):
        """Of the steps to come, at the mean of the last ten; evaluations are not counted."""
        recent = [record["time/step"] for record in records[-10:] if "time/step" in record]
        seconds = (self.config.steps - records[-1]["step"]) * sum(recent) / max(1, len(recent))
        return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"

    def print_progress(self, m, text):
        """One line per step, with an estimate of the time left."""
        ending = f"{m['time/step']:.1f} s  {self.time_left([*self.records(), m])}"
        self.print(f"step {m['step']:>4}/{self.config.steps}  {text}  {ending}")

    def print_step(self, m):
        self.print_progress(
            m,
            f"reward {m['reward']:.2f}  correct {m['reward/answer']:.2f}  format {m['reward/format']:.2f}  "
            f"length {m['completions/mean_length']:.0f}  cut off {m['completions/clipped_ratio']:.0%}  "
            f"no signal {m['frac_reward_zero_std']:.0%}  entropy {m.get('entropy', math.nan):.2f}  "
            f"grad {m.get('grad_norm', math.nan):.2f}",
        )
        for sentence in health_warnings(m, self.config):
            self.print(f"  WARNING: {sentence}")

    def save_evaluation(self, step, m, episodes):
        """Print accuracy, one right and one wrong completion; save those of the first problems. Returns the metrics."""
        mine = len(
            range(dist.get_rank(), HELD_OUT, dist.get_world_size())
        )  # process r has problems r, r + N, r + 2N
        if self.first:
            os.makedirs(os.path.join(self.path, "held_out"), exist_ok=True)
        self.save_episodes(f"held_out/step_{step:06d}", episodes[:mine])
        self.print(
            f"\nevaluation after step {step}: pass@1 {m['eval/pass@1']:.3f} "
            f"[{m['eval/pass@1_low']:.3f}, {m['eval/pass@1_high']:.3f}] on {m['eval/problems']} problems\n"
            f"  strict {m['eval/strict']:.3f}  lenient {m['eval/lenient']:.3f}  "
            f"well-formed {m['eval/format']:.2f}  length {m['eval/mean_length']:.0f}"
        )
        subgroups = sorted(
            name.split("/")[1] for name in m if name.count("/") == 2 and name.endswith("/problems")
        )
        self.print("  " + "  ".join(f"{s} {m[f'eval/{s}/pass@1']:.3f}" for s in subgroups))
        right = [e for e in episodes if e.reward.answer == 1]
        wrong = [e for e in episodes if e.reward.answer != 1]
        for e in right[:1] + wrong[:1]:
            self.print(f"  --- {e.problem}: {e.reward.why}")
            text = e.text if len(e.text) <= 800 else f"{e.text[:400]} [...] {e.text[-400:]}"
            self.print(quoted(text.strip()))
        self.print()
        return m

    def evaluate_only(self, evaluate):
        """--eval_only: greedy and sampled, on the console, in evaluation.json, and as episodes."""
        results = {}
        samples = {
            "greedy": (1, 0.0),
            "sampled": (self.config.eval_samples, self.config.temperature),
        }
        for name, (n, temperature) in samples.items():
            results[name], episodes = evaluate(n, temperature)
            self.save_episodes(f"episodes/{name}", episodes)
        self.print_table(results)
        return self.path

    def print_table(self, results):
        """Evaluations side by side, {name: metrics}, on the console and in evaluation.json."""
        if not self.first:
            return
        self.write("evaluation.json", json.dumps(results, indent=2))
        labels = {
            "strict": "strict: right, well-formed",
            "lenient": "lenient: right anywhere",
            "format_only": "well-formed, not right",
            "neither": "neither",
            "format": "well-formed",
            "mean_length": "mean length (tokens)",
            "clipped_ratio": "cut off",
        }
        keys = [
            k.removeprefix("eval/")
            for m in results.values()
            for k in m
            if not k.endswith(("_low", "_high"))
        ]
        overall = [k for k in dict.fromkeys(keys) if "/" not in k and k != "problems"]
        subgroups = [k for k in dict.fromkeys(keys) if k.endswith("/pass@1")]
        overall.sort(
            key=lambda k: [*labels].index(k) if k in labels else -1
        )  # the accuracies first
        self.print(f"\n{'':28}" + "".join(f"{name:24}" for name in results))
        for key in [*overall, *subgroups]:
            line = f"{labels.get(key, key.replace('/pass@1', ': pass@1')):28}"
            for m in results.values():
                value = f"{m[f'eval/{key}']:.3f}" if f"eval/{key}" in m else ""
                if f"eval/{key}_low" in m:
                    value += f" [{m[f'eval/{key}_low']:.3f}, {m[f'eval/{key}_high']:.3f}]"
                line += f"{value:24}"
            self.print(line)
        problems = next(iter(results.values()))["eval/problems"]
        self.print(
            f"{problems} problems; 95% intervals; completions with verdicts: {self.path}/episodes"
        )

    def print_summary(self, stopped):
        """Print the result and where everything is, or how to resume a run that was stopped."""
        if not self.first:
            return
        records = self.records()
        if self.config.report:
            report.write([self.path])
        if stopped:
            self.print(f"Saved after step {records[-1]['step']}: --resume {self.path} goes on.")
            return
        evals = [r for r in records if "eval/pass@1" in r]
        interval = "{eval/pass@1:.3f} [{eval/pass@1_low:.3f}, {eval/pass@1_high:.3f}]"
        before, after = interval.format(**evals[0]), interval.format(**evals[-1])
        names = ("step", "rollout", "reward", "vine", "update", "record", "sync")
        seconds = {part: sum(r.get(f"time/{part}", 0.0) for r in records) for part in names}
        trained = seconds.pop("step")
        parts = ", ".join(f"{part} {s / trained:.1%}" for part, s in seconds.items() if s)
        page = f"report    {self.path}/report.html     open it in a browser\n" * self.config.report
        self.print(
            f"pass@1 on {evals[-1]['eval/problems']} held-out problems: "
            f"{before} before, {after} after {evals[-1]['step']} steps\n"
            f"{trained / 60:.1f} minutes of training{': ' * bool(parts)}{parts}\n"
            f"model     {self.model}        AutoModelForCausalLM.from_pretrained loads it\n"
            f"curves    {self.path}/curves.png\n{page}"
            f"episodes  {self.path}/episodes     completions with their rewards and advantages\n"
            f"metrics   {self.metrics_file}"
        )
