"""check/forward.py: which ways of scoring are the model, and which are not."""

import pytest
from test_nano_r1 import KINDS, tiny

import forward


def test_a_model_without_a_cache_is_compared_in_the_other_ways():
    assert "a cache" not in forward.differences(tiny("recurrent_gemma"))


@pytest.mark.parametrize(
    "kind, changes, wrong",
    [
        ("gpt2", KINDS["gpt2"], "the same without position_ids"),
        ("granite", {"logits_scaling": 8.0}, "Scorer of nano_r1.py"),
    ],
)
def test_a_way_that_is_not_the_model_is_found(kind, changes, wrong, tmp_path, monkeypatch, capsys):
    tiny(kind, **changes).save_pretrained(tmp_path)
    monkeypatch.setattr("sys.argv", ["forward.py", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        forward.main()
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code == 1
    assert [line.split("  ")[0] for line in lines if line[0] == "✗"] == [f"✗ {wrong}"]
