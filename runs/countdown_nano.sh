#!/usr/bin/env bash
# The embedded base on generated Countdown problems, with the default settings: two CPU cores.
source "$(dirname "$0")/common.sh"
run nano_r1.py --task countdown
