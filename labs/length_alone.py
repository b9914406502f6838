"""Length alone can look like learning; a question that no length answers tells them apart."""

from lab import COINS, COUNTDOWN, Expected, Lab, Run

import nano_r1


def no_reward(rewards, config):
    return rewards * 0


def pay_length(sampler, problems, task, config, step):
    """`nano_r1.rollout`, where the reward is the length, in shares of the limit."""
    episodes = nano_r1.rollout(sampler, problems, task, config, step)
    for e in episodes:
        e.reward = e.reward._replace(total=e.length / config.max_tokens)
    return episodes


K1 = "--kl_estimator k1 --kl_coef 1"
CONSTANT = "--kl_estimator k1 --kl_coef 4 --loss_agg_mode seq-mean-token-sum-norm"

LAB = Lab(
    title="Length alone can look like learning",
    claim="Dr. GRPO (arXiv:2503.20783) and others show that dividing by a completion's length "
    "changes which lengths grow. Ours is sharper: with k1 as the loss and each completion's mean, "
    "the gradient is that of E[1/length], a reward for length. On a base whose longer attempts are "
    "its better ones, a run **without any reward** should then look like learning.",
    prediction="On Countdown the run with all advantages 0 gains at least 0.3 over 20 steps, "
    "with a constant denominator k1 does nothing. On the coins, "
    "where a longer answer is no better one, only the verdict helps. What separates length from "
    "learning is therefore a task on which going on does not pay.",
    runs={
        "Countdown, the verdict": Run(COUNTDOWN),
        "Countdown, no reward, k1": Run(f"{COUNTDOWN} {K1}", advantages=no_reward),
        "Countdown, no reward, k1 by a constant": Run(
            f"{COUNTDOWN} {CONSTANT}", advantages=no_reward
        ),
        "coins, the verdict": Run(COINS),
        "coins, no reward, k1": Run(f"{COINS} {K1}", advantages=no_reward),
        "coins, length": Run(COINS, rollout=pay_length),
    },
    expected=[
        Expected("Countdown, no reward, k1", above=0.3),
        Expected("Countdown, no reward, k1 by a constant", within=0.1),
        Expected("coins, the verdict", "coins, no reward, k1", above=0.2),
        Expected("coins, the verdict", "coins, length", above=0.2),
    ],
    found="Without any reward pass@1 rises in each seed, to 0.22, 0.27 and 0.41 from 0.10; on the "
    "way, in the batches of steps 10 to 16, up to 0.56 are right. Then half of the completions "
    "have grown past the limit of 128 tokens. With a constant denominator two seeds stay where "
    "they were, the third drifts up with its length (61 tokens). On the coins the same loss, and "
    "a reward for length, destroy all.",
    limits="A pretrained model's longer answers are not its better ones as a rule; how much of a "
    "published gain is length has to be measured there, with this control.",
)

if __name__ == "__main__":
    LAB.main()
