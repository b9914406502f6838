"""Does dividing by the group's mean keep pass@k? (MaxRL, arXiv:2602.02710)"""

from lab import COUNTDOWN, Lab, Prediction, Run, tries

LAB = Lab(
    title="Dividing by the mean keeps pass@k",
    claim="If advantages are divided by the group's mean reward, hard problems weigh more, "
    "and pass@k stays high while GRPO's pass@k falls (MaxRL, arXiv:2602.02710).",
    prediction="20 steps are too few for a collapse, so pass@1 is within 0.05 and pass@64 is "
    "inconclusive.",
    runs={
        "by the deviation": Run(f"{COUNTDOWN} --binary_reward"),
        "by the mean": Run(f"{COUNTDOWN} --binary_reward --scale_rewards mean"),
        "by nothing": Run(f"{COUNTDOWN} --binary_reward --scale_rewards none"),
    },
    predictions=[
        Prediction("by the mean", "by the deviation", measure="pass@64 of 64"),
        Prediction("by the mean", "by the deviation", within=0.1, claim=False),
    ],
    measures=(tries,),
    found="All three divisors give the same result. Their pass@1 is 62% to 63%, and at every k up "
    "to 64 their pass@k is within 0.01 of each other.",
    limits="Groups of 8 give seven terms of the paper's series. These terms are exact only if "
    "tokens are summed, which these runs do not do.",
)

if __name__ == "__main__":
    LAB.main()
