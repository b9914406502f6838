"""A course's comparisons (CS336, 2026): baseline x normalizer x aggregation, and importance.

Fourteen variants, four seeds: 76 minutes of one core.
"""

from lab import SHORT, Expected, Lab, Run

GSM8K = f"--task gsm8k --max_tokens 64 {SHORT} --binary_reward"
BASELINES = {"mean": "", "none": "--baseline none"}
NORMALIZERS = {"std": "", "none": "--scale_rewards none", "mean": "--scale_rewards mean"}
AGGREGATES = {"sequence": "", "constant": "--loss_agg_mode seq-mean-token-sum-norm"}
OFF_POLICY = "--minibatches 32 --prompts_per_step 32 --group_size 4"  # a group for each update
IMPORTANCE = {
    "none": f"{OFF_POLICY} --loss_type reinforce_with_baseline",
    "no clip": f"{OFF_POLICY} --loss_type grpo_no_clip",
    "grpo": OFF_POLICY,
    "gspo": f"{OFF_POLICY} --loss_type gspo --cliprange 3e-4 --cliprange_high 4e-4",
}


def grid():
    """{label: Run}. Without a baseline equal rewards have no deviation to be divided by."""
    made = {}
    for baseline, first in BASELINES.items():
        for normalizer, second in NORMALIZERS.items():
            for aggregate, third in AGGREGATES.items():
                if (baseline, normalizer) != ("none", "std"):
                    label = f"baseline {baseline}, normalizer {normalizer}, {aggregate}"
                    made[label] = Run(" ".join([GSM8K, first, second, third]))
    for name, flags in IMPORTANCE.items():
        made[f"32 updates a batch, importance {name}"] = Run(f"{GSM8K} {flags}")
    return made


FIRST = "baseline mean, normalizer std, sequence"
LAB = Lab(
    title="An assignment's page: baselines, normalizers, importance",
    claim="The assignment of 2026 asks which baseline, normalizer, aggregation and importance "
    "weight learn GSM8K best in one budget (four seeds, 26 hours of a B200, by students' notes).",
    prediction="On the generated word problems: a baseline is worth more than any normalizer; "
    "std, none and mean are within 0.05 of each other, since AdamW removes common factors; of 32 "
    "updates a batch the clip is what keeps it stable, and no importance weight is worst.",
    runs=grid(),
    expected=[
        Expected(FIRST, "baseline none, normalizer none, sequence", above=0.02),
        Expected(FIRST, "baseline mean, normalizer none, sequence", within=0.05),
        Expected(FIRST, "baseline mean, normalizer mean, sequence", within=0.05),
        Expected(
            "32 updates a batch, importance grpo",
            "32 updates a batch, importance none",
            above=0.0,
            claim=False,
        ),
    ],
    found="With one update a batch all ten end between 0.60 and 0.63: no baseline, normalizer or "
    "aggregation stands out. A third of the problems are of stories that nobody learns, so that "
    "0.67 is the ceiling, and 20 steps come near it. 32 updates a batch end lower, whatever the "
    "importance weight: 0.44 to 0.46, and 0.52 with GSPO, whose clip freezes a quarter of the "
    "tokens (GRPO's 1%).",
    limits="Generated word problems of 20 templates, and one learning rate for all: a variant "
    "that wants another one is judged unfairly.",
    seeds=(0, 1, 2, 3),
)

if __name__ == "__main__":
    LAB.main()
