"""Measures how good a model is, on any task, at any temperatures, with any number of samples.

    python nano_eval.py --task countdown --model out/NAME/model   # greedy, and 8 samples at T = 1
    python nano_eval.py --task countdown --temperature 0 0.3 0.6 1 --samples 1
    python nano_eval.py --task math --eval_data hub --prompt chat --model Qwen/Qwen2.5-1.5B-Instruct
    torchrun --local_ranks_filter 0 --nproc_per_node 8 nano_eval.py ...    # 8 GPUs
    python nano_eval.py --ask 4 --model out/NAME/model    # 4 completions of each problem you type
    python nano_eval.py --ask 4 --model out/NAME/model --beside models/nano-base

A table shows for each temperature (0 is greedy), with 95% intervals over the problems:

    pass@k      chance that a correct one is among k samples; pass@1 is the share of correct samples
    maj@n       share of problems whose most frequent answer is correct (tasks with a final_answer)
    categories  shares with answer and format correct, answer only, format only, neither
    SUBGROUP    pass@1 of each subgroup of the task
    cut off     share of completions that reached --max_tokens
    tokens      mean length of the completions

out/NAME/ gets the table in evaluation.json ([mean, low, high]) and all completions, with their
category, in temperature_T.jsonl. The first one of each problem has the seed of nano_r1.py's
evaluation, so at the same temperature it is the same completion.

With --ask, type numbers and a target (3 8 5 = 24), or for another task a question, then its answer.
Enter draws one of the task's held-out problems, and q quits. The last --temperature counts. A typed
line (8*3=24) gets P(yes): how sure the model is that the line solves the last problem. --beside
shows both models' P(yes), also at each yes or no of their completions.
"""

import itertools
import math
import os
import random
import re
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from statistics import fmean, pvariance
from unittest import mock

import nano_r1
import problem_files

CATEGORIES = ("answer and format", "answer only", "format only", "neither")


@dataclass(kw_only=True)
class Config(nano_r1.Config):
    """Evaluate a model on a task.

    The training settings of nano_r1.py have no effect.
    """

    # evaluate the problems of this file, or hub; None: the held-out problems of data
    eval_data: str | None = None
    eval_problems: int | None = None  # at most so many problems; None: all
    temperature: tuple[float, ...] = (0.0, 1.0)  # one or more; 0 is greedy, with one sample
    samples: int = 8  # completions per problem
    ask: int = 0  # measure nothing: show this many completions of each problem you type
    beside: str | None = None  # a second model to ask, with the same seeds

    ABOVE_0 = [*nano_r1.Config.ABOVE_0, "samples"]


def sample(sampler, problems, task, config):
    """All completions: a list with a tuple of episodes for each problem."""
    n = config.samples if config.temperature else 1
    draws = []
    for k in range(n):
        label = f"evaluation {k}" if k else "evaluation"  # the first is that of nano_r1.evaluate
        episodes = nano_r1.sample_and_reward(sampler, problems, task, config, label, n=1)
        draws.append(nano_r1.gather(episodes))
        print(f"temperature {config.temperature:g}: sample {k + 1} of {n}", flush=True)
    return list(zip(*draws))


def category(e):
    """Which of CATEGORIES."""
    correct = e.answer_reward == 1
    formatted = e.format_reward == 1
    if correct and formatted:
        return "answer and format"
    if correct:
        return "answer only"
    if formatted:
        return "format only"
    return "neither"


def majority(group, task):
    """maj@n (arXiv:2203.11171): 1.0 if the most frequent answer is correct. Ties are shared."""
    equal = getattr(task.module, "same_answer", lambda vote, other, problem: vote == other)
    rewards = defaultdict(list)  # {answer: rewards of the completions that gave it}
    for e in group:
        vote = task.module.final_answer(e.completion, e.problem, task.prompt)
        if vote is None:
            continue  # a completion without an answer abstains
        for other in rewards:
            if equal(vote, other, e.problem):
                vote = other
                break
        rewards[vote].append(e.answer_reward)
    if not rewards:
        return 0.0
    votes = max(len(values) for values in rewards.values())
    return fmean(fmean(values) for values in rewards.values() if len(values) == votes)


