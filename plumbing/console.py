"""What a run says on the console: functions that return text, in lines of 80 columns."""

import os
import re
import textwrap

import torch.distributed as dist

from plumbing.health import health_warnings
from plumbing.memory import describe_memory
from plumbing.models import stop_token_ids
from plumbing.sampler import sampler_kind
from plumbing.torch_engine import engine_kind

WIDTH = 80
# The columns of a step: label, metric, format, width. The loss of GRPO says nothing
# (docs/metrics.md): it is shown where there is no reward.
COLUMNS = [
    ("reward", "reward", ".2f", 6),
    ("right", "reward/answer", ".0%", 5),
    ("format", "reward/format", ".0%", 6),
    ("tokens", "completions/mean_length", ".0f", 6),
    ("cut", "completions/clipped_ratio", ".0%", 4),
    ("equal", "frac_reward_zero_std", ".0%", 5),
    ("entropy", "entropy", ".2f", 7),
    ("grad", "grad_norm", ".2f", 5),
    ("loss", "loss", ".3f", 6),
]
LABELS = {  # of an evaluation's metrics
    "strict": "strict: right, well-formed",
    "lenient": "lenient: right anywhere",
    "format": "well-formed",
    "format_only": "well-formed, not right",
    "neither": "neither",
    "mean_length": "mean length (tokens)",
    "clipped_ratio": "cut off",
}


