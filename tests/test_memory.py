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
from plumbing.settings import parse_args
from plumbing.start import run_script

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import gpu


def shape(size, **changes):
    """The config of a Qwen2.5 model of that size."""
    return Qwen2Config(
        **{**dict(zip(gpu.SIZES, gpu.SHAPES[size])), "tie_word_embeddings": True, **changes}
    )


def kept(size, dtype, layers, checkpointing, tokens=64):
    """(bytes that autograd keeps, model) of a forward pass of so many layers of that shape.

    Each tensor once, weights not counted; these may have any value. Of one row: where prompts are
    shared less is kept.
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
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model.model(**inputs, use_cache=False).last_hidden_state  # holds them
    for p in model.parameters():
        storages.pop(p.untyped_storage().data_ptr(), None)
    del hidden
    return sum(storages.values()), model


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
    assert activations(two[1], 64, 4, False, 64) == pytest.approx(two[0], rel=0.1)
    for dtype, size, counted in (("float32", 4, 1024), ("bfloat16", 2, 0)):
        planned = memory_plan(two[1], config(dtype=dtype, rollout="vllm"), 1024, GIB)["update"]
        expected = activations(two[1], 1024, size, False, counted) + BUCKET * size
        assert planned["activations"] == expected


MODEL = tiny_model()  # 2 layers of width 16, an MLP of 32, keys of 1 head of 8, 50 tokens
COUNT = sum(p.numel() for p in MODEL.parameters())
ALONE = {"weights": 4 * COUNT, "libraries": memory.LIBRARIES}
HERE = {**ALONE, "episodes": 64 * 12 * 100}
SHARED = {"weights": COUNT, "libraries": memory.LIBRARIES, "episodes": 64 * 6 * 100}
SHARED |= {"reference": 2 * COUNT, "sampler's copy": 2 * COUNT, "AdamW": 6 * COUNT}
# 100 tokens: 2 layers of two norms, attention, the MLP; and the last norm.
KEPT = 100 * (2 * (2 * 12 * 16 + 8 * 24 + 16 * 32) + 12 * 16)
HALF = 100 * (2 * (2 * 8 * 16 + 4 * 24 + 8 * 32) + 8 * 16)
TWO = {"dtype": "bfloat16", "zero_stage": 3, "kl_coef": 0.1}
ON_GPU = {"zero_stage": 3, "rollout": "vllm"}
EVALUATION = {"eval_only": True, "eval_problems": 4, "eval_samples": 8}


@pytest.mark.parametrize(
    "settings, processes, turn, parts",
    [
        ({}, 1, "always", {**HERE, "AdamW": 12 * COUNT}),
        # 512 completions of 100 tokens and room for 64
        ({}, 1, "rollout", {"KV cache": 512 * 164 * 2 * 2 * 8 * 4, "logits": 24 * 512 * 50}),
        (
            {},
            1,
            "update",
            {"gradients": 4 * COUNT, "activations": KEPT, "logits": 16 * 100 * 50 + 100 * 16 * 4},
        ),
        ({"offload": True}, 1, "always", HERE),
        (TWO, 2, "always", SHARED),
        (
            TWO,
            2,
            "update",
            {"gradients": 2 * COUNT, "activations": HALF, "logits": 16 * 100 * 50 + 100 * 16 * 2},
        ),
        # For vLLM's sync the whole model is gathered.
        (ON_GPU, 2, "rollout", {"vLLM": int(0.3 * GIB), "sync": 4 * COUNT}),
        (EVALUATION, 1, "always", ALONE),
        (EVALUATION, 1, "rollout", {"KV cache": 32 * 164 * 128, "logits": 24 * 32 * 50}),
        (EVALUATION, 1, "update", {}),
    ],
)
def test_the_plan_counts_what_a_process_holds(settings, processes, turn, parts, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    card = GIB if settings is ON_GPU else None
    plan = memory_plan(MODEL, config(**settings), 100, card)[turn]
    assert {name: count for name, count in plan.items() if count} == parts


@pytest.mark.parametrize(
    "settings, flag",
    [
        ({"micro_batch_tokens": 10**7}, "--micro_batch_tokens (now 10000000)"),
        ({"vllm_gpu_memory_utilization": 0.1}, "--vllm_gpu_memory_utilization"),
    ],
)
def test_a_plan_that_exceeds_the_card_says_what_to_change(settings, flag):
    said = memory.describe_memory(MODEL, config(**settings), 100, card=2 * GIB)
    assert "WARNING" in said and flag in said


# DeepSpeed


def allocated(function, folder):
    """(what `function` returns, bytes given out by torch's allocator after it, most during it).

    Bytes since the first call.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = function()
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    return result, totals[-1], max(totals)


SMALL = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
SMALL |= {"num_attention_heads": 4, "vocab_size": 512}


def test_an_update_in_bfloat16_takes_the_memory_that_the_plan_says(monkeypatch, tmp_path):
    """Micro-batches summed in float32.

    Beside 4.8 million weights the activations of a few tokens do not matter.
    """
    init_distributed()
    monkeypatch.setattr("plumbing.models.BUCKET", 1000)
    c = config(dtype="bfloat16", micro_batch_tokens=4)
    ids = torch.ones(1, 4, dtype=torch.long)
    make = lambda: AutoModelForCausalLM.from_config(shape("0.5B", **SMALL), dtype=torch.bfloat16)
    micro_batch = lambda: engine.backward(engine(ids).logits.float().logsumexp(-1).sum())
    _, before, _ = allocated(lambda: torch.empty(1), tmp_path)
    engine, *_ = allocated(lambda: r1.make_engine(make(), c), tmp_path)
    for function in (micro_batch, engine.step, micro_batch):
        allocated(function, tmp_path)
    _, held, most = allocated(micro_batch, tmp_path)
    plan = memory_plan(engine.module, c, 4)
    always = sum(plan["always"].values()) - memory.LIBRARIES  # not torch's allocator's
    assert held - before == pytest.approx(always + plan["update"]["gradients"], rel=0.03)
    assert most - before == pytest.approx(always + sum(plan["update"].values()), rel=0.1)


def test_adapters_are_merged_one_matrix_at_a_time(tmp_path):
    """With graphs and all at once they were a second model, while vLLM is awake."""
    c = config(lora_rank=2, rollout="vllm")
    model = models.add_lora(AutoModelForCausalLM.from_config(shape("0.5B", **SMALL)), c)
    _, before, _ = allocated(lambda: torch.empty(1), tmp_path)
    merge = lambda: [weight.requires_grad for _, weight in models.merged_weights(model)]
    graphs, _, most = allocated(merge, tmp_path)
    matrix = 4 * 256 * 1024
    assert not any(graphs) and most - before < 4.1 * matrix  # of 14 in all
    assert memory_plan(model, c, 100, GIB)["rollout"]["sync"] == 4 * matrix


# The scripts in runs/


@pytest.fixture(autouse=True)
def shapes_of_the_hub(monkeypatch):
    """Qwen/Qwen2.5-1.5B and its like without a network; out/math-sft is made from such a one."""
    load_config = models.load_config

    def config_of(path):
        size = re.search(r"[\d.]+B|$", path)[0] or "1.5B"
        return shape(size) if path.startswith(("Qwen/", "out/math-sft")) else load_config(path)

    monkeypatch.setattr(models, "load_config", config_of)


SCRIPTS = sorted(path.name for path in Path(ROOT, "runs").glob("*.sh"))
LESSONS = {"nano_r1.py": r1, "nano_sft.py": nano_sft, "variants.py": variants}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_fits_on_the_card_that_it_names(script, tmp_path):
    """In its first lines; one without a card needs none."""
    text = Path(ROOT, "runs", script).read_text()
    card = re.search(r"One GPU with (\d+) GB", re.sub(r"\s*#\s*|\s+", " ", text))
    files = {"SFT": "rows", "MATH_TEST": "problems"}
    for lesson, *flags in script_commands(f"runs/{script}", folder=tmp_path, **files):
        c = parse_args(LESSONS[lesson].Config, "", "", flags)
        said, fits = plan_for_card(dataclasses.replace(c, plan=int(card[1]) if card else 8))
        assert fits, said
        # What is for a GPU stops where there is none.
        assert (card is None) == (c.dtype == "float32" and c.device == "auto")


def test_colab_s_cell_for_a_gpu_fits_on_a_t4():
    text = Path(ROOT, "notebooks/colab.py").read_text()
    (cell,) = re.findall(r"^    larger = .*?(?=^    r1.main)", text, re.M | re.S)
    scope = {"dtype": "float32"}
    exec(textwrap.dedent(cell), scope)
    assert scope["larger"]["gradient_checkpointing"] and scope["larger"]["save_every"]
    c = r1.Config(task="gsm8k", **scope["larger"], rollout="transformers", plan=16)
    said, fits = plan_for_card(c)
    assert fits, said


@pytest.mark.parametrize("size, code", [(24.0, 0), (1.0, 1)])
def test_plan_prints_what_is_needed_and_trains_nothing(size, code, capsys):
    with pytest.raises(SystemExit) as caught:
        run_script(None, r1.Config(plan=size))
    said = capsys.readouterr().out
    assert said.startswith("models/nano-base in float32, prompts of 256 tokens: ")
    assert (caught.value.code, "WARNING" in said) == (code, code == 1)
