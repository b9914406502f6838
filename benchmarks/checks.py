"""Are the checks true? Each attempt at a Countdown problem ends in yes or no.

    python -m benchmarks.checks out/NAME ...        # runs of one command with several seeds

The first table has P(yes) after results that are the target and after others, before and after
training: one completion of each held-out problem at temperature 1, teacher-forced. The second one
counts the run's own training episodes: how often is a yes true, and how often does the target get
its yes? Numbers are means over the runs, with the smallest and largest.
"""

import dataclasses
import re
import statistics
import sys

import torch

import nano_r1
from benchmarks import runs


def checks(config, problems):
    """[(P(yes) instead of no, is the result the target?)] of one completion of each problem."""
    sampler, task = runs.load(config)
    yes, no = (task.tokenizer.encode(word)[0] for word in (" yes", " no"))
    found = []
    for e in nano_r1.sample_and_reward(sampler, problems, task, config, "checks", 1):
        ids = e.prompt_ids + e.token_ids
        with torch.no_grad():
            logits = sampler.model(torch.tensor([ids])).logits[0]
        for place in range(len(e.prompt_ids), len(ids)):
            if ids[place] in (yes, no):
                p_yes = torch.softmax(logits[place - 1, [yes, no]], dim=0)[0].item()
                result = task.tokenizer.decode([ids[place - 1]])
                found.append((p_yes, result == str(e.problem["target"])))
    return found


def better_than_chance(hits, others):
    """AUC: the chance that P(yes) is larger after a target than after another result."""
    pairs = [(a > b) + 0.5 * (a == b) for a in hits for b in others]
    return statistics.mean(pairs)


def probability_table(paths):
    """P(yes) before and after training."""
    lines = [["model", "P(yes), target", "P(yes), another result", "AUC"]]
    (saved,) = nano_r1.read_rows(f"{paths[0]}/config.json")
    config = runs.config_of(saved)
    _, task = runs.load(config)
    problems = task.load_problems("test", config)
    models = {"base": [config.model], "trained": [f"{path}/model" for path in paths]}
    for name, of_name in models.items():
        columns = []
        for model in of_name:
            found = checks(dataclasses.replace(config, model=model), problems)
            hits = [p for p, hit in found if hit]
            others = [p for p, hit in found if not hit]
            auc = better_than_chance(hits, others)
            columns.append([statistics.mean(hits), statistics.mean(others), auc])
        lines.append([name, *map(runs.spread, zip(*columns))])
    return runs.table(lines)


def said(path, step):
    """[(yes, is the result the target?)] of all checks in the episodes of a step."""
    found = []
    for row in nano_r1.read_rows(f"{path}/episodes/step_{step:06d}.jsonl"):
        for result, word in re.findall(r"=(\d+) (yes|no)$", row["completion"], re.MULTILINE):
            found.append((word == "yes", int(result) == row["problem"]["target"]))
    return found


def truth_table(paths):
    """By step, before its update: of the yeses, the targets and the others, how many are true?"""
    lines = [["step", "P(target, given yes)", "P(yes, given target)", "P(yes, given another)"]]
    steps = nano_r1.read_rows(f"{paths[0]}/config.json")[0]["steps"]
    for step in (1, *range(10, steps + 1, 10)):
        shares = ([], [], [])
        for path in paths:
            pairs = said(path, step)
            after_yes = [hit for yes, hit in pairs if yes]
            on_target = [yes for yes, hit in pairs if hit]
            elsewhere = [yes for yes, hit in pairs if not hit]
            for column, found in zip(shares, (after_yes, on_target, elsewhere)):
                if found:  # a run without such a check has no share
                    column.append(statistics.mean(found))
        lines.append([step, *[runs.spread(column) if column else "–" for column in shares]])
    return runs.table(lines)


def tables(paths):
    return f"{probability_table(paths)}\n\n{truth_table(paths)}"


if __name__ == "__main__":
    print(tables(sys.argv[1:]))
