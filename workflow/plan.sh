#!/bin/sh
# plan.sh BIN CONFIG [CORES [PROFILE [REMEASURE]]]: says what is to be done and why, runs the workflow
# with the programs in BIN, one line a step, then prints the table of plans. With REMEASURE costs and
# the link are measured again, those of the store too.
set -u

PATH=$(cd "$1" && pwd):$PATH
config=$2
cores=${3:-}
profile=${4:-default}
remeasure=${5:-}
unset TIGHTFIT_REMEASURE
case $remeasure in
0) remeasure= ;;
?*) export TIGHTFIT_REMEASURE=1 ;;
esac

# What a run imports is compiled once, not at each start.
unset PYTHONDONTWRITEBYTECODE

# A wrong configuration is told first. Then one run at a time is in this folder. Unlike Snakemake's
# own lock, which --nolock leaves out, this one ends with its processes: a run that was killed does
# not stop the next one.
mkdir -p .snakemake
exec 9>.snakemake/plan.lock
python - "$config" <<'END' || exit
import fcntl
import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # An interrupt ends the wait without a traceback.

from tightfit.schemas.config import read_config, require_folders
from tightfit.util.errors import ConfigError

try:
    require_folders(read_config(sys.argv[1]), sys.argv[1])
except ConfigError as error:
    sys.exit(str(error))
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("Waiting for another run in this folder to end ...", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
END

run() {
    snakemake --profile "workflow/profiles/$profile" --logger tightfit --configfile "$config" \
        ${cores:+--cores "$cores"} --nolock "$@" \
        ${remeasure:+--forcerun profile profile_updates link offload_link reference --envvars TIGHTFIT_REMEASURE}
}

summary() {
    python -m tightfit summary --configuration "$config"
}

# What there is to do, and meanwhile the table as it is now: it stands where there is nothing to do.
if [ -t 1 ]; then
    export FORCE_COLOR=1 COLUMNS="$(stty size 2>/dev/null <&1 | cut -d ' ' -f 2)"
fi
summary >.snakemake/table.txt 2>&1 &
table=$!
status=0
todo=$(run --dry-run --logger-tightfit-why 2>&1) || status=$?
todo=$(printf '%s\n' "$todo" | sed '/^Using profile /d')
told=0
wait $table || told=$?

if [ $status -ne 0 ]; then
    printf '%s\n' "$todo" >&2
    exit $status
fi
printf '%s\n' "$todo"
case $todo in
*"To do: "*) ;;
*)
    cat .snakemake/table.txt
    exit $told
    ;;
esac

# Graphs are traced again in a run of their own: Snakemake then sees which of them changed.
case $todo in
*", up to "*) run traced_again ;;
esac
run || status=$?
summary || status=1
exit $status
