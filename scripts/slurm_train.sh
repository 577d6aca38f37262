#!/usr/bin/env bash
# One run on several machines under Slurm: the first SERVER_NODES of them answer rollouts (vLLM servers), the others
# learn (FSDP2, one process per GPU). Submit it from the repository root, with the environment of extra `gpu` active:
#   SERVER_NODES=1 sbatch --nodes=3 scripts/slurm_train.sh configs/qwen3_8b.yaml runs/qwen3_8b [NAME=VALUE ...]
# The run folder must lie on a file system that all nodes see under the same path. A run that was stopped, or requeued,
# goes on from its last checkpoint, on as many nodes as it then has.
#SBATCH --job-name=lfo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --requeue
set -euo pipefail

config=$1 run=$2
shift 2
server_nodes=${SERVER_NODES:-1}
gpus=${SLURM_GPUS_ON_NODE:?start this with sbatch}
split=$(python -c "import sys; from lfo.config import load_config; print(load_config(sys.argv[1]).distributed.tensor_parallel)" "$config")
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
learners=("${nodes[@]:server_nodes}")
if ((server_nodes < 1 || ${#learners[@]} < 1)); then
    echo "of ${#nodes[@]} nodes, SERVER_NODES=$server_nodes serve: at least one must serve and one must learn." >&2
    exit 1
fi
mkdir -p "$run"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT # the servers end with the run

servers=()
for node in "${nodes[@]:0:server_nodes}"; do
    for ((first = 0; first + split <= gpus; first += split)); do
        port=$((8010 + first)) # 8000 is left to task servers
        visible=$(seq -s, "$first" $((first + split - 1)))
        srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --output="$run/server-$node-$port.log" \
            env CUDA_VISIBLE_DEVICES="$visible" lfo serve --config "$config" --host "$node" --port "$port" &
        servers+=("http://$node:$port")
    done
done

nodelist=$(IFS=,; echo "${learners[*]}")
addresses=$(IFS=,; echo "${servers[*]}")
srun --overlap --nodes="${#learners[@]}" --ntasks-per-node=1 --nodelist="$nodelist" \
    torchrun --nnodes="${#learners[@]}" --nproc-per-node="$gpus" \
    --rdzv-backend=c10d --rdzv-endpoint="${learners[0]}:29500" --rdzv-id="$SLURM_JOB_ID" \
    -m lfo.cli train --device cuda --quiet --config "$config" --run "$run" \
    --set "rollout.engine=$addresses" "distributed.processes=$((gpus * ${#learners[@]}))" "$@"
