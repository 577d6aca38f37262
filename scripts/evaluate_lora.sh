#!/usr/bin/env bash
# Evaluates an epoch's adapter, merges it into the base, or both.
#   scripts/evaluate_lora.sh [CONFIG] [LORA_WEIGHTS] [evaluate|merge|both] [NUM_SAMPLES] [more options of `lfo shell evaluate`]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
LFO="${LFO:-.venv/bin/lfo}"
exec "$LFO" shell evaluate \
    --config_path "${1:-configs/qwen25_32b_os.yaml}" \
    --lora_weights_path "${2:-lora_checkpoints/epoch_10}" \
    --mode "${3:-evaluate}" \
    ${4:+--num_samples "$4"} \
    "${@:5}"
