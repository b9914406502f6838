import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests")]  # tests/helpers.py

# The models are so small that a second thread only waits for the first; also for what the tests
# start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Two environments (.ci/run): vLLM's CPU build has its own, and there hypothesis is not needed.
if importlib.util.find_spec("vllm") is None:
    collect_ignore = ["with_vllm"]
if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    hypothesis.settings.register_profile("nano_r1", deadline=None)
    hypothesis.settings.load_profile("nano_r1")
