"""For test_update.py, under torchrun: one update of each case by two processes, into the file that argv names."""

import json
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from helpers import config, make_episodes, tiny_model, update

SEVERAL_STEPS = {
    "loss_agg_mode": "seq-mean-token-mean",
    "entropy_coef": 0.02,
    "minibatches": 3,
    "group_size": 2,
    "epochs": 2,
}
CASES = {  # ZeRO stage, every other episode without signal, other settings
    "plain": (2, False, {}),
    "silent": (2, True, {}),
    "sharded": (3, False, {}),
    "sharded, in chunks": (3, False, {}),
    "gspo": (2, False, {"loss_type": "gspo", **SEVERAL_STEPS}),
    "constant": (2, False, {"loss_agg_mode": "seq-mean-token-sum-norm"}),
}


def episodes_of(case):
    episodes = make_episodes()
    for e in episodes[1::2] if CASES[case][1] else []:
        e.advantage = 0.0
    return episodes


def main(path):
    import torch.distributed as dist

    import nano_r1 as r1
    from plumbing import chunked_logits, processes
    from plumbing.models import gathered

    processes.init_distributed()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    result = {}
    for case, (stage, _, changes) in CASES.items():
        chunked_logits.LOGITS_PER_CHUNK = 50 * 7 if "chunks" in case else 10**9
        c, episodes = config(zero_stage=stage, **changes), episodes_of(case)
        groups = [episodes[start : start + 2] for start in range(0, 12, 2)][rank::world_size]
        engine = r1.make_engine(tiny_model(), c)
        measured = update(engine, [e for group in groups for e in group], c)
        with gathered(engine.module):
            weights = {n: p.detach().flatten().tolist() for n, p in engine.module.named_parameters()}
        result[case] = (weights, measured)
    if rank == 0:
        with open(path, "w") as file:
            json.dump(result, file)
    processes.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
