"""The memory plan: what layers keep and DeepSpeed holds, measured; the scripts on their cards."""

import dataclasses
import json
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from helpers import ROOT, config, script_commands, tiny_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, Qwen2Config

import nano_r1 as r1
import nano_sft
import variants
from plumbing import memory, models, packing
from plumbing.memory import BUCKET, GIB, activations, memory_plan, plan_for_card
from plumbing.processes import init_distributed
from plumbing.sampler import sampler_kind
from plumbing.settings import parse_args
from plumbing.start import run_script

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import gpu


def shape(size, **changes):
    """The config of a Qwen2.5 model of that size."""
    return Qwen2Config(
        **{**dict(zip(gpu.SIZES, gpu.SHAPES[size])), "tie_word_embeddings": True, **changes}
    )


class Kept:
    """Bytes of what autograd keeps for the backward pass: each tensor once, weights not counted."""

    def __init__(self, model):
        self.weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.storages = {}

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self):
        return sum(self.storages.values())


def kept(size, dtype, layers, checkpointing, tokens=64):
    """(measured bytes, model) of a forward pass of so many layers of that shape.

    The weights may have any value. Of one row: where prompts are shared less is kept.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            shape(size, num_hidden_layers=layers, vocab_size=8), dtype=getattr(torch, dtype)
        )
    model = model.to_empty(device="cpu").train()
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    model.config._attn_implementation = packing.NAME  # as `load_model` has it
    inputs, _ = packing.pack(torch.zeros(1, tokens, dtype=torch.long), torch.ones(1, tokens) > 0)
    measured = Kept(model)
    with torch.autograd.graph.saved_tensors_hooks(measured.pack, lambda tensor: tensor):
        hidden = model.model(**inputs, use_cache=False).last_hidden_state
    del hidden
    return measured.bytes, model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", ["0.5B", "1.5B", "3B"])
def test_what_the_layers_keep_is_within_a_tenth_of_what_autograd_keeps(size, dtype):
    number = torch.finfo(getattr(torch, dtype)).bits // 8
    one, two = (kept(size, dtype, layers, False) for layers in (1, 2))
    assert activations(two[1], 64, number, False) == pytest.approx(two[0], rel=0.1)
    # Recomputed: what is kept in the forward pass, and one layer in full; that is the second layer
    # of the two above.
    inputs, model = kept(size, dtype, 2, True)
    assert activations(model, 64, number, True) == pytest.approx(inputs + two[0] - one[0], rel=0.1)


def test_in_float32_on_a_gpu_attention_keeps_its_weights():
    """There keys that several heads share leave only the kernel that stores them: measured with it.

    The plan counts every completion as one of the longest: 64 tokens, as here.
    """
    with sdpa_kernel(SDPBackend.MATH):
        one, two = (kept("0.5B", "float32", layers, False) for layers in (1, 2))
    flash = activations(two[1], 64, 4, False)
    assert activations(two[1], 64, 4, False, 64) == pytest.approx(two[0], rel=0.1)
    assert activations(two[1], 64, 4, False, 1024) > 1.5 * flash
    for dtype, counted in (("float32", 1024), ("bfloat16", 0)):
        planned = memory_plan(two[1], config(dtype=dtype, rollout="vllm"), 1024, GIB)["update"]
        size = {"float32": 4, "bfloat16": 2}[dtype]
        expected = activations(two[1], 1024, size, False, counted) + BUCKET * size
        assert planned["activations"] == expected


def known(parts):
    return {name: count for name, count in parts.items() if count}


def test_the_plan_counts_weights_gradients_and_adamw(monkeypatch):
    model = tiny_model()
    count = sum(p.numel() for p in model.parameters())
    plan = memory_plan(model, config(), 100)
    parts = {"libraries": memory.LIBRARIES, "episodes": 64 * 12 * 100}
    assert known(plan["always"]) == {"weights": 4 * count, "AdamW": 12 * count, **parts}
    # 512 completions of 100 tokens and room for 64, 2 layers, keys and values of 1 head of 8; 50
    # logits
    assert plan["rollout"] == {"KV cache": 512 * 164 * 2 * 2 * 8 * 4, "logits": 24 * 512 * 50}
    # 100 tokens: 2 layers of two norms of 12 x 16, 8 x 24 of attention, 16 x 32 of the MLP, and
    # the last norm
    layers = 100 * (2 * (2 * 12 * 16 + 8 * 24 + 16 * 32) + 12 * 16)
    assert plan["update"] == {
        "gradients": 4 * count,
        "activations": layers,
        "logits": 16 * 100 * 50 + 2 * 50 * 16 * 4,
    }
    assert memory_plan(model, config(offload=True), 100)["always"]["AdamW"] == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    plan = memory_plan(model, config(dtype="bfloat16", zero_stage=3, kl_coef=0.1), 100)
    parts = {
        "libraries": memory.LIBRARIES,
        "episodes": 64 * 6 * 100,
        "weights": count,
        "reference": 2 * count,
        "sampler's copy": 2 * count,
        "AdamW": 6 * count,
    }
    assert known(plan["always"]) == parts and plan["update"]["gradients"] == 2 * count


def test_an_evaluation_alone_needs_neither_gradients_nor_a_reference():
    plan = memory_plan(
        tiny_model(), r1.Config(eval_only=True, eval_problems=4, eval_samples=8), 100
    )
    assert set(plan["always"]) == {"weights", "libraries"} and plan["update"] == {}
    assert plan["rollout"]["logits"] == 24 * 32 * 50


def test_a_plan_that_exceeds_the_card_says_what_to_change():
    said = memory.describe_memory(tiny_model(), config(micro_batch_tokens=10**7), 100, card=2 * GIB)
    assert "WARNING" in said and "--micro_batch_tokens (now 10000000)" in said
    said = memory.describe_memory(
        tiny_model(), config(vllm_gpu_memory_utilization=0.1), 100, card=2 * GIB
    )
    assert "WARNING" in said and "--vllm_gpu_memory_utilization" in said


# DeepSpeed


def allocated(function, folder):
    """(what `function` returns, bytes given out by torch's allocator after it, most during it).

    Bytes since the first call.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        result = function()
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    totals = [
        event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]"
    ]
    return result, totals[-1], max(totals)


