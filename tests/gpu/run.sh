#!/usr/bin/env bash
# All that waits for a GPU, in one command: the tests marked `cuda`, the battery and the benchmark.
#
#     tests/gpu/run.sh [--out FOLDER] [--minutes 20] ...
#
# It needs that machine's Python with PyTorch, NumPy, pyarrow, pulp, highspy, numba, pytest and
# hypothesis, and no network. Packages that are missing can be given as wheels in a folder, WHEELS,
# `wheels` of this checkout unless set, with what they need in turn: on a machine with a network,
#
#     pip download -d wheels --only-binary :all: --python-version 3.12 \
#         numpy pyarrow numba "pulp>=3.3,<3.4" highspy pytest hypothesis
#
# What lacks one is told and left out. Run it again to go on where it stopped: what is done is in
# FOLDER/gpu.json, for people in FOLDER/gpu.md, and both in `reports`. With `--device cpu --size tiny`
# it runs the same on the CPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
packages=""
wheels=${WHEELS:-$PWD/wheels}
if [ -d "$wheels" ]; then
    packages="$wheels/unpacked/site-packages"
    mkdir -p "$packages"
    for wheel in "$wheels"/*.whl; do
        [ -e "$wheel" ] || continue
        done="$packages/.$(basename "$wheel").done"
        [ -e "$done" ] || { "$python" -m zipfile -e "$wheel" "$packages" && touch "$done"; }
    done
fi
export PYTHONPATH="$PWD${packages:+:$packages}${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m tests.gpu "$@"
