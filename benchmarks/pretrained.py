"""What a reward makes of a model that others trained: SmolLM2-135M on the coins, on two CPU cores.

    python models/smollm2.py          # the model, once
    python benchmarks/pretrained.py --seeds 0 1 2 --write docs

Asked as it is, the model never answers in the form that the reward reads, so that no group has a
signal. A cold start (nano_sft.py, 64 written answers) teaches the form and some subtracting; then
the default loop with the coins' reward, for each seed. Questions of one step, with numbers up to
20: this model's subtraction ends there. In the table: both models before it, and three controls
with as many more optimizer steps, which imitate the same 64 answers, are paid for the form alone,
or imitate what the cold start does right among as many sampled tokens (the first seed's); pass@1
over temperatures on held-out questions, and with the form written for the model (`RULES`); what it
forgot (perplexity of a fixed text), and real GSM8K problems, if --gsm8k names a file of them.
Interrupt it at will: the same command goes on.

With --one_order the written answers are to questions in which the first of the two has more, so
that nothing ever shows the model what to do with the others; half of the problems that are trained
on and tested are such others.
"""

import argparse
import json
import math
import os
import random
import re
import statistics
import sys

import controls
from elicitation import Cache, Model, name_of

import runs
from runs import spread

sys.path.append(os.path.join(runs.ROOT, "models"))
from smollm2 import TEXT

from plumbing.files import write_text

ROWS = 64  # of the cold start
HELD_OUT = 64  # questions
LARGEST = 20  # number of coins
TASK = "--task coins --max_tokens 40 --save_every 10 --record_tokens_every 0 --no-report"
TUNING = f"{TASK} --batch_size 16 --eval_problems 64 --eval_every 0"
TUNING += " --learning_rate 2e-5 --warmup_steps 4"
WITHOUT = ("form", "rft")  # runs without the verdict, of controls.py
REWARD = f"{TASK} --prompts_per_step 8 --group_size 8 --learning_rate 1e-5 --kl_coef 0 --steps 30"
REWARD += " --warmup_steps 3 --lr_scheduler_type constant --eval_problems 64 --eval_every 20"
TEMPERATURES = (0.0, 0.3, 0.6, 1.0)
RULE_TEMPERATURES = (0.0, 0.6)  # the better of the two is shown
DRAWS = 4  # completions of each question, to see which number is subtracted from which
SHOWN = 4  # questions with their completions
KINDS = ("ava_has_more", "ben_has_more")
# What is written for the model, which knows nothing of the answer: (how its thinking begins, how
# many tokens it may add to that); then come the end of the thinking, the tag, and its number.
RULES = {
    "answer at once": ("", 0),
    "its own thinking": ("", 24),
    "first number less the second": ("\n{ava}-{ben}=", 4),
}


# ---- The cold start


def written_answer(problem):
    """A completion of a question of one step: the larger number first."""
    a, b = sorted(problem.values(), reverse=True)
    return f"\n{a}-{b}={a - b}\n</think>\n<answer>{a - b}</answer>"


