"""A few of the harness's kills; `python tests/crash/kill.py --times 20` does more."""

from kill import harness


def test_a_run_killed_again_and_again_is_the_run_that_never_was(tmp_path):
    runs, half = harness(times=2, seed=0, out=str(tmp_path))
    assert runs >= 1 and half >= 1
