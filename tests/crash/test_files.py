"""A few of the faults at files; `python tests/crash/files.py` does all."""

from files import harness


def test_a_run_survives_a_kill_half_a_file_a_full_disk_and_a_flipped_bit(tmp_path):
    assert harness(tmp_path, every=80, first=45) >= 2