def test_an_update_in_bfloat16_takes_the_memory_that_the_plan_says(monkeypatch, tmp_path):
    """Micro-batches summed in float32.

    Beside 4.8 million weights the activations of a few tokens do not matter.
    """
    init_distributed()
    monkeypatch.setattr("plumbing.models.BUCKET", 1000)
    c = config(dtype="bfloat16", micro_batch_tokens=4)
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    small = shape("0.5B", **sizes, vocab_size=512)

    def start():
        return r1.make_engine(AutoModelForCausalLM.from_config(small, dtype=torch.bfloat16), c)

    def micro_batch():
        engine.backward(
            engine(torch.ones(1, 4, dtype=torch.long)).logits.float().logsumexp(-1).sum()
        )

    _, before, _ = allocated(lambda: torch.empty(1), tmp_path)
    engine, *_ = allocated(start, tmp_path)
    for function in (micro_batch, engine.step, micro_batch):
        allocated(function, tmp_path)
    _, held, most = allocated(micro_batch, tmp_path)
    plan = memory_plan(engine.module, c, 4)
    always = sum(plan["always"].values()) - memory.LIBRARIES  # not torch's allocator's
    assert held - before == pytest.approx(always + plan["update"]["gradients"], rel=0.03)
    assert most - before == pytest.approx(always + sum(plan["update"].values()), rel=0.1)


