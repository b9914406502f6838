#!/usr/bin/env bash
# Qwen3-0.6B-Base on GSM8K, a base model of 2025 beside Qwen2.5-0.5B. One GPU with 24 GB or more.
# Not run yet.
#
# Settings and prompts: those of gsm8k_olmo2_1b.sh. No result was reported for it.
MODEL=${MODEL:-Qwen/Qwen3-0.6B-Base}
source "$(dirname "$0")/gsm8k_olmo2_1b.sh"
