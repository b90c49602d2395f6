#!/bin/bash
# Runs slurm.sh under a real Slurm that lives on this machine alone and is gone afterwards: a controller and two nodes,
# in two shards, of which one is ended in mid-run and requeued. What is merged must be what one run gives.
#
#   apt-get install munge slurmctld slurmd slurm-client     # Debian, Ubuntu; as root
#   cargo build --release --package driver --package engine-mock --package prepare
#   examples/shards/try-slurm.sh
#
# The engines are mocks with a scripted clock, so that figures can be equal to the last digit. It takes some minutes and
# is no part of the tests.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
missing=()
for program in munged slurmctld slurmd sbatch srun scontrol squeue python3; do
  PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("$program")
done
for program in photofinish engine-mock prepare; do
  [[ -x $checkout/target/release/$program ]] || missing+=("target/release/$program")
done
if ((${#missing[@]})); then
  echo "missing: ${missing[*]}; the head of this file says how to get them" >&2
  exit 2
fi
if [[ $EUID -ne 0 ]]; then
  echo "run this as root: slurmd starts jobs under other users" >&2
  exit 2
fi
PATH=$PATH:/usr/sbin
# srun's output and the figures are compared as text.
export LC_ALL=C

work=$(mktemp --directory --tmpdir photofinish-slurm.XXXXXX)
daemons=()
cleanup() {
  local code=$?
  ((${#daemons[@]})) && kill "${daemons[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  if ((code)); then
    tail -n 20 "$work"/*.log "$work"/study/shards/*.log 2>/dev/null >&2 || true
    echo "failed; everything is kept in $work" >&2
  else
    rm -rf "$work"
  fi
}
trap cleanup EXIT

# --- a cluster of two nodes on this host ---
mkdir -p "$work"/{state,spool1,spool2,munge}
chmod 755 "$work"
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 600 "$work/munge/key"
munged --foreground --force --key-file="$work/munge/key" --socket="$work/munge/socket" --num-threads=2 \
  --pid-file="$work/munge/pid" --seed-file="$work/munge/seed" >"$work/munged.log" 2>&1 &
daemons+=($!)

host=$(hostname -s)
cpus=$(nproc)
cat >"$work/slurm.conf" <<CONF
ClusterName=trial
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=26817
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CryptoType=crypto/munge
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
MessageTimeout=30
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=26818 CPUs=$cpus State=UNKNOWN
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=26819 CPUs=$cpus State=UNKNOWN
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$work/slurm.conf
slurmctld -D >>"$work/slurmctld.out.log" 2>&1 &
daemons+=($!)
for node in node1 node2; do
  mkdir -p "$work/spool-$node"
  slurmd -D -N "$node" >>"$work/slurmd-$node.out.log" 2>&1 &
  daemons+=($!)
done

# Waits up to $1 seconds for the rest to succeed.
within() {
  local left=$1
  shift
  until "$@" >/dev/null 2>&1; do
    ((left-- > 0)) || { echo "in vain: $*" >&2; return 1; }
    sleep 1
  done
}
both_idle() { [[ $(sinfo --noheader --format=%t) == idle && $(sinfo --noheader --format=%D) == 2 ]]; }
within 60 both_idle

# --- a study with mock engines, in a directory that looks like the checkout to slurm.sh ---
mkdir -p "$work/study/shards" "$work/config/photofinish/engines" "$work/cache"
ln -s "$checkout/target" "$work/study/target"
for engine in quick:1 slow:2; do
  printf 'framework = "mock"\nworker = "%s"\nsummary = ""\n[options]\ntoken_ms = "%s"\nclock = "scripted"\n' \
    "$checkout/target/release/engine-mock" "${engine#*:}" >"$work/config/photofinish/engines/${engine%:*}.toml"
done
export XDG_CONFIG_HOME=$work/config XDG_CACHE_HOME=$work/cache PHOTOFINISH_PROVISIONED=1
cd "$work/study"
target/release/photofinish shard plan --shards 2 -- sweep generate --frameworks quick,slow --model synthetic:llama-tiny \
  --prompt-tokens 4,6,8 --new-tokens 4,8 --rounds 6 --accept-noise --quiet
target/release/photofinish shard run --plan plan.json --quiet --results-dir whole >whole.log 2>&1

# --- the same in two shards ---
job=$(sbatch --parsable --requeue --array=0-1 "$checkout/examples/shards/slurm.sh")
lines() { cat shards/1/*/cells.jsonl 2>/dev/null | wc -l; }
has_a_cell() { (($(lines) >= 1)); }
within 300 has_a_cell
before=$(lines)
scontrol requeue "${job}_1"
echo "shard 1 was ended after $before of 3 cells and requeued"
# A job that was requeued waits two minutes for its node to be well again; here it is.
is_pending() { squeue --noheader --states=PENDING --job="${job}_1" | grep -q .; }
within 60 is_pending
within 30 scontrol update JobId="${job}_1" StartTime=now
all_done() { ! squeue --noheader --job="$job" | grep -q .; }
within 600 all_done
(($(ls -d shards/1/*/ | wc -l) == 1)) || { echo "shard 1 began anew instead of going on" >&2; exit 1; }

# --- what is merged equals one run ---
target/release/photofinish shard merge shards/*/*/ --format json >merged.json
python3 - whole/*/report.json merged.json <<'PY'
import json, sys

def scripted(report):
    """What a scripted clock decides: the machine's own readings differ from run to run."""
    names = ["latency", "throughput", "first_token", "prefill_throughput", "total"]
    cells = []
    for cell in report["cells"]:
        rows = []
        for row in cell["rows"]:
            metrics = {name: row["metrics"].get(name) for name in names}
            rows.append([row["framework"], row["parity"], row["tokens"], metrics])
        verdicts = [v for v in cell["verdicts"] if v["metric"] in ("latency", "throughput")]
        cells.append([cell["settings"], rows, verdicts, cell["rounds"]])
    return cells

whole, merged = (json.load(open(path)) for path in sys.argv[1:])
assert [m["missing"] for m in merged["machines"]] == [[]], merged["machines"]
ours, theirs = scripted(merged["machines"][0]), scripted(whole)
assert len(ours) == 6, len(ours)
assert ours == theirs, "the merged cells differ from those of one run"
print(f"{len(ours)} cells in two shards, one of them requeued, equal those of one run")
PY
