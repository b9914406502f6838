"""One label per metric, for console, page, lesson, pictures and notebooks."""

METRICS = {  # name in metrics.jsonl: (label, meaning)
    "eval/pass@1": (
        "held-out correct",
        "Share of the held-out problems that one sampled completion solves.",
    ),
    "reward/answer": (
        "correct",
        "Share of the step's completions with the correct answer.",
    ),
    "reward": ("reward", "Mean total reward of the step's completions: format plus answer."),
    "reward/format": ("format", "Mean format reward of the step's completions, 0 to 1."),
    "frac_reward_zero_std": (
        "no signal",
        "Share of groups whose rewards are all equal, so that they teach nothing.",
    ),
    "completions/mean_length": (
        "tokens",
        "Mean length of the step's completions in tokens, with the end token.",
    ),
    "completions/clipped_ratio": (
        "cut off",
        "Share of the step's completions that reached the limit of tokens.",
    ),
    "clip_ratio/region_mean": (
        "clipped",
        "Share of the tokens at which the clip has set the gradient to 0.",
    ),
    "loss": (
        "loss",
        "The surrogate loss. Only its gradient matters: the value is near 0 in good and bad runs.",
    ),
    "grad_norm": ("gradient", "Norm of the gradient before it is clipped."),
    "lr": ("learning rate", "Learning rate of the step."),
    "entropy": (
        "entropy",
        "Mean of -log pi over the sampled tokens, in nats. Near 0 the policy no longer explores.",
    ),
    "kl": (
        "KL from the reference",
        "Mean over tokens of the k3 estimate of KL(policy, reference), in nats.",
    ),
    "sampling/logp_difference_mean": (
        "sampler against trainer",
        "Mean difference between the sampler's and the trainer's log-prob of a token, in nats.",
    ),
    "eval/format": ("held-out format", "Mean format reward of the held-out completions, 0 to 1."),
    "eval/mean_length": (
        "held-out tokens",
        "Mean length of the held-out completions in tokens, with the end token.",
    ),
    "eval/clipped_ratio": (
        "held-out cut off",
        "Share of the held-out completions that reached the limit of tokens.",
    ),
    "eval/problems": ("held-out problems", "Number of held-out problems."),
    "time/step": ("whole step", "Seconds of the whole step, without evaluation and checkpoint."),
}
PANELS = [  # (title, metrics)
    ("accuracy", ["reward/answer", "eval/pass@1"]),
    ("reward", ["reward", "reward/format"]),
    ("tokens per completion", ["completions/mean_length"]),
    ("entropy, nats per token", ["entropy"]),
    ("norm of the gradient", ["grad_norm"]),
    ("shares", ["frac_reward_zero_std", "completions/clipped_ratio", "clip_ratio/region_mean"]),
    ("KL from the reference, nats per token", ["kl"]),
]
