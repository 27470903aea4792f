#!/bin/sh
# plan.sh CONFIG CORES: runs the workflow with one line a step, then prints the table of plans.
set -u

config=$1
cores=$2

snakemake --profile workflow/profiles/default --logger tightfit --configfile "$config" \
    --cores "$cores"
status=$?
python -m stages summary --configuration "$config" || status=1
exit $status
