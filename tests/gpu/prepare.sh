#!/usr/bin/env bash
# Makes all that travels to a machine with a GPU, on one that needs none: the plans and the packages of Python.
#
#     PYTHON=.../python tests/gpu/prepare.sh [--only llama3] ...
#
# PYTHON has the PyTorch of the machine with the GPU, built for CUDA (`pip install --no-deps torch==2.11.0 triton
# nvidia-cuda-runtime` and what these need of Python is enough), and NumPy, pyarrow, numba, pulp and highspy. It needs gcc
# and binutils. `--device cpu --size tiny` prepares tiny models for the CPU, with any PyTorch and without gcc. Plans go to
# gpu-report/plans, wheels to `wheels`. Run it again to go on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_WAIT_POLICY=PASSIVE
tag=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
[ -n "$(ls wheels/*.whl 2>/dev/null)" ] || tests/gpu/bundle.sh wheels "$tag"
if [[ " $* " != *" --device cpu "* ]] && ! "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    "$python" -m tests.gpu.cuda_stubs gpu-report/cuda-stubs
    source gpu-report/cuda-stubs/env
fi
"$python" -m tests.gpu.prepare "$@"
"$python" -m tests.gpu.bundle_size
