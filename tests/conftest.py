import importlib.util
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Two environments (.ci/run): vLLM's CPU build has its own, and there hypothesis is not needed.
if importlib.util.find_spec("vllm") is None:
    collect_ignore = ["with_vllm"]
if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    hypothesis.settings.register_profile("nano_r1", deadline=None)
    hypothesis.settings.load_profile("nano_r1")
