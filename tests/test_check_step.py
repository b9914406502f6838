"""check_step.py: real trainers agree, and a mistake planted in each place is named."""

from functools import partial

import pytest
import torch
from adapters import ours
from test_check_grpo import ADVANTAGES, LOSSES, above_median

import check_grpo
import check_step
from check_step import TinyModel
from variants import batched

GRPO = next(check_step.algorithms())


def planted(slip, make_model=TinyModel, own=None, formula=GRPO, select=list, **ignored):
    """The formula's own step with a mistake, or without an option: what the checker says."""

    def step(model, episodes, config):
        if config.reference and (select is with_signal or "sampler" in formula[1].kl):
            raise NotImplementedError("It has no KL to a reference.")
        config = check_step.changed(config, **ignored)
        model.double()
        optimizer = torch.optim.SGD(model.parameters(), config.learning_rate, config.momentum)
        if config.resume and slip != "the checkpoint is not loaded":
            weights, state = torch.load(f"{config.resume}/state")
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
        parts = batched(select(episodes), config.micro_batch_size)
        check_step.train(model, parts, config, formula, slip, optimizer)
        if config.save:
            torch.save((model.state_dict(), optimizer.state_dict()), f"{config.save}/state")
        return model

    return check_step.judge_step(step, make_model, own)


FIRST = "one micro-batch"
PARTS = "micro-batches of 4"
PLANTED = {
    "each part is a step of its own": PARTS,
    "only the last part counts": PARTS,
    "the gradient of the last step is kept": check_step.SECOND,
    "rewards and completions in different orders": FIRST,
    "the checkpoint is not loaded": check_step.RESUMED,
    "micro-batches averaged": "micro-batches of 3, and a smaller one",
    "micro-batches added up": PARTS,
    "divided by the micro-batches twice": PARTS,
    "prompt counted": FIRST,
    "end token left out": FIRST,
    "maximum instead of the minimum": check_step.SECOND,
    "groups along the wrong dimension": FIRST,
    "rewards of the next prompt": FIRST,
    "the last micro-batch is left out": PARTS,
    "the reference is scored without the temperature": "KL at temperature 2",
}


@pytest.mark.parametrize("mistake, place", PLANTED.items())
def test_a_planted_mistake_is_named_where_it_is(mistake, place):
    right, names, text = planted(mistake)
    assert not right and names[0] == mistake and f"\n✗ {place}: {mistake}. " in text


def with_signal(episodes):
    """DAPO's dynamic sampling: without the group of equal rewards, whose prompt has 3 tokens."""
    return [e for e in episodes if len(e.prompt_ids) != 3]


# Each is near to a mistake.
RIGHT = [
    "GRPO",
    "GRPO, root",
    "GRPO, doubled",
    "Dr. GRPO",
    "DAPO",
    "dynamic sampling",
    "BNPO",
    "REINFORCE++",
    "REINFORCE",
    "REINFORCE, itself",
    "RLOO",
    "RLOO with a clip",
    "MaxRL",
    "GSPO",
    "IPO",
    "Kimi K2.5",
    "VESPO",
]


@pytest.mark.parametrize("name", RIGHT)
def test_a_published_step_is_right(name):
    formula = (ADVANTAGES.get(name, GRPO[0]), LOSSES.get(name, GRPO[1]))
    select = with_signal if name == "dynamic sampling" else list
    right, _, text = planted("", formula=formula, select=select)
    assert right
    assert ("As in TRL's bnpo" in text) == (name == "BNPO")
    no_ratio = formula[1].ratio in (check_grpo.NO_RATIO, check_grpo.ITSELF)
    assert ("If you meant one, the old" in text) == no_ratio


@pytest.mark.parametrize("option", ["temperature", "kl_coef", "cliprange", "momentum"])
def test_an_option_that_is_not_passed_on_is_named(option):
    _, names, _ = planted("", **{option: check_step.PLAIN[option]})
    assert set(names) == {f"{option} has no effect"}


def test_a_constant_factor_is_a_remark():
    right, names, text = planted("", learning_rate=1.003)
    assert right and "✓ one micro-batch: the step is 1.003 times as long." in text


def test_weights_that_do_not_change_are_wrong():
    assert planted("", learning_rate=0.0)[1] == ["the weights do not change"]


@pytest.mark.parametrize(
    "name, wrong, said",
    [
        ("attention_mask", lambda x: None, "attention_mask not passed on"),
        ("position_ids", lambda x: None, "position_ids not passed on"),
        ("position_ids", lambda x: x // 2, "the padding changes the step"),
    ],
)
def test_a_wrong_mask_or_wrong_positions_under_padding_on_the_left_are_named(name, wrong, said):
    class Misled(TinyModel):
        def forward(self, input_ids, **inputs):
            if name in inputs:
                inputs[name] = wrong(inputs[name])
            return super().forward(input_ids, **inputs)

    _, names, text = planted("", Misled)
    assert names == [said] and f"\n✗ padding on the left: {said}" in text


ORDER = "rewards and completions in different orders"


@pytest.mark.parametrize(
    "used, slip, found",
    [
        (above_median, "", []),
        (above_median, ORDER, [ORDER]),
        (GRPO[0], "", ["your advantages have no effect"]),
    ],
)
def test_the_wiring_of_new_advantages_is_judged(used, slip, found):
    _, names, text = planted(slip, own=above_median, formula=(used, GRPO[1]))
    assert names == found
    assert (not found) == ("\nyour advantages, mean of" in text)


def test_a_step_that_returns_no_model_gets_a_sentence():
    with pytest.raises(SystemExit, match="step returns NoneType instead of a model."):
        check_step.judge_step(lambda *inputs: None)


# ---- Trainers of other people


def test_fine_tuning_agrees():
    """Each row has the advantage 1, and the mean is over all tokens."""
    step = partial(ours.step, sft=True)
    said = check_step.judge_step(step, advantages=torch.ones_like)[2]
    assert "in 5 of 9 situations\nyour advantages, mean over all tokens" in said


@pytest.mark.parametrize(
    "options, mean",
    [
        ({}, "mean over all tokens"),
        ({"loss_type": "dr_grpo", "scale_rewards": "none"}, "completions x constant"),
    ],
)
def test_trl_s_trainer_agrees(options, mean):
    from adapters import trl_trainer

    step = partial(trl_trainer.step, **options)
    right, _, text = check_step.judge_step(step, trl_trainer.make_model)
    assert right and "in 7 of 9 situations" in text and mean in text


def test_ours_agrees():
    advantages = check_grpo.judge_advantages(ours.advantages)[2]
    assert "agrees with GRPO\ngroup mean, deviation with n - 1, eps 0.0001 outside" in advantages
    loss = check_grpo.judge_loss(ours.loss)[2]
    assert (
        "agrees with GRPO\nratio of each token, clip 0.2 below and 0.2 above, mean of the "
        "completions' means, k3 in the loss with weight 0.04."
    ) in loss
    assert "in 8 of 9 situations" in check_step.judge_step(ours.step)[2]


def test_a_step_that_runs_in_no_situation_is_not_right():
    def step(model, episodes, config):
        raise NotImplementedError

    with pytest.raises(SystemExit, match="none of the situations"):
        check_step.judge_step(step)
