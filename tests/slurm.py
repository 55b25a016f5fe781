"""Stand-ins for Slurm's commands: they run the batch script that submitit writes, on this machine, at once.

As Slurm does, they run each task of an array as a job of its own, signal the step that srun starts, and run a job that
was requeued from its batch script again.
"""

from __future__ import annotations

import os
from pathlib import Path

SBATCH = """
batch=$(realpath "$1")
header() { sed -n "s/^#SBATCH --$1=//p" "$batch"; }
last=$(header array | sed 's/^0-\\([0-9]*\\).*/\\1/')
run() {  # the job's name, where it writes
    restarts=0
    while true; do
        echo RUNNING > "$STAND_IN/$1.state"
        SLURM_RESTART_COUNT=$restarts bash "$batch" >> "$2" 2>&1
        code=$?
        [ -e "$STAND_IN/$1.requeue" ] || break
        rm "$STAND_IN/$1.requeue"
        restarts=$((restarts + 1))
    done
    if [ $code = 0 ]; then echo COMPLETED; else echo FAILED; fi > "$STAND_IN/$1.state"
}
job=$((70 + $(find "$STAND_IN" -name "*.state" | wc -l)))  # no number twice: files of submitit's are named by it
export SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 SLURM_JOB_NODELIST=$(hostname)
if [ -z "$last" ]; then
    export SLURM_JOB_ID=$job
    run "$job" "$STAND_IN/$job.out" < /dev/null > /dev/null 2>&1 &
else
    for task in $(seq 0 "$last"); do
        export SLURM_ARRAY_JOB_ID=$job SLURM_ARRAY_TASK_ID=$task SLURM_JOB_ID=$((job + 1 + task))
        run "${job}_$task" "$STAND_IN/${job}_$task.out" < /dev/null > /dev/null 2>&1 &
    done
fi
echo "Submitted batch job $job"
"""
SRUN = """
name=$SLURM_JOB_ID
[ -z "$SLURM_ARRAY_JOB_ID" ] || name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
while [ "${1#--}" != "$1" ]; do
    path=$(echo "$2" | sed "s/%A/$SLURM_ARRAY_JOB_ID/; s/%a/$SLURM_ARRAY_TASK_ID/; s/%j/$SLURM_JOB_ID/; s/%t/0/")
    case $1 in
        --output) out=$path; shift 2 ;;
        --error) err=$path; shift 2 ;;
        --unbuffered) shift ;;
        *) echo "srun: unknown option $1" >&2; exit 2 ;;
    esac
done
echo $$ > "$STAND_IN/$name.pid"
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
exec "$@" >> "$out" 2>> "$err"
"""
SACCT = """
echo "JobID|State|NodeList"
for file in "$STAND_IN"/*.state; do echo "$(basename "$file" .state)|$(cat "$file")|$(hostname)"; done
"""
# Slurm ends the steps of a job that it requeues by SIGTERM.
SCONTROL = """
[ "$1" = requeue ] || exit 2
touch "$STAND_IN/$2.requeue"
kill -s TERM "$(cat "$STAND_IN/$2.pid")"
"""


def install(folder: Path) -> dict[str, str]:
    """Write the commands to a folder. Returns the environment variables by which programs find them."""
    commands = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL}
    folder.mkdir()
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/bash{script}")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "STAND_IN": str(folder)}
