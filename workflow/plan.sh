#!/bin/sh
# plan.sh BIN CONFIG CORES: runs the workflow with the programs in BIN, one line a step, then prints
# the table of plans.
set -u

PATH=$(cd "$1" && pwd):$PATH
config=$2
cores=$3

# One run at a time in this folder. Unlike Snakemake's own lock, which --nolock leaves out, this one
# ends with its processes: a run that was killed does not stop the next one.
mkdir -p .snakemake
exec 9>.snakemake/plan.lock
python - <<'END'
import fcntl

try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("Waiting for another run in this folder to end ...", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
END

snakemake --profile workflow/profiles/default --logger tightfit --configfile "$config" \
    --cores "$cores" --nolock
status=$?
python -m stages summary --configuration "$config" || status=1
exit $status
