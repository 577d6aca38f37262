#!/usr/bin/env bash
# Evaluates an epoch's adapter, merges it into the base, or both. Merging plays no tasks: NUM_SAMPLES is no matter then.
#   scripts/evaluate_lora.sh [CONFIG] [LORA_WEIGHTS] [evaluate|merge|both] [NUM_SAMPLES] [more options of `lfo shell evaluate`]
# Paths are those of the repository, from wherever it is called.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
LFO="${LFO:-.venv/bin/lfo}"
[ "${3:-}" = merge ] && set -- "$1" "$2" merge "" "${@:5}"
exec "$LFO" shell evaluate \
    --config_path "${1:-configs/qwen25_32b_os.yaml}" \
    --lora_weights_path "${2:-lora_checkpoints/epoch_10}" \
    --mode "${3:-evaluate}" \
    ${4:+--num_samples "$4"} \
    "${@:5}"
