#!/usr/bin/env bash
# The runs of a sweep under Slurm, as an array whose jobs share them out. Submit it from the repository root, with the
# environment active:
#   sbatch --array=0-7 scripts/slurm_sweep.sh configs/science.yaml results/runs [more options of `lfo sweep`]
# The folder must lie on a file system that all nodes see under the same path. A job that was stopped, or requeued, goes
# on from the last checkpoints. Job k of n has every n-th run from the k-th on, so an array has no gaps; a share is trained
# again by `scontrol requeue`, or by `lfo sweep --part k/n`. When all are done, `lfo sweep` without an array finds nothing left and writes the table:
#   sbatch --dependency=afterok:JOB --wrap "lfo sweep --grid configs/science.yaml --out results/runs"
#SBATCH --job-name=lfo-sweep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

grid=$1 out=$2
shift 2
part=$((${SLURM_ARRAY_TASK_ID:?start this with sbatch --array} - SLURM_ARRAY_TASK_MIN))
if ((SLURM_ARRAY_TASK_MAX - SLURM_ARRAY_TASK_MIN + 1 != SLURM_ARRAY_TASK_COUNT)); then
    echo "slurm_sweep.sh: an array with gaps leaves runs out; start it without, e.g. sbatch --array=0-7" >&2
    exit 1
fi
cores=1 before=
for word; do
    case $before,$word in
    --cores,*) cores=$word ;;
    *,--cores=*) cores=${word#--cores=} ;;
    esac
    before=$word
done
exec lfo sweep --grid "$grid" --out "$out" --part "$part/$SLURM_ARRAY_TASK_COUNT" \
    --workers "$((${SLURM_CPUS_PER_TASK:-1} / cores))" "$@"
