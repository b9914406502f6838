"""`benchmarks/gpu.py` from end to end on a CPU, and the numbers it divides by."""

import os
import re
import sys

import pytest
import torch
from helpers import ROOT, run
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import gpu


def test_the_table_has_speeds_memory_and_the_mismatch(tmp_path):
    flags = "--models tiny --rollout transformers --prompts_per_step 2 --group_size 4 --rounds 2"
    flags += f" --max_tokens 48 --micro_batch_tokens 400 --peak_tflops 1 --dir {tmp_path}"
    env = {"CUDA_VISIBLE_DEVICES": ""}
    done = run(*flags.split(), script="benchmarks/gpu.py", env=env)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]
    cells = {line[1].strip(): line[2:] for line in lines[2:]}
    assert list(cells) == ["rollout", "update", "sync", "step"]
    number = lambda part, column: float(
        re.search(r"[\d.,]+", cells[part][column])[0].replace(",", "")
    )
    for part in ("rollout", "update", "step"):
        assert 0 < number(part, 0) < 60  # seconds
        assert 0 < number(part, 1) < 1e9  # tokens a second
    for part in ("rollout", "update"):
        assert 0 <= number(part, 2) < 100  # MFU
        assert 0 < number(part, 3) < 100  # GiB
    mean, largest, sample_size = (float(e.split()[-1]) for e in cells["update"][-1].split(","))
    assert 0 < mean < 1e-5 and mean <= largest < 1e-3  # float32, without a GPU
    assert 0.999 < sample_size <= 1


def test_flops_of_the_1_5b_shape_are_those_counted_by_hand():
    # 28 layers of 2 x 1536 x 1536 (query, output) + 2 x 1536 x 256 (key, value) + 3 x 1536 x 8960
    # (MLP), 46,792,704 weights, and an output layer of 1536 x 151,936 = 233,373,696: together
    # 1,543,569,408 of 1,543,714,304.
    assert gpu.flops_per_token("1.5B") == {
        "rollout": 2 * 1_543_569_408,
        "update": 6 * 1_543_569_408,
    }


@pytest.mark.parametrize(
    "name, parameters", [("0.5B", 494_032_768), ("1.5B", 1_543_714_304), ("3B", 3_085_938_688)]
)
def test_the_shapes_have_as_many_parameters_as_the_real_models(name, parameters):
    sizes = dict(zip(gpu.SIZES, gpu.SHAPES[name]))
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert gpu.flops_per_token(name)["rollout"] == pytest.approx(2 * parameters, rel=1e-3)


@pytest.mark.parametrize(
    "card, peak",
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H200", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA B200", 2250),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA RTX A6000", 155),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA A10G", 70),
        ("NVIDIA GeForce RTX 4090", 165),
        ("Tesla T4", 65),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
        ("CPU, 2 cores", None),
    ],
)
def test_a_card_s_peak_goes_by_its_whole_name(card, peak):
    assert gpu.peak_tflops(card) == peak
