"""The record of a run: its directory, the console, the curves.

`out/NAME/` holds config.json, metrics.jsonl (one object a step), episodes/ (every completion with its reward),
curves.png, checkpoints/, and at the end model/; of --eval_only, evaluation.json and episodes/.
"""

import contextlib
import dataclasses
import json
import math
import os
import time

import torch.distributed as dist

from plumbing.checkpoints import list_checkpoints, remove, writing, written_whole
from plumbing.memory import enough_memory
from plumbing.processes import broadcast
from plumbing.settings import UserError

PANELS = [  # of curves.png: title, and (metric, label) of each curve
    ("accuracy", [("reward/answer", "training batch")]),
    ("reward", [("reward", "total"), ("reward/format", "format")]),
    ("completion length (tokens)", [("completions/mean_length", "mean")]),
    ("entropy (nats a token)", [("entropy", None)]),
    ("gradient norm", [("grad_norm", None)]),
    ("shares", [("frac_reward_zero_std", "groups without signal"), ("completions/clipped_ratio", "cut off")]),
]


def quoted(text):
    """Prompts and completions on the console: a bar before each line tells them from what the program says."""
    return "\n".join(f"  | {line}" for line in text.splitlines())


def complaints(metrics, config):
    """The silent failures of RL runs, in words."""
    if metrics["completions/clipped_ratio"] == 1:
        yield (
            f"no completion ended by itself within --max_tokens {config.max_tokens}: does this prompt make the model "
            "stop at one of the stop tokens shown at the start?"
        )
    elif metrics["completions/clipped_ratio"] > 0.5:
        yield "more than half of the completions were cut off and could not answer: raise --max_tokens"
    if metrics["frac_reward_zero_std"] == 1:
        yield (
            "no signal: within each group all completions got the same reward, so every advantage is 0. If this goes "
            "on, the task is too hard or too easy for the model, or the prompt does not fit it; try more --completions"
        )
    if metrics["bad_updates"]:
        yield "loss or gradient not finite: the weights stay as they were; bad_step_*.jsonl has the batch"
    if metrics.get("sampling/logp_difference_mean", 0) > 0.1:
        yield (
            f"sampler and trainer disagree by {metrics['sampling/logp_difference_mean']:.2f} nats a token: "
            "the sampler has other weights, or computes in another precision"
        )


