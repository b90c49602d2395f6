#!/bin/bash
# A study in parts as a Slurm array. On a login node, in a checkout that every node sees:
#
#   cargo xtask build
#   sbatch --array=1-8 examples/parts/slurm.sh
#   target/release/photofinish report parts/*/*/ --output whole
#
# --exclusive and one task a node, because a neighbour's job is noise. Nodes of one array should be of one make.
#SBATCH --job-name=photofinish
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --output=parts/slurm-%A_%a.log

set -euo pipefail
: "${SLURM_ARRAY_TASK_ID:?submit this with sbatch --array=1-N}"
to="parts/${SLURM_ARRAY_TASK_ID}"
mkdir -p "$to"
# A job that is requeued after a time limit or a lost node goes on with the directory that it left.
shopt -s nullglob
left=("$to"/*/)
resume=()
if ((${#left[@]})); then resume=(--resume "${left[0]%/}"); fi
exec srun --cpu-bind=none target/release/photofinish sweep generate --prompt-tokens 16,256,1024 --batch 1,4,16 --rounds 6 \
  --cells "${SLURM_ARRAY_TASK_ID}/${SLURM_ARRAY_TASK_MAX}" --results-dir "$to" "${resume[@]}"
