"""Does dividing by the group's mean keep pass@k? (MaxRL, arXiv:2602.02710)"""

from lab import COUNTDOWN, Expected, Lab, Run, tries

VERDICT = f"{COUNTDOWN} --binary_reward"

LAB = Lab(
    title="Dividing by the mean keeps pass@k",
    claim="Advantages divided by the group's mean reward descend on the first terms of "
    "-log pass@1, which weighs hard problems more; pass@k then stays high where GRPO's falls "
    "(MaxRL, arXiv:2602.02710).",
    prediction="pass@1 after 20 steps within 0.05 of GRPO's. pass@64 higher by less than these "
    "seeds resolve: twenty steps do not collapse anything. 4 numbers, the harder problems, gain a "
    "little more than with GRPO.",
    runs={
        "by the standard deviation (GRPO)": Run(VERDICT),
        "by the mean (MaxRL)": Run(f"{VERDICT} --scale_rewards mean"),
        "by nothing": Run(f"{VERDICT} --scale_rewards none"),
    },
    expected=[
        Expected(
            "by the mean (MaxRL)",
            "by the standard deviation (GRPO)",
            above=0.0,
            measure="pass@64 of 64",
        ),
        Expected(
            "by the mean (MaxRL)",
            "by the standard deviation (GRPO)",
            within=0.1,
            claim=False,
        ),
    ],
    groups=("4_numbers",),
    measures=(tries(),),
    found="Three ways to divide, one result: they are within 0.01 of each other at every k.",
    limits="Groups of 8: seven terms of the series, exactly only where tokens are summed, which "
    "these runs do not do. AdamW removes a common factor of the gradient, so that only the "
    "weights between problems differ.",
)

if __name__ == "__main__":
    LAB.main()
