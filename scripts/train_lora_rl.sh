#!/usr/bin/env bash
# LoRA + PPO on shell tasks, by epochs; goes on where it was interrupted.
#   scripts/train_lora_rl.sh [CONFIG] [OUTPUT_DIR] [NUM_EPOCHS] [SAMPLES_PER_EPOCH] [more options of `lfo shell train`]
# Paths are those of the repository, from wherever it is called.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"
LFO="${LFO:-.venv/bin/lfo}"
exec "$LFO" shell train \
    --config_path "${1:-configs/qwen25_32b_os.yaml}" \
    --output_dir "${2:-lora_checkpoints}" \
    --num_epochs "${3:-10}" \
    --samples_per_epoch "${4:-50}" \
    "${@:5}"
