"""Stand-ins for Slurm's commands: they run the batch script that submitit writes for a job, on this machine, at once.

As Slurm does, they signal the step that srun starts, and run a job that was requeued from its batch script again.
"""

from __future__ import annotations

import os
from pathlib import Path

SBATCH = """
batch=$(realpath "$1")
run() {
    restarts=0
    while true; do
        echo RUNNING > "$STAND_IN/state"
        SLURM_RESTART_COUNT=$restarts bash "$batch"
        code=$?
        [ -e "$STAND_IN/requeue" ] || break
        rm "$STAND_IN/requeue"
        restarts=$((restarts + 1))
    done
    if [ $code = 0 ]; then echo COMPLETED; else echo FAILED; fi > "$STAND_IN/state"
}
export SLURM_JOB_ID=70 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 SLURM_JOB_NODELIST=$(hostname)
run < /dev/null > /dev/null 2>&1 &
echo "Submitted batch job 70"
"""
SRUN = """
while [ "${1#--}" != "$1" ]; do
    path=$(echo "$2" | sed "s/%j/$SLURM_JOB_ID/; s/%t/0/")
    case $1 in
        --output) out=$path; shift 2 ;;
        --error) err=$path; shift 2 ;;
        --unbuffered) shift ;;
        *) echo "srun: unknown option $1" >&2; exit 2 ;;
    esac
done
echo $$ > "$STAND_IN/pid"
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
exec "$@" >> "$out" 2>> "$err"
"""
SACCT = """
echo "JobID|State|NodeList"
echo "70|$(cat "$STAND_IN/state")|$(hostname)"
"""
# Slurm ends the steps of a job that it requeues by SIGTERM.
SCONTROL = """
[ "$1" = requeue ] || exit 2
touch "$STAND_IN/requeue"
kill -s TERM "$(cat "$STAND_IN/pid")"
"""


def install(folder: Path) -> dict[str, str]:
    """Write the commands to a folder. Returns the environment variables by which programs find them."""
    folder.mkdir()
    for name, script in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL}.items():
        (folder / name).write_text(f"#!/bin/bash{script}")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "STAND_IN": str(folder)}
