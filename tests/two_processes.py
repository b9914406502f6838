"""For test_update.py: an update of each case by two processes, into the file argv[1]."""

import json
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch.distributed as dist
from helpers import config, make_episodes, updated

import variants
from plumbing import chunked_logits, processes

GSPO = {"loss_type": "gspo", "minibatches": 3, "epochs": 2, "entropy_coef": 0.02}
CASES = {  # every other episode without signal, settings
    "plain": (False, {"loss_agg_mode": "token-mean"}),
    "silent": (True, {}),
    "sharded": (False, {"zero_stage": 3}),
    "sharded, in chunks": (False, {"zero_stage": 3}),
    "gspo": (False, GSPO),
    "constant": (False, {"loss_agg_mode": "seq-mean-token-sum-norm"}),
}


def updated_case(case):
    """Its update, of this process's share of the groups."""
    episodes = make_episodes()
    silent, changes = CASES[case]
    for e in episodes[1::2] if silent else []:
        e.per_token["advantages"] = [0.0] * e.length
    groups = [episodes[start : start + 2] for start in range(0, 12, 2)]
    mine = groups[dist.get_rank() :: dist.get_world_size()]
    return updated(config(**changes), [e for group in mine for e in group], update=variants.update)


if __name__ == "__main__":
    processes.init_distributed()
    results = {}
    for name in CASES:
        chunked_logits.CHUNK["cpu"] = 50 * 7 if "chunks" in name else 10**9
        weights, measured = updated_case(name)
        results[name] = {n: p.tolist() for n, p in weights.items()}, measured
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(results, file)
    processes.shutdown()
