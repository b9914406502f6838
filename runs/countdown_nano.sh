#!/usr/bin/env bash
# The embedded model on the built-in Countdown problems: 2 CPU cores, about ten minutes. These are the defaults.
set -euo pipefail
cd "$(dirname "$0")/.."
python nano_r1.py --task countdown "$@"
