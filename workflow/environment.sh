#!/bin/sh
# environment.sh PYTHON FOLDER EXTRAS: makes a virtual environment with tightfit in it, or brings
# it up to date. Needs Python 3.11 or 3.12 with pip; ensurepip is not needed.
set -eu

python=$1
folder=$2
extras=$3

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
    echo "tightfit needs Python 3.11 or 3.12: name one with make PYTHON=/path/to/python3.11" >&2
    exit 1
fi

if ! "$folder/bin/python" -c '' 2>/dev/null; then
    echo "Making the environment $folder with $("$python" --version) ..."
    "$python" -m venv --clear --without-pip "$folder"
fi

install() {
    "$python" -m pip --python "$folder/bin/python" install -qq --no-compile \
        --disable-pip-version-check --constraint constraints.txt "$@"
}

echo "Installing tightfit and what it needs (PyTorch is large, this takes some minutes) ..."
install --editable ".[$extras]"
# It asks for torchvision, which it does not use here and which must match PyTorch's build.
install --no-deps pytorchcv
# The search is compiled once, so that no plan waits for it.
echo "Compiling the search ..."
"$folder/bin/python" -m stages.combine.compiled