def test_adapters_are_merged_one_matrix_at_a_time(tmp_path):
    """With graphs and all at once they were a second model, while vLLM is awake."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(
        shape("0.5B", num_hidden_layers=4, vocab_size=512, **sizes)
    )
    model = models.add_lora(model, config(lora_rank=2))
    _, before, _ = allocated(lambda: torch.empty(1), tmp_path)
    merge = lambda: [weight.requires_grad for _, weight in models.merged_weights(model)]
    graphs, _, most = allocated(merge, tmp_path)
    matrix = 4 * 256 * 1024
    assert not any(graphs) and most - before < 4.1 * matrix  # of 14 in all
    c = config(lora_rank=2, rollout="vllm")
    assert memory_plan(model, c, 100, GIB)["rollout"]["sync"] == 4 * matrix


def test_under_zero_3_on_several_gpus_the_sync_gathers_the_whole_model(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = tiny_model()
    plan = memory_plan(model, config(zero_stage=3, rollout="vllm"), 100, GIB)
    assert plan["rollout"]["sync"] == 4 * sum(p.numel() for p in model.parameters())


# The scripts in runs/


@pytest.fixture(autouse=True)
def shapes_of_the_hub(monkeypatch, tmp_path):
    """Qwen/Qwen2.5-1.5B and its like without a network: directories with config.json alone."""
    find = models.find

    def found(path):
        if path.startswith(("Qwen/", "out/math-sft")):  # the latter is made from Qwen2.5-Math-1.5B
            size = re.search(r"[\d.]+B|$", path)[0] or "1.5B"
            shape(size).save_pretrained(tmp_path / size)
            return str(tmp_path / size)
        return find(path)

    monkeypatch.setattr(models, "find", found)


COLAB = Path(ROOT, "notebooks/colab.py")
SCRIPTS = sorted(path.name for path in Path(ROOT, "runs").glob("*.sh"))
CARD = re.compile(r"One GPU with (\d+) GB")


def card_of(script):
    """GB of the card that a script names in its first lines; None if it needs no GPU."""
    text = " ".join(
        line.strip("# ") for line in Path(ROOT, "runs", script).read_text().splitlines()
    )
    found = CARD.search(text)
    return found and int(found[1])


def plans_of(script, folder, *arguments):
    """Of each command that a script gives to python: config, the plan's text, whether it fits."""
    for lesson, *flags in script_commands(
        f"runs/{script}", *arguments, folder=folder, SFT="rows", MATH_TEST="problems"
    ):
        lesson = {"nano_r1.py": r1, "nano_sft.py": nano_sft, "variants.py": variants}[lesson]
        c = parse_args(lesson.Config, "", "", flags)
        yield c, *plan_for_card(dataclasses.replace(c, plan=card_of(script) or 8))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_fits_on_the_card_that_it_names(script, tmp_path):
    for c, said, fits in plans_of(script, tmp_path):
        assert fits, said
        # what is for a GPU stops where there is none
        assert (card_of(script) is None) == (c.dtype == "float32" and c.device == "auto")


def test_without_checkpointing_the_scripts_for_48_gb_would_not_fit(tmp_path):
    """No rubber stamp: this is what the scripts said before the plan was made from measurements."""
    c, *_ = next(plans_of("countdown_qwen2.5_1.5b.sh", tmp_path))
    changes = {"gradient_checkpointing": False, "micro_batch_tokens": 8192, "plan": 48}
    said, fits = plan_for_card(dataclasses.replace(c, **changes))
    assert not fits and "lower --micro_batch_tokens (now 8192)" in said


def test_colab_s_cell_for_a_gpu_fits_on_a_t4(monkeypatch):
    """A T4: 16 GB, capability 7.5. `auto` takes our loop there, and vLLM from 8.0 on."""
    (cell,) = re.findall(r"^    larger = .*?(?=^    r1.main)", COLAB.read_text(), re.M | re.S)
    scope = {"dtype": "float32"}
    exec(textwrap.dedent(cell), scope)
    assert scope["larger"]["gradient_checkpointing"] and scope["larger"]["save_every"]
    c = r1.Config(task="gsm8k", **scope["larger"], rollout="transformers", plan=16)
    said, fits = plan_for_card(c)
    assert fits, said
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "vllm")
    for capability, kind in (((7, 5), "transformers"), ((8, 0), "vllm")):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda c=capability: c)
        assert sampler_kind(r1.Config()) == kind


def test_plan_prints_what_is_needed_and_trains_nothing(capsys, monkeypatch):
    for size, code in ((24.0, 0), (1.0, 1)):
        with pytest.raises(SystemExit) as caught:
            run_script(None, r1.Config(plan=size))
        assert caught.value.code == code
        said = capsys.readouterr().out
        assert said.startswith("models/nano-base in float32, prompts of 256 tokens: ")
        assert ("WARNING" in said) == (code == 1)
