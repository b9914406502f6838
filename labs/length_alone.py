"""Length alone can look like learning. A task that no length solves tells the two apart."""

from lab import COINS, COUNTDOWN, Lab, Prediction, Run, controls

K1 = "--kl_estimator k1 --kl_coef 1"
CONSTANT = "--kl_estimator k1 --kl_coef 4 --loss_agg_mode seq-mean-token-sum-norm"
NONE = {"advantages": controls.no_reward}

LAB = Lab(
    title="Length alone can look like learning",
    claim="Division by length changes which lengths grow (Dr. GRPO, arXiv:2503.20783). If k1 is "
    "the loss, its gradient is the gradient of E[1/length], so a run without any reward "
    "should look like learning.",
    prediction="On Countdown this base's longer attempts are better; on the coins they are not.",
    runs={
        "Countdown, reward": Run(COUNTDOWN),
        "Countdown, no reward, k1": Run(f"{COUNTDOWN} {K1}", NONE),
        "Countdown, no reward, k1 by a constant": Run(f"{COUNTDOWN} {CONSTANT}", NONE),
        "coins, reward": Run(COINS),
        "coins, no reward, k1": Run(f"{COINS} {K1}", NONE),
        "coins, length reward": Run(COINS, {"rollout": controls.length_reward}),
    },
    predictions=[
        Prediction("Countdown, no reward, k1", above=0.3),
        Prediction("Countdown, no reward, k1 by a constant", within=0.1),
        Prediction("coins, reward", "coins, no reward, k1", above=0.2),
        Prediction("coins, reward", "coins, length reward", above=0.2),
    ],
    found="Without any reward, pass@1 on Countdown rises from 10% to 22%, 27% and 41% in the "
    "three seeds. With a constant denominator it rises in only one seed (to 22%). On the coins, "
    "k1 takes pass@1 to 0%.",
    limits="A pretrained model's longer answers need not be its better ones.",
)

if __name__ == "__main__":
    LAB.main()