def wrapped(text, indent="  "):
    """A line of more than 80 columns as several, cut between words."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, **options)


def quoted(text):
    """Put a bar before each line, to tell text of the model from output of the program."""
    lines = []
    for line in text.splitlines():
        lines += textwrap.wrap(line, WIDTH - 4) if len(line) > WIDTH - 4 else [line]
    return "\n".join(f"  | {line}" for line in lines)


def header(config, policy, task, data):
    """Model, data, memory plan and the first prompt: most mistakes in a set-up show here."""
    size = sum(p.numel() for p in policy.parameters())
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    lora = f", {trained / 1e6:.3f}M of them trained (LoRA)" if trained < size else ""
    left_out = f"; {data.left_out} left out, their prompts are too long" if data.left_out else ""
    memory = f"memory, about: {describe_memory(policy, config, data.max_length)}"
    ids = stop_token_ids(policy, task.tokenizer)
    stops = [f"{task.tokenizer.decode([i])!r} ({i})" for i in ids] + [*map(repr, task.stop_texts)]
    lines = [
        f"{config.model}: {size / 1e6:.1f}M parameters{lora} in {config.dtype}, "
        f"{dist.get_world_size()} process(es) on {policy.device.type}, "
        f"rollout {sampler_kind(config)}, engine {engine_kind(config)}",
        f"{task.name}: {len(data.train)} problems to train on, {len(data.eval)} to evaluate on"
        f"{left_out}",
    ]
    if not config.eval_only:
        drawn = f"{config.prompts_per_step} prompts x {config.group_size} completions"
        lines += [f"{config.steps} steps of {drawn}", *memory.splitlines()]
    lines += [
        f"a completion ends at: {', '.join(stops)}",
        "the first prompt, as the model sees it:",
    ]
    lines = [wrapped(line) for line in lines]
    return "\n".join([*lines, quoted(task.prompt_text(data.eval[0]))])


def tuning_header(config, examples, left_out, task, problems):
    """Rows and both prompts: tuning on another prompt than is sampled with is a common mistake."""
    theirs = [e.problem["prompt"] for e in examples]
    ours = task.prompt_text(problems[0])
    others = [prompt for prompt in theirs if prompt[-8:] != ours[-8:]]
    warning = (
        f"\nWARNING: {len(others)} rows have a prompt that ends with {others[0][-20:]!r}, those of "
        f"the validation with {ours[-20:]!r}."
        if others
        else ""
    )
    return (
        f"{len(theirs)} rows of {config.data}; {left_out} left out, they are too long\n"
        f"{config.steps} steps of {config.batch_size} rows, "
        f"{config.steps * config.batch_size / len(theirs):.1f} passes\n"
        f"validation on {len(problems)} problems of {config.task}\n"
        f"the first row's prompt:\n{quoted(theirs[0][:2000])}\n"
        f"the first validation prompt; both should have one form:\n{quoted(ours[:2000])}{warning}"
    )


def step_line(m, config, left, headed=True):
    """The metrics of a step that one looks at first; below it the warnings.

    headed: the names of the columns stand above it already.
    """
    hidden = "loss" if "reward" in m else None
    columns = [column for column in COLUMNS if column[1] in m and column[1] != hidden]
    labels = " ".join(f"{label:>{width}}" for label, _, _, width in columns)
    values = " ".join(f"{m[name]:{width}{form}}" for _, name, form, width in columns)
    step = f"step {m['step']:>4}/{config.steps}"
    lines = [] if headed else [f"{'':{len(step)}} {labels}   time  left"]
    lines.append(f"{step} {values} {m['time/step']:4.1f} s {left:>5}")
    lines += [wrapped(f"  WARNING: {text}", "    ") for text in health_warnings(m, config)]
    return "\n".join(lines)


def with_interval(metrics, name="eval/pass@1"):
    """A metric of an evaluation as text, with its interval if it has one."""
    if name not in metrics:
        return ""
    if f"{name}_low" not in metrics:
        return f"{metrics[name]:.3f}"
    return f"{metrics[name]:.3f} [{metrics[f'{name}_low']:.3f}, {metrics[f'{name}_high']:.3f}]"


def evaluation_text(step, m, episodes, task):
    """Accuracy, overall and by subgroup; one right and one wrong completion."""
    ends = "/pass@1"
    subgroups = [name.split("/")[1] for name in m if name.count("/") == 2 and name.endswith(ends)]
    lines = [
        f"\nevaluation after step {step}: pass@1 {with_interval(m)} "
        f"on {m['eval/problems']} problems",
        f"  strict {m['eval/strict']:.3f}  lenient {m['eval/lenient']:.3f}  "
        f"well-formed {m['eval/format']:.2f}  length {m['eval/mean_length']:.0f}",
        wrapped("  " + "  ".join(f"{name} {m[f'eval/{name}/pass@1']:.3f}" for name in subgroups)),
    ]
    right = [e for e in episodes if e.reward.answer == 1]
    wrong = [e for e in episodes if e.reward.answer != 1]
    for e in right[:1] + wrong[:1]:
        text = e.text if len(e.text) <= 800 else f"{e.text[:400]} [...] {e.text[-400:]}"
        asked = wrapped(f"  --- {task.title(e.problem)}: {e.reward.why}", "      ")
        lines += [asked, quoted(text.strip())]
    return "\n".join([*lines, ""])


def evaluation_table(results):
    """Evaluations of one model side by side: {"greedy": metrics, "sampled": metrics}."""
    lines = [f"\n{'':28}" + "".join(f"{name:24}" for name in results)]
    for name in results["sampled"]:
        key = name.removeprefix("eval/")
        if key in LABELS or re.fullmatch(r"\w+@\d+|\w+/pass@1", key):
            label = LABELS.get(key, key.replace("/", ": "))
            cells = [f"{with_interval(m, name):24}" for m in results.values()]
            lines.append(f"{label:28}" + "".join(cells))
    lines.append(f"{results['sampled']['eval/problems']} problems; 95% intervals")
    return "\n".join(lines)


def summary(records, path, has_report):
    """The result of a run, where its time went, and where everything is."""
    evals = [record for record in records if "eval/pass@1" in record] or [{}]
    spent = lambda part: sum(record.get(f"time/{part}", 0.0) for record in records)
    seconds = {
        part: spent(part) for part in ("rollout", "reward", "vine", "update", "record", "sync")
    }
    trained = spent("step")
    shares = {part: s / max(trained, 1e-9) for part, s in seconds.items()}
    adapters = os.path.exists(os.path.join(path, "model", "adapter_config.json"))
    first = f"--lora_merge --resume {path} and then " if adapters else ""  # ask.py reads none
    parts = [f"{part} {share:.1%}" for part, share in shares.items() if share >= 0.0005]
    lines = [
        wrapped(
            f"pass@1 on {evals[-1].get('eval/problems', 0)} held-out problems: "
            f"{with_interval(evals[0])} before, {with_interval(evals[-1])} after "
            f"{evals[-1].get('step', 0)} steps"
        ),
        wrapped(f"{trained / 60:.1f} minutes of training{': ' * bool(parts)}{', '.join(parts)}"),
        f"report    {path}/report.html  to open in a browser",
        f"try it    {first}python ask.py {path}",
        f"model     {path}/model  for from_pretrained",
        f"curves    {path}/curves.png",
        f"episodes  {path}/episodes  all completions",
        f"metrics   {path}/metrics.jsonl",
    ]
    return "\n".join(line for line in lines if has_report or not line.startswith("report"))
