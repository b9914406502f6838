import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

try:
    import hypothesis
except ImportError:  # tests/vllm has an environment of its own, without it
    pass
else:
    hypothesis.settings.register_profile("nano_r1", deadline=None)
    hypothesis.settings.load_profile("nano_r1")
