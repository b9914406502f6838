"""Where the seconds of a step go, by kind of operation, beside what this machine would allow.

    python benchmarks/step_profile.py                           # the base
    python benchmarks/step_profile.py --model out/NAME/model    # after training, longer completions

One step of the default command in its three parts, on one thread, by torch's profiler: sampling,
the reference's log-probs, the update. The last column is the least that the same operations could
take here: products and attention at the speed of large matrices; all others at the speed at which
2 MB are read and written; and for each call what an operation on a single number costs.
"""

import argparse
import collections
import math
import re
import time

import runs
from nano_r1 import Config, add_log_probs, group_advantages, make_engine, rollout, update

# isort: split
import torch

KINDS = {  # of operations, by their names in torch's profiler
    "matrix products": r"aten::(mm|addmm|bmm|baddbmm)",
    "attention": r"aten::_scaled_dot_product.*",
    "copies": r"aten::(copy_|cat|index|index_select|_index_put_impl_|repeat_interleave|fill_"
    r"|gather|embedding_dense_backward)",
    "softmax and sampling": r"aten::(_softmax|_log_softmax.*|cumsum|searchsorted|exp|log|amax)",
    "other arithmetic": r"aten::(mul|add|sub|pow|mean|sum|div_?|rsqrt|silu(_backward)?|neg|cos"
    r"|sin|where|masked_fill_|add_|mul_|exp_|expm1|minimum|clamp|bitwise_.*)",
    "views, allocation, dispatch": r".*",
}
MOVES_DATA = list(KINDS)[2:5]


def seconds_of(function, times=20):
    """The least of some measurements: what the machine allows while nobody else needs it."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


class Machine:
    """What one core does at its best."""

    def __init__(self):
        a = torch.randn(1024, 1024)
        wide = torch.randn(4096, 128)
        one = torch.randn(1)
        self.flops = 2 * 1024**3 / seconds_of(lambda: a @ a)  # a second
        self.bytes = 2 * wide.nbytes / seconds_of(lambda: wide * 2.0)  # a second
        self.call = seconds_of(lambda: [one + one for _ in range(1000)]) / 1000  # s

    def least(self, kind, operation):
        """Seconds that the profiler's `operation`, one name with its input shapes, needs."""
        shapes = [shape for shape in operation.input_shapes if isinstance(shape, list) and shape]
        seconds = operation.count * self.call
        if kind == "matrix products":
            seconds += operation.flops / self.flops
        if kind == "attention" and shapes:
            is_backward = "backward" in operation.key
            query, key = shapes[1:3] if is_backward else shapes[:2]  # (R, heads, positions, size)
            products = (5 if is_backward else 2) * 2 * math.prod(query) * key[2]
            seen = 2 if query[2] == key[2] else 1  # a position sees half of them, on average
            seconds += operation.count * products / seen / self.flops
        if kind in MOVES_DATA and shapes:
            sizes = [math.prod(shape) for shape in shapes if all(isinstance(n, int) for n in shape)]
            moved = 4 * (sum(sizes) + max(sizes, default=0))  # what it reads, and a result
            seconds += operation.count * moved / self.bytes
        return seconds


def operations(function, shapes=False):
    """(the profiler's operations, seconds, what the function returned)."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    options = {"with_flops": shapes, "record_shapes": shapes}
    with torch.profiler.profile(activities=activities, **options) as profiler:
        start = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - start
    return profiler.key_averages(group_by_input_shape=shapes), seconds, result


def profiled(machine, part, function):
    """Rows of the table for one part of the step, and what the function returned."""
    kind_of = lambda operation: next(k for k in KINDS if re.fullmatch(KINDS[k], operation.key))
    least = collections.Counter()
    calls = collections.Counter()
    # Twice: to write the shapes down slows the operations down.
    for operation in operations(function, shapes=True)[0]:
        kind = kind_of(operation)
        calls[kind] += operation.count
        if operation.self_cpu_time_total:
            least[kind] += machine.least(kind, operation)
    spent = collections.Counter()
    found, seconds, result = operations(function)
    for operation in found:
        spent[kind_of(operation)] += operation.self_cpu_time_total / 1e6
    spent["Python between them"] = max(0.0, seconds - spent.total())
    rows = []
    for kind in [*KINDS, "Python between them"]:
        share = f"{spent[kind] / seconds:.0%}"
        floor = f"{least[kind]:.2f}" if least[kind] else ""
        rows.append([part, kind, f"{calls[kind]:,}", f"{spent[kind]:.2f}", share, floor])
    total = f"{least.total():.2f}"
    return [*rows, [part, "all", f"{calls.total():,}", f"{seconds:.2f}", "", total]], result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="models/nano-base")
    parser.add_argument("--prompts_per_step", type=int, default=16)
    args = parser.parse_args()
    config = Config(model=args.model, prompts_per_step=args.prompts_per_step, engine="torch")
    torch.set_num_threads(1)
    sampler, policy, task = runs.load_sampler(config)
    from plumbing.models import load_reference

    reference = load_reference(config, policy)
    engine = make_engine(policy, config)
    problems = task.load_problems("train", None, 0)
    machine = Machine()
    sample = lambda step: rollout(sampler, problems, task, config, step)

    def learn(episodes):
        update(engine, episodes, config, config.learning_rate)

    def prepared(episodes):
        rewards = torch.tensor([float(e.reward.total) for e in episodes])
        advantages = group_advantages(rewards.view(-1, config.group_size), config)
        for e, advantage in zip(episodes, advantages.flatten().tolist()):
            e.per_token["advantages"] = [advantage] * e.length
        return episodes

    episodes = prepared(sample(1))
    add_log_probs(reference, episodes, "ref_log_probs", config)
    learn(episodes)  # warm
    lines = [["part", "operations", "calls", "seconds", "share", "at this machine's limits"]]
    rows, episodes = profiled(machine, "sampling", lambda: sample(2))
    lines += rows
    prepared(episodes)
    score = lambda: add_log_probs(reference, episodes, "ref_log_probs", config)
    lines += profiled(machine, "reference", score)[0]
    lines += profiled(machine, "update", lambda: learn(episodes))[0]
    tokens = sum(e.length for e in episodes)
    print(f"{len(episodes)} completions, {tokens} tokens, one thread; {args.model}; a core here:")
    print(f"{machine.flops / 1e9:.0f} GFLOP/s, {machine.bytes / 1e9:.1f} GB/s, ", end="")
    print(f"{machine.call * 1e6:.1f} us a call\n\n{runs.table(lines)}")


if __name__ == "__main__":
    main()
