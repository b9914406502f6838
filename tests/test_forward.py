"""check/forward.py: which ways of scoring are the model, and which are not."""

import pytest
from transformers import AutoModelForCausalLM, GPT2Config, GraniteConfig, RecurrentGemmaConfig

import forward

SMALL = {"vocab_size": 20, "initializer_range": 0.5}
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


def test_a_model_without_a_cache_is_compared_in_the_other_ways():
    model = AutoModelForCausalLM.from_config(RecurrentGemmaConfig(**SMALL | SIZES | HEADS))
    assert "a cache" not in forward.differences(model)


@pytest.mark.parametrize(
    "config, wrong",
    [
        (GPT2Config(n_embd=16, n_layer=1, n_head=2, **SMALL), "the same without position_ids"),
        (GraniteConfig(logits_scaling=8.0, **SMALL, **SIZES, **HEADS), "Scorer of nano_r1.py"),
    ],
)
def test_a_way_that_is_not_the_model_is_found(config, wrong, tmp_path, monkeypatch, capsys):
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    monkeypatch.setattr("sys.argv", ["forward.py", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        forward.main()
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code == 1
    assert [line.split("  ")[0] for line in lines if line[0] == "✗"] == [f"✗ {wrong}"]
