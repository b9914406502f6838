import functools
import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "check")]
os.environ["HF_HUB_OFFLINE"] = "1"  # or what is not there is asked for at the hub, for a minute

# On the CPU. On a card: CUDA_VISIBLE_DEVICES=0 pytest tests/test_run.py -k stopped
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# With small models a second thread only waits; also for what the tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if sys.dont_write_bytecode:  # without any, each start compiles torch and transformers again
    sys.dont_write_bytecode = False
    sys.pycache_prefix = f"{ROOT}/.pytest_cache/bytecode"
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": sys.pycache_prefix}

import countdown_rewards

# 16,384 problems, the same at each call, take more than a second.
countdown_rewards.generate_problems = functools.cache(countdown_rewards.generate_problems)

# Two environments (.ci/run): vLLM's CPU build has its own.
if importlib.util.find_spec("vllm") is None:
    collect_ignore = ["with_vllm"]

# ---- Pages in a browser


@pytest.fixture(scope="module")
def chromium():
    from docs.make import hero

    if hero.CHROMIUM is None:
        pytest.skip("no chromium: `apt-get install chromium` and run it again")
    with hero.browser() as chromium:
        yield chromium


@pytest.fixture
def opened(chromium):
    """open(file, hash, ...) -> a page that is drawn.

    At the end nothing may have failed, said anything, nor been asked of a network.
    """
    troubles = []

    def open_page(file, place="", width=1400, **options):
        page = chromium.new_page(viewport={"width": width, "height": 900}, **options)

        def asked(route):
            if route.request.is_navigation_request() and route.request.url.startswith("file://"):
                route.continue_()
            else:
                troubles.append(route.request.url)
                route.abort()

        page.route("**/*", asked)
        page.set_default_timeout(60_000)  # a slow machine is no fault of the page
        page.on("console", lambda said: troubles.append(said.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(Path(file).as_uri() + place)
        page.wait_for_selector("html[data-drawn]")
        return page

    yield open_page
    for context in chromium.contexts:
        context.close()
    assert troubles == []