def write_data(out, model, one_order=False):
    """Held-out and training questions, and the cold start's rows of the latter, as three files.

    `one_order`: rows of questions in which the first has more, and of no others.
    """
    import coins_rewards
    from plumbing.models import load_tokenizer

    tokenizer = load_tokenizer(model)
    numbers = range(2, LARGEST + 1)
    problems = [{"ava": a, "ben": b} for a in numbers for b in numbers if a != b]
    random.Random(0).shuffle(problems)
    prompt = lambda p: coins_rewards.format_prompt(p, tokenizer)
    train = problems[HELD_OUT:]
    answered = [p for p in train if p["ava"] > p["ben"] or not one_order][:ROWS]
    rows = [{"prompt": prompt(p), "response": written_answer(p)} for p in answered]
    for name, lines in (("test", problems[:HELD_OUT]), ("train", train), ("rows", rows)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_text(os.path.join(out, f"{name}.jsonl"), text)


def tuned(path, model, steps):
    """The directory of a model that has imitated the rows."""
    import nano_sft
    from plumbing.settings import parse_args

    out = os.path.dirname(path)
    flags = f"{TUNING} --data {out}/rows.jsonl --eval_data {out}/test.jsonl --model {model}"
    flags += f" --steps {steps}"
    config = parse_args(nano_sft.Config, "nano_sft.py", "", flags.split())
    return os.path.join(runs.complete(path, nano_sft.main, config), "model")


# ---- The table


def metrics(model, problems, temperature):
    """Of one completion a problem; sampled once."""
    import nano_r1

    settings = (model.task, model.config, 1, temperature)
    compute = lambda: nano_r1.evaluate(model.ready, problems, *settings)[0]
    return model.cached(["metrics", temperature], problems, compute)


def pass_at_1_under(rule, model, problems, temperature):
    """With the form written for the model by one of `RULES`."""
    from plumbing.forms import encode_prompt
    from plumbing.processes import derive_seed

    def go_on(texts, limit):
        whole = [model.task.prompt_text(p) + text for p, text in zip(problems, texts)]
        prompts = [encode_prompt(text, model.task.tokenizer) for text in whole]
        seeds = [derive_seed("rule", limit, place) for place in range(len(prompts))]
        limits = [limit] * len(prompts)
        groups = model.ready.generate(prompts, 1, temperature, limits, seeds)
        return [model.task.text(group[0].token_ids) for group in groups]

    def compute():
        begun, room = RULES[rule]
        texts = [begun.format(**problem) for problem in problems]
        if room:
            more = [text.partition("</think>")[0].rstrip() for text in go_on(texts, room)]
            texts = [text + added for text, added in zip(texts, more)]
        texts = [f"{text}\n</think>\n<answer>" for text in texts]
        numbers = [re.match(r"\s*(\d*)", answer)[1] for answer in go_on(texts, 4)]
        texts = [f"{text}{number}</answer>" for text, number in zip(texts, numbers)]
        return statistics.mean(map(lambda t, p: model.task.reward(t, p).answer, texts, problems))

    return model.cached(["rule", rule, temperature], problems, compute)


def larger_first(model, problems):
    """{kind: share of completions at temperature 1 that subtract from the larger number}."""
    import nano_r1

    def compute():
        settings = (model.task, model.config, DRAWS, 1.0)
        written = {kind: [] for kind in KINDS}
        for e in nano_r1.evaluate(model.ready, problems, *settings)[1]:
            terms = re.search(r"(\d+)\s*-\s*(\d+)", e.text)
            larger, smaller = sorted(e.problem.values(), reverse=True)
            right = terms is not None and terms.groups() == (str(larger), str(smaller))
            (kind,) = model.task.subgroups(e.problem)
            written[kind].append(right)
        return {kind: statistics.mean(found) for kind, found in written.items()}

    return model.cached(["larger first", DRAWS], problems, compute)


def perplexity(model):
    """Of a fixed text, the one of models/smollm2.py."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def compute():
        ids = AutoTokenizer.from_pretrained(model.path)(TEXT, return_tensors="pt").input_ids
        with torch.no_grad():
            return math.exp(AutoModelForCausalLM.from_pretrained(model.path)(ids, labels=ids).loss)

    return model.cached(["perplexity"], TEXT, compute)


def on_coins(model, problems):
    """{row: value}: pass@1 over temperatures, by kind of question, under rules; perplexity."""
    found = {t: metrics(model, problems, t) for t in TEMPERATURES}
    values = {f"pass@1, {name_of(t)}": found[t]["eval/pass@1"] for t in TEMPERATURES}
    values |= {f"{kind}, T 1.0": found[1.0][f"eval/{kind}/pass@1"] for kind in KINDS}
    order = larger_first(model, problems)
    values |= {f"larger number first, {kind}, T 1.0": order[kind] for kind in KINDS}
    values["in form, T 1.0"] = found[1.0]["eval/format"]
    for rule in RULES:
        best = max(pass_at_1_under(rule, model, problems, t) for t in RULE_TEMPERATURES)
        values[f"form written: {rule}"] = best
    return {**values, "perplexity of a text": perplexity(model)}


def completions(model, problems):
    """Greedy, of the first questions, each in one line."""
    import nano_r1

    chosen = problems[:SHOWN]
    settings = (model.task, model.config, 1, 0.0)
    texts = lambda: [e.text for e in nano_r1.evaluate(model.ready, chosen, *settings)[1]]
    return [" ".join(text.split()) for text in model.cached(["texts"], chosen, texts)]


def on_gsm8k(paths, args, cache):
    """Share of real problems that are right anywhere in the text, greedy, for each model."""
    flags = f"--task gsm8k --prompt chat --max_tokens 128 --model {paths[0]} --out {args.out}"
    config = runs.config_of(flags)
    sampler, _, task = runs.load_sampler(config)
    problems = task.load_problems("all", args.gsm8k, 0)[: args.gsm8k_problems]
    models = [Model(path, config, sampler, task, cache) for path in paths]
    return [metrics(model, problems, 0.0)["eval/lenient"] for model in models]


def picture(path, labels, of_each, runs_):
    """Over temperatures, each model; and over the steps with the reward, each seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plot, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    for i, (label, values) in enumerate(zip(labels, of_each)):
        solved = [values[f"pass@1, {name_of(t)}"] for t in TEMPERATURES]
        left.plot(TEMPERATURES, solved, "o-", color=f"C{min(i, 5)}", label=label or None)
    left.set(xlabel="temperature", ylabel=f"pass@1, {HELD_OUT} held-out questions", ylim=(0, 1))
    left.legend(fontsize=8)
    for run in runs_:
        rows = [row for row in runs.records(run) if "reward/answer" in row]
        steps = [row["step"] for row in rows]
        right.plot(steps, [row["reward/answer"] for row in rows], color="C5", alpha=0.7)
        right.plot(steps, [row["reward/format"] for row in rows], color="C7", alpha=0.7)
    right.set(xlabel="step with the reward", ylabel="of 64 completions", ylim=(0, 1.02))
    right.text(0.98, 0.75, "well-formed", transform=right.transAxes, color="C7", ha="right")
    right.text(0.98, 0.05, "right", transform=right.transAxes, color="C5", ha="right")
    plot.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default=os.path.join(runs.ROOT, "models", "smollm2-135m"))
    add("--seeds", type=int, nargs="+", default=[0])
    add("--gsm8k", metavar="FILE", help="real GSM8K test problems")
    add("--gsm8k_problems", type=int, default=128, help="of FILE (default: %(default)s)")
    add("--steps", type=int, default=16, help="of the cold start (default: %(default)s)")
    add("--more", default="", metavar="FLAGS", help="for every run with the reward: a try")
    add("--one_order", action="store_true", help="answers written only where the first has more")
    add("--out", help="where the runs are kept")
    add("--write", metavar="FOLDER", help="the folder of smollm2.md")
    args = parser.parse_args()
    if not os.path.isdir(args.model):
        sys.exit(f"pretrained.py: there is no {args.model}: python models/smollm2.py")
    kind = "_one_order" if args.one_order else ""
    args.out = args.out or os.path.join(runs.OUT, f"pretrained{kind}")
    if not os.path.exists(os.path.join(args.out, "rows.jsonl")):
        write_data(args.out, args.model, args.one_order)
    cold = tuned(os.path.join(args.out, "cold_start"), args.model, args.steps)
    data = f"--data {args.out}/train.jsonl --eval_data {args.out}/test.jsonl"
    flags = f"{REWARD} {data} --model {cold} {args.more}"
    config = runs.config_of(flags)
    longer = args.steps + config.steps
    imitated = tuned(os.path.join(args.out, "imitated"), args.model, longer)
    rewarded = [runs.train(os.path.join(args.out, f"seed{s}"), flags, s) for s in args.seeds]
    tuning = f"{TUNING} --eval_data {args.out}/test.jsonl --steps {config.steps}"
    settings = (args.seeds[0], args.out, flags, rewarded[0], tuning)
    without = [controls.train(name, *settings) for name in WITHOUT]
    paths = [args.model, cold, imitated, *map(runs.model_of, (*without, *rewarded))]
    cache = Cache(os.path.join(args.out, "results.json"))
    sampler, _, task = runs.load_sampler(config)
    problems = task.load_problems("all", os.path.join(args.out, "test.jsonl"), 0)
    models = [Model(path, config, sampler, task, cache) for path in paths]
    of_each = [on_coins(model, problems) for model in models]
    found = {row: [values[row] for values in of_each] for row in of_each[0]}
    if args.gsm8k:
        name = f"{args.gsm8k_problems} real GSM8K problems, right anywhere, greedy"
        found[name] = on_gsm8k(paths, args, cache)
    names = ("as it is", "cold start", f"{longer} steps of it", "form alone", "its right samples")
    lines = [("", *names, "with the reward")]
    n = len(names)
    for row, values in found.items():
        lines.append((row, *(f"{v:.3f}" for v in values[:n]), spread(values[n:])))
    examples = [("question", "as it is", "cold start", f"seed {args.seeds[0]}")]
    shown = [completions(models[i], problems) for i in (0, 1, n)]
    for problem, *texts in zip(problems, *shown):
        cells = [f"`{text[:90]}{'...' * (len(text) > 90)}`" for text in texts]
        examples.append((task.title(problem).split(" How")[0], *cells))
    text = f"{runs.table(lines)}\n\n{runs.table(examples)}"
    print(f"\n{text}")
    if args.write:
        labels = (*lines[0][1:], *[""] * (len(args.seeds) - 1))
        drawn = f"smollm2{kind}.png"
        picture(os.path.join(args.write, drawn), labels, of_each, rewarded)
        page = os.path.join(args.write, "smollm2.md")
        command = "benchmarks/pretrained.py" + " --one_order" * args.one_order
        curves = f"![pass@1 over temperatures, and over steps]({drawn})"
        runs.write_section(page, command, f"\n{text}\n\n{curves}\n\n")


if __name__ == "__main__":
    runs.as_program(main)