def measure_group(group, task):
    """{metric: value} of the n completions of one problem."""
    n = len(group)
    correct = sum(e.answer_reward == 1 for e in group)
    values = {}
    for k in (1, 2, 4, 8, 16, 32, 64):
        if k <= n:
            # The unbiased estimate (arXiv:2107.03374, eq. 1): 1 - C(n - correct, k) / C(n, k)
            values[f"pass@{k}"] = 1 - math.comb(n - correct, k) / math.comb(n, k)
    if n > 1 and hasattr(task.module, "final_answer"):
        values[f"maj@{n}"] = majority(group, task)
    for name in CATEGORIES:
        values[name] = fmean(category(e) == name for e in group)
    values["cut off"] = fmean(e.cut_off for e in group)
    if hasattr(task.module, "subgroups"):
        for name in task.module.subgroups(group[0].problem):
            values[f"{name}: pass@1"] = correct / n
    return values


def interval(values):
    """95% interval (low, high) of the mean of values from 0 to 1, one per problem.

    With one sample per problem it is Wilson's interval. With several it is Wilson's interval for
    the number of independent samples whose mean would have the same variance.
    """
    n = len(values)
    mean = fmean(values)
    variance = pvariance(values)
    if variance:
        n = n * mean * (1 - mean) / variance
    return nano_r1.interval(mean, n)


def measure(groups, task):
    """{metric: [mean, low, high]} over the problems; one number for `tokens` and `problems`."""
    columns = defaultdict(list)
    for group in groups:
        for name, value in measure_group(group, task).items():
            columns[name].append(value)
    metrics = {name: [fmean(values), *interval(values)] for name, values in columns.items()}
    metrics["tokens"] = [fmean(len(e.token_ids) for e in itertools.chain(*groups))]
    metrics["problems"] = [len(groups)]
    return metrics


def cell(values):
    """A metric in the table: a share with its interval, a number, or empty."""
    match values:
        case [share, low, high]:
            return f"{share:.1%} [{low:.1%}, {high:.1%}]"
        case [number]:
            return f"{number:.0f}"
        case _:
            return ""


def print_table(results):
    """Print {"temperature 0": metrics, ...} side by side."""
    names = max(results.values(), key=len)
    width = 2 + max(map(len, names))
    heads = "".join(f"{name:24}" for name in results)
    print(f"\n{'':{width}}{heads}")
    for name in names:
        line = f"{name:{width}}"
        for metrics in results.values():
            line += f"{cell(metrics.get(name)):24}"
        print(line)


def read_problem(text, task):
    """The typed text as a problem of the task. ValueError has one sentence for the user."""
    columns = set(problem_files.COLUMN.findall(task.prompt.text)) - {"answer"}
    if columns == {"nums", "target"}:
        if not re.fullmatch(r"\d{1,5}([\s,]+\d{1,5}){1,7}\s*=\s*\d{1,5}", text):
            raise ValueError("Type two to eight whole numbers and a target, e.g. 19 36 55 7 = 65")
        *nums, target = map(int, re.findall(r"\d+", text))
        return {"nums": nums, "target": target}
    if not hasattr(task.module, "final_answer"):  # its problems have more than question and answer
        raise ValueError("Type only Enter: this task draws its problems")
    if len(columns) != 1 or len(text.split()) < 4:
        raise ValueError("Type a question of a sentence or more, or press Enter to draw a problem")
    problem = {columns.pop(): text, "answer": input("its answer, if you know it\n> ").strip()}
    if problem["answer"] and hasattr(task.module, "to_problem"):
        return task.module.to_problem(problem)
    return problem


def judge(text, problem, task, token_ids):
    """The verifier's verdict on a completion; without a known answer, the model's own answer."""
    if problem.get("answer") == "":
        return f"answers {task.module.final_answer(text, problem, task.prompt)}"
    *_, correct, why = task.reward(text, problem, token_ids)
    return f"{'✓' if correct == 1 else '✗'} {why}"


