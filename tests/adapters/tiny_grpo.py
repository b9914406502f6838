"""open-thought/tiny-grpo (train.py at c4f70bc) for check_step.py: its wiring, with the formulas.

Its pad token is Llama's end token, so no mask has the end token.
"""

import check_step


def step(model, episodes, config, slip="end token left out"):
    if config.micro_batch_size < len(episodes):
        raise NotImplementedError("Each batch is an optimizer step.")
    if config.save or config.resume:
        raise NotImplementedError("It saves no optimizer.")
    config.padding_side = "left"  # zero_pad_sequences
    config.temperature = 1.0  # of the log-probs; rollout() has a setting for its own
    grpo = next(check_step.algorithms())
    check_step.train(model, [episodes], config, grpo, slip)
    return model