class Run:
    """The run's directory and the console. Only the first process writes."""

    def __init__(self, config, first):
        now = time.strftime("%Y%m%d-%H%M%S")  # the clocks of two processes may differ by a second
        (name,) = broadcast(config.name or f"{'eval-' * config.eval_only}{config.task}-{now}")
        self.path = config.resume or os.path.join(config.out, name)
        self.first, self.config, self.wandb = first, config, None
        self.metrics_file = os.path.join(self.path, "metrics.jsonl")
        self.checkpoints = os.path.join(self.path, "checkpoints")
        if not first:
            return
        if os.path.exists(os.path.join(self.path, "config.json")) and not config.resume:
            raise UserError(f"{self.path} exists: --resume {self.path} goes on with it, another --name starts afresh.")
        if config.wandb != "off":
            self.start_wandb(name)
        with writing(self.path):
            os.makedirs(os.path.join(self.path, "episodes"), exist_ok=True)
        self.write("config.json", json.dumps(dataclasses.asdict(dataclasses.replace(config, resume=None)), indent=2))

    def start_wandb(self, name):
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        if self.config.wandb == "online" and not wandb.login(prompt=False):
            raise UserError("--wandb online needs an account: run `wandb login` first, or take --wandb offline.")
        os.makedirs(self.path, exist_ok=True)
        settings = {"mode": self.config.wandb, "dir": self.path, "config": dataclasses.asdict(self.config)}
        self.wandb = wandb.init(project="nano_r1", name=name, **settings)

    def write(self, name, text):
        """A file of the run's directory, whole or not at all."""
        with (
            written_whole(os.path.join(self.path, name), flush=name == "config.json") as hidden,
            open(hidden, "w") as file,
        ):
            file.write(text)

    def records(self):
        if not os.path.exists(self.metrics_file):
            return []
        with open(self.metrics_file) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]  # the last may have been cut short

    def rewind(self, step):
        """Forget what was recorded after `step`: those steps will be done again. At 0 the first evaluation as well."""
        if not self.first:
            return
        kept = [record for record in self.records() if step and record["step"] <= step]
        self.write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))
        done = {f"step_{s:06d}" for s in range(0 if step else 1, step + 1)}
        later = [
            n for n in list_checkpoints(self.checkpoints) if n not in done
        ]  # damaged, or they would have been used
        for path in [os.path.join(self.checkpoints, name) for name in later]:
            remove(path)
        for name in os.listdir(os.path.join(self.path, "episodes")):
            if name.removesuffix(".jsonl") not in done:
                os.remove(os.path.join(self.path, "episodes", name))
        for name in os.listdir(self.path):
            if name.startswith("bad_step_") and name.removeprefix("bad_").removesuffix(".jsonl") not in done:
                os.remove(os.path.join(self.path, name))
        for directory in (self.path, self.checkpoints):  # what was being written when the run was cut off
            for name in os.listdir(directory) if os.path.isdir(directory) else ():
                if name.startswith(".") and name.endswith(".tmp"):
                    remove(os.path.join(directory, name))

    def say(self, text=""):
        if self.first:
            print(text, flush=True)

    def log(self, metrics):
        if self.first:
            with writing(self.metrics_file), open(self.metrics_file, "a") as file:
                file.write(json.dumps(metrics) + "\n")
            if self.wandb:
                self.wandb.log(metrics, step=metrics["step"])

    def save_episodes(self, name, episodes, token_ids=False):
        """Every process's episodes, in one file of the run's directory."""
        rows = [
            {
                "problem": e.problem,
                "completion": e.text,
                **e.reward,
                "advantage": e.advantage,
                "length": e.length,
                "prompt_length": len(e.prompt_ids),
                "finish_reason": e.completion.finish_reason,
                **({"prompt_ids": e.prompt_ids, **dataclasses.asdict(e.completion)} if token_ids else {}),
            }
            for e in episodes
        ]
        everyone = [None] * dist.get_world_size() if self.first else None
        dist.gather_object(rows, everyone)
        if self.first:
            self.write(f"{name}.jsonl", "".join(json.dumps(row) + "\n" for rows in everyone for row in rows))

    def show_step(self, m, seconds_left):
        self.say(
            f"step {m['step']:>4}/{self.config.steps}  reward {m['reward']:.2f}  correct {m['reward/answer']:.2f}  "
            f"format {m['reward/format']:.2f}  length {m['completions/mean_length']:.0f}  "
            f"cut off {m['completions/clipped_ratio']:.0%}  no signal {m['frac_reward_zero_std']:.0%}  "
            f"entropy {m.get('entropy', math.nan):.2f}  grad {m.get('grad_norm', math.nan):.2f}  "
            f"{m['time/step']:.1f} s  {seconds_left / 60:.0f} min left"
        )
        for sentence in complaints(m, self.config):
            self.say(f"  WARNING: {sentence}")

    def show_evaluation(self, step, m, episodes):
        self.say(
            f"\nevaluation after step {step}: pass@1 {m['eval/pass@1']:.3f} "
            f"[{m['eval/pass@1_low']:.3f}, {m['eval/pass@1_high']:.3f}] on {m['eval/problems']} problems\n"
            f"  right and in form {m['eval/strict']:.3f}  right wherever it stands {m['eval/lenient']:.3f}  "
            f"in form {m['eval/format']:.2f}  length {m['eval/mean_length']:.0f}"
        )
        subgroups = sorted(name.split("/")[1] for name in m if name.count("/") == 2 and name.endswith("/problems"))
        self.say("  " + "  ".join(f"{s} {m[f'eval/{s}/pass@1']:.3f}" for s in subgroups))
        right = [e for e in episodes if e.reward["answer_reward"] == 1]
        wrong = [e for e in episodes if e.reward["answer_reward"] != 1]
        for e in right[:1] + wrong[:1]:
            self.say(f"  --- {e.problem}: {e.reward['why']}")
            text = e.text if len(e.text) <= 800 else f"{e.text[:400]} [...] {e.text[-400:]}"
            self.say(quoted(text.strip()))
        self.say()

    def show_table(self, results):
        """Evaluations side by side, {name: metrics}, on the console and in evaluation.json."""
        if not self.first:
            return
        self.write("evaluation.json", json.dumps(results, indent=2))
        labels = {
            "strict": "right and in form",
            "lenient": "right wherever it stands",
            "format_only": "in form, not right",
            "neither": "neither right nor in form",
            "format": "in form",
            "mean_length": "mean length (tokens)",
            "clipped_ratio": "cut off",
        }
        keys = [k.removeprefix("eval/") for m in results.values() for k in m if not k.endswith(("_low", "_high"))]
        overall = [k for k in dict.fromkeys(keys) if "/" not in k and k != "problems"]
        subgroups = [k for k in dict.fromkeys(keys) if k.endswith("/pass@1")]
        overall.sort(key=lambda k: [*labels].index(k) if k in labels else -1)  # the accuracies first
        self.say(f"\n{'':28}" + "".join(f"{name:24}" for name in results))
        for key in [*overall, *subgroups]:
            line = f"{labels.get(key, key.replace('/pass@1', ': pass@1')):28}"
            for m in results.values():
                value = f"{m[f'eval/{key}']:.3f}" if f"eval/{key}" in m else ""
                if f"eval/{key}_low" in m:
                    value += f" [{m[f'eval/{key}_low']:.3f}, {m[f'eval/{key}_high']:.3f}]"
                line += f"{value:24}"
            self.say(line)
        problems = next(iter(results.values()))["eval/problems"]
        self.say(f"{problems} problems; 95% intervals; completions with verdicts: {self.path}/episodes")

    def plot(self, panels=PANELS):
        """curves.png: what one looks at to see whether a run learns; the evaluations go into the first panel."""
        if not self.first:
            return
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        records = self.records()
        evals = [r for r in records if "eval/pass@1" in r]
        figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), constrained_layout=True)
        for axis, (title, series) in zip(axes.flat, panels):
            for name, label in series:
                points = [(r["step"], r[name]) for r in records if name in r]
                if points:
                    axis.plot(*zip(*points), label=label, alpha=0.7, linewidth=1)
            axis.set(title=title, xlabel="step")
        x = [r["step"] for r in evals]
        axes[0, 0].plot(x, [r["eval/pass@1"] for r in evals], "o-", label="evaluation, pass@1")
        low, high = ([r[f"eval/pass@1_{end}"] for r in evals] for end in ("low", "high"))
        axes[0, 0].fill_between(x, low, high, alpha=0.2, color="C1", label="95% interval")
        for axis in axes.flat:
            axis.grid(alpha=0.3)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize=8)
        figure.suptitle(f"{os.path.basename(self.path)}: {self.config.model} on {self.config.task}")
        with written_whole(os.path.join(self.path, "curves.png")) as hidden:
            figure.savefig(hidden, dpi=110, format="png")
        plt.close(figure)


