#!/usr/bin/env bash
# All that waits for a GPU, in one command, the most telling first.
#
#     tests/gpu/run.sh [--out FOLDER] [--minutes 8] [--list] ...
#
# It needs that machine's Python with PyTorch, NumPy, pyarrow, pulp, highspy, numba, pytest and
# hypothesis, no network, and what `tests/gpu/prepare.sh` made: plans in gpu-report/plans, and wheels of
# packages that are missing there in `wheels`, or a folder that WHEELS names. Wheels are unpacked into a
# folder outside of the checkout, SITE, and nothing is installed. What lacks a package is told and left out.
# Run it again to go on where it stopped: what is done is in FOLDER/gpu.json, for people in
# FOLDER/gpu.md, and both in `reports`. With `--device cpu --size tiny` it runs the same on the CPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
packages=""
wheels=${WHEELS:-$PWD/wheels}
if [ -d "$wheels" ]; then
    packages=${SITE:-${TMPDIR:-/tmp}/tightfit-site-$(id -u)}
    mkdir -p "$packages"
    for wheel in "$wheels"/*.whl; do
        [ -e "$wheel" ] || continue
        done="$packages/.$(basename "$wheel").done"
        [ -e "$done" ] || { "$python" -m zipfile -e "$wheel" "$packages" && touch "$done"; }
    done
    find "$packages" -name cbc -type f -exec chmod +x {} +  # zipfile forgets what may be run
fi
export PYTHONPATH="$PWD${packages:+:$packages}${PYTHONPATH:+:$PYTHONPATH}" OMP_WAIT_POLICY=PASSIVE PYTHONUNBUFFERED=1
exec "$python" -m tests.gpu "$@"
