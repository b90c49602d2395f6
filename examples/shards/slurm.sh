#!/bin/bash
# A study in shards as a Slurm array. On a login node, in a checkout that every node sees:
#
#   cargo xtask build
#   target/release/photofinish shard plan --shards 8 -- sweep generate --prompt-tokens 16,256,1024 --batch 1,4,16 --rounds 6
#   sbatch --array=0-7 examples/shards/slurm.sh
#   target/release/photofinish shard merge shards/*/*/
#
# --exclusive and one task a node, because a neighbour's job is noise. Nodes of one array should be of one make. If
# they are not, the merged tables keep them apart.
#SBATCH --job-name=photofinish
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --output=shards/slurm-%A_%a.log

set -euo pipefail
: "${SLURM_ARRAY_TASK_ID:?submit this with sbatch --array=0-N}"
mkdir -p "shards/${SLURM_ARRAY_TASK_ID}"
# A job that is requeued after a time limit or a lost node goes on with the directory that it left.
shopt -s nullglob
left=("shards/${SLURM_ARRAY_TASK_ID}"/*/)
resume=()
if ((${#left[@]})); then resume=(--resume "${left[0]%/}"); fi
exec srun --cpu-bind=none target/release/photofinish shard run \
  --plan plan.json --shard "${SLURM_ARRAY_TASK_ID}" --results-dir "shards/${SLURM_ARRAY_TASK_ID}" "${resume[@]}"