class Clock:
    """Seconds spent in each part of a step: `with clock("rollout"): ...` -> seconds["time/rollout"]."""

    def __init__(self, config):
        self.start, self.parts, self.config = time.perf_counter(), {}, config

    @contextlib.contextmanager
    def __call__(self, name):
        start = time.perf_counter()
        with enough_memory(name, self.config):
            yield
        self.parts[f"time/{name}"] = self.parts.get(f"time/{name}", 0.0) + time.perf_counter() - start

    @property
    def seconds(self):
        return {**self.parts, "time/step": time.perf_counter() - self.start}


def conclude(run):
    """The result in a line, and where everything is."""
    if not run.first:
        return
    records = run.records()
    evals = [r for r in records if "eval/pass@1" in r]
    a, b = evals[0], evals[-1]
    interval = lambda r: f"{r['eval/pass@1']:.3f} [{r['eval/pass@1_low']:.3f}, {r['eval/pass@1_high']:.3f}]"
    trained = sum(r.get("time/step", 0.0) for r in records) / 60
    share = lambda part: sum(r.get(f"time/{part}", 0.0) for r in records) / 60 / trained
    parts = [f"{part} {share(part):.1%}" for part in ("rollout", "reward", "vine", "update", "sync") if share(part)]
    run.say(
        f"pass@1 on {b['eval/problems']} held-out problems: "
        f"{interval(a)} before, {interval(b)} after {b['step']} steps\n"
        f"{trained:.1f} minutes of training{': ' * bool(parts)}{', '.join(parts)}\n"
        f"model     {run.path}/model        AutoModelForCausalLM.from_pretrained loads it\n"
        f"curves    {run.path}/curves.png\n"
        f"episodes  {run.path}/episodes     completions with their rewards and advantages\n"
        f"metrics   {run.path}/metrics.jsonl"
    )
