#!/usr/bin/env bash
set -uo pipefail

usage() {
    cat <<'TEXT'
All that is to be checked and measured on a machine with a CUDA device, in 40 minutes at most and without a network.

    scripts/gpu_check.sh [--miniature] [--table FILE] [PART ...]

Parts, all of them by default, in this order:
    tests      what a GPU may not change (tests/test_gpu.py)
    shapes     Qwen3-8B's shapes with random weights: memory against `lfo plan`, tokens/s of learner and engines
    embedded   a whole run of configs/laptop.yaml on the GPU, against the seconds of one CPU core
    smollm2    SmolLM2-135M, baseline and imagine for two minutes each, where LFO_SMOLLM2 names its file or folder
    reading    SmolLM2-135M as a world model, where LFO_SMOLLM2 names it: what it knows of held-out replies from 320 calls
               in each of two worlds

Each part has eight minutes at most. Rows are written to benchmarks/gpu.csv as soon as they are measured. What the
table has for this commit is not measured again, so that the same command goes on where a machine was taken away; a
training run goes on from its checkpoint (build/gpu). Delete rows to measure again. In a working tree with changes, or
without git, nothing is taken as measured, unless LFO_COMMIT names what it holds.

    --miniature   every part on the CPU with tiny shapes, in less than a minute, to see that all of it works
    --table FILE  write the rows there
    PYTHON        the interpreter; without it that of .venv, or python3

Exit status: 0; 1 if a part failed or ran out of time; 2 if there is no CUDA device.
TEXT
}

cd "$(dirname "$0")/.." || exit 1
limit=480 parts=() options=() table=
while (($#)); do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --miniature) options+=(--miniature) ;;
        --table) table=${2:?--table needs a file} && shift ;;
        tests | shapes | embedded | smollm2 | reading) parts+=("$1") ;;
        *) echo "scripts/gpu_check.sh: there is no part or option '$1'; see --help." >&2 && exit 1 ;;
    esac
    shift
done
((${#parts[@]})) || parts=(tests shapes embedded smollm2 reading)
[[ -n $table ]] && options+=(--table "$table")

python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-8589934592}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-17179869184}

failed=()
for part in "${parts[@]}"; do
    echo "== gpu_check: $part"
    timeout --kill-after=20 "$limit" "$python" benchmarks/gpu.py "$part" "${options[@]}"
    status=$?
    ((status == 2)) && exit 2
    ((status == 124 || status == 137)) && echo "$part ran out of time; the same command goes on with it." >&2
    ((status)) && failed+=("$part")
done
echo "== gpu_check: summary"
"$python" benchmarks/gpu.py summary "${options[@]}"
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}"
    exit 1
fi
echo "all parts passed: ${parts[*]}"
