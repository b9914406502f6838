#!/usr/bin/env bash
# The embedded base on generated word problems, with the default settings: two CPU cores.
set -euo pipefail
cd "$(dirname "$0")/.."
python "${SCRIPT:-nano_r1.py}" --task gsm8k "$@"