def show(models, problem, config):
    """Print each model's completions of the problem. A model is (name, policy, task, sampler)."""
    for name, policy, task, sampler in models:
        prompts = [task.prompt_ids(problem)]
        verdicts = []
        with nano_r1.threads_for(policy):
            found = sampler.generate(prompts, config.ask, config.temperature[-1], [config.seed])
        for token_ids, _ in found:
            text = task.text_of(token_ids)
            verdicts.append(judge(text, problem, task, token_ids))
            said = f"\n── {name}, completion {len(verdicts)}\n{text.strip()}\n{verdicts[-1]}"
            print(nano_r1.printable(said))
            if len(models) == 2:
                print_readings(models, problem, text, config)
        correct = sum(verdict.startswith("✓") for verdict in verdicts)
        if problem.get("answer") != "":
            print(f"\n{name}: {correct} of {len(verdicts)} correct", flush=True)


def print_readings(models, problem, text, config):
    """What each model makes of a text's lines: P(yes) where a line says yes or no."""
    from nano_report.payload import lines_of

    readings = []
    for _, policy, task, _ in models:
        token_ids = task.tokenizer.encode(text, add_special_tokens=False)
        e = nano_r1.Episode(prompt_ids=task.prompt_ids(problem), token_ids=token_ids)
        batch = nano_r1.collate([e], policy.device)
        log_probs = nano_r1.Scorer(policy, replace(config, temperature=1.0))(batch)
        words = [task.tokenizer.decode([i]) for i in token_ids]
        readings.append(lines_of(problem, words, log_probs[batch["response_mask"]].tolist()))
    for lines in zip(*readings):
        shares = "".join(f"{yes:5.0%}" for _, _, yes in lines)
        print(f"P(yes){shares}  {lines[0][0].split()[0]}")


def ask(models, problems, config):
    """Show the completions of problem after problem, until q."""
    _, _, task, _ = models[0]
    rng = random.Random(config.seed)
    problem = {}
    while True:
        try:
            text = input(
                "\nA problem (3 8 5 = 24, or a question), then also lines (8*3=24); "
                "Enter draws one; q ends\n> "
            ).strip()
            if text == "q":
                return
            line = re.sub(r"\s|yes|no", "", text)
            if "target" in problem and re.fullmatch(r"[\d(]+[-+*/][-\d()=+*/,]*=\d+", line):
                print_readings(models, problem, f"\n{line} yes", config)
                continue
            problem = read_problem(text, task) if text else rng.choice(problems)
            print(nano_r1.printable(task.prompt_text(problem)))
            show(models, problem, config)
        except ValueError as error:
            print(error)
        except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C
            return print()


@mock.patch.dict(os.environ)
def main(config):
    """Sample, measure, print, write. Returns the directory. With --ask, see `ask`."""
    nano_r1.check_numbers(config)
    allowed = [0 <= temperature < math.inf for temperature in config.temperature]
    if not allowed or not all(allowed):
        raise SystemExit("--temperature must be 0, which is greedy, or more")
    if config.beside and not config.ask:
        raise SystemExit("--beside is a second model to ask; add --ask 4")
    device = nano_r1.start_process(config)
    module, prompt = nano_r1.find_task(config)
    split = "all" if config.eval_data else "test"
    problems = module.load_problems(split, config.eval_data or config.data, config.seed)
    models = []
    for name in filter(None, [config.model, config.beside]):
        # vLLM has room for one model in a process.
        now = replace(config, model=name, sampler="transformers" if config.ask else config.sampler)
        policy, tokenizer = nano_r1.load_model(now)
        task = nano_r1.Task(tokenizer, policy, now, (module, prompt))
        sampler = nano_r1.make_sampler(policy, task, device, now)
        models.append((name, policy, task, sampler))
    problems = task.with_room(problems, config)
    if config.ask:
        return ask(models, problems, config)
    path = nano_r1.path_of(config.name, time.strftime("evaluation-%Y%m%d-%H%M%S"))
    results = {}
    for temperature in config.temperature:
        now = replace(config, temperature=temperature)
        with nano_r1.threads_for(policy):
            groups = sample(sampler, problems[: config.eval_problems], task, now)
        rows = [nano_r1.as_row(e) | {"category": category(e)} for e in itertools.chain(*groups)]
        nano_r1.write_rows(f"{path}/temperature_{temperature:g}.jsonl", rows)
        results[f"temperature {temperature:g}"] = measure(groups, task)
    sampler.close()
    print_table(results)
    nano_r1.write_rows(f"{path}/evaluation.json", [asdict(config) | {"results": results}])
    return path


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    nano_r1.run_command(main, Config)
