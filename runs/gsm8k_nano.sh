#!/usr/bin/env bash
# The embedded base on generated word problems, with the default settings: two CPU cores.
source "$(dirname "$0")/common.sh"
run nano_r1.py --task gsm8k
