"""How old may a batch be, and what does the ratio correct? (arXiv:2510.01161)"""

import collections
import functools

from lab import COUNTDOWN, Expected, Lab, Run

import nano_r1


def stale(age, corrected):
    """A rollout whose episodes were sampled `age` updates ago, by the policy of then.

    With `corrected` that policy's log-probs are pi_old, so that the clipped ratio sees how far the
    policy has moved since; otherwise the loss takes them for its own.
    """
    waiting = collections.deque()

    def rollout(sampler, problems, task, config, step):
        sample = functools.partial(nano_r1.rollout, sampler, problems, task, config)
        if step == 1:  # before the first update all are fresh
            waiting.extend(sample(-number) for number in range(age))
        waiting.append(sample(step))
        episodes = waiting.popleft()
        for e in episodes if corrected else ():
            e.per_token["old_log_probs"] = e.completion.logprobs
        return episodes

    return rollout


LAB = Lab(
    title="Old samples do little harm, up to a point",
    claim="Asynchronous training stays as good on batches of up to 256 updates of age, if the loss "
    "corrects for it (M2PO, arXiv:2510.01161); without, it becomes unstable early.",
    prediction="Twenty updates at this learning rate change the policy a lot, so age costs more "
    "here: 2 updates old costs less than 0.05; 8 updates old costs at least 0.1 by the twentieth "
    "step, mostly because learning starts 8 updates late. The correction brings nothing at age 2, "
    "and at age 8 its clip freezes so much that it is slower than no correction.",
    runs={
        "fresh": Run(COUNTDOWN),
        "2 updates old, corrected": Run(COUNTDOWN, rollout=stale(2, corrected=True)),
        "8 updates old": Run(COUNTDOWN, rollout=stale(8, corrected=False)),
        "8 updates old, corrected": Run(COUNTDOWN, rollout=stale(8, corrected=True)),
    },
    expected=[
        Expected("fresh", "2 updates old, corrected", within=0.1),
        Expected("8 updates old, corrected", "8 updates old", above=0.0),
        Expected("fresh", "8 updates old", above=0.1, claim=False),
    ],
    found="Age itself costs little: eight updates, 0.05, which three seeds do not resolve. What "
    "costs is the correction: against the policy of eight updates ago the clip freezes so many "
    "tokens that only a third of the gain is left.",
    limits="The ratio here is PPO's, not the paper's second-moment one. Large models move less in "
    "an update, so that the same age is less old.",
)

if __name__ == "__main__":
    LAB.main()
