#!/bin/sh
# plan.sh BIN CONFIG CORES: runs the workflow with the programs in BIN, one line a step, then prints
# the table of plans.
set -u

PATH=$(cd "$1" && pwd):$PATH
config=$2
cores=$3

snakemake --profile workflow/profiles/default --logger tightfit --configfile "$config" \
    --cores "$cores"
status=$?
python -m stages summary --configuration "$config" || status=1
exit $status
