"""How old may a batch be, and what does the ratio correct? (arXiv:2510.01161)"""

import collections

from lab import COUNTDOWN, Lab, Prediction, Run

import nano_r1


def stale(age):
    """A rollout whose episodes were sampled by the policy of `age` updates ago."""
    waiting = collections.deque()

    def rollout(sampler, problems, task, config, step):
        if step == 1:  # before the first update, all rollouts are fresh
            waiting.clear()
            for number in range(age):
                waiting.append(nano_r1.rollout(sampler, problems, task, config, -number))
        waiting.append(nano_r1.rollout(sampler, problems, task, config, step))
        return waiting.popleft()

    return rollout


def corrected(log_probs, batch, config):
    """The loss in which pi_old is the policy that sampled, however old that policy is."""
    sampler = {"old_log_probs": batch["sampler_log_probs"]}
    return nano_r1.grpo_loss(log_probs, batch | sampler, config)


LAB = Lab(
    title="Old samples do little harm, up to a point",
    claim="Asynchronous training works as well on batches up to 256 updates old if the loss "
    "corrects for their age. Without correction it soon becomes unstable (M2PO, "
    "arXiv:2510.01161).",
    prediction="20 updates change this policy a lot. At age 8, the correction's clip freezes so "
    "much that correcting is worse than not correcting.",
    runs={
        "fresh": Run(COUNTDOWN),
        "age 2, corrected": Run(COUNTDOWN, {"rollout": stale(2), "loss": corrected}),
        "age 8": Run(COUNTDOWN, {"rollout": stale(8)}),
        "age 8, corrected": Run(COUNTDOWN, {"rollout": stale(8), "loss": corrected}),
    },
    predictions=[
        Prediction("fresh", "age 2, corrected", within=0.1),
        Prediction("age 8, corrected", "age 8"),
        Prediction("fresh", "age 8", above=0.1, claim=False),
    ],
    found="Age alone costs little: pass@1 is 57% fresh, 53% at an age of eight updates. The "
    "correction costs more, because its clip freezes so many tokens that pass@1 ends at 27%.",
    limits="The ratio is PPO's, not the paper's. Large models move less in one update.",
)

if __name__ == "__main__":
    LAB.main()
