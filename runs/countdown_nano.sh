#!/usr/bin/env bash
# The embedded model on the built-in Countdown problems, with the default settings: 2 CPU cores, no
# network.
set -euo pipefail
cd "$(dirname "$0")/.."
python nano_r1.py --task countdown "$@"
