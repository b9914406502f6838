"""What a step's numbers say about the health of a run: on the console and in the report."""


def health_warnings(metrics, config):
    """Sentences about failures that the numbers alone hide easily."""
    cut_off = metrics.get("completions/clipped_ratio", 0)
    difference = metrics.get("sampling/logp_difference_mean", 0)
    if cut_off == 1:
        yield (
            f"no completion ended within --max_tokens {config.max_tokens}: the model never wrote "
            "one of the stop tokens shown at the start; does the prompt fit it?"
        )
    elif cut_off > 0.5:
        yield "more than half of the completions were cut off: raise --max_tokens"
    named = {getattr(config, name, None) for name in ("loss_type", "baseline")}
    raw_rewards = bool(named & {"no_baseline", "none"})  # they teach without a difference, too
    if metrics.get("frac_reward_zero_std") == 1 and not raw_rewards:
        yield (
            "no signal: within each group all completions got the same reward, so every advantage "
            "is 0. If this goes on, the task is too hard or too easy for the model, or the prompt "
            "does not fit it; try more --group_size"
        )
    if metrics.get("bad_updates"):
        yield "loss or gradient not finite: the weights stay as they were"
    if difference > 0.1:
        yield (
            f"sampler and trainer disagree by {difference:.2f} nats a token: the sampler has "
            "other weights, or computes in another precision"
        )
