#!/bin/sh
# environment.sh FOLDER EXTRAS: makes a virtual environment with tightfit in it, or brings it up to
# date. Needs Python 3.11 or 3.12 with pip, the one named by PYTHON or one on the path; ensurepip
# is not needed.
set -eu

folder=$1
extras=$2

fits() {
    "$1" -c 'import sys, pip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null
}

for python in ${PYTHON:-python3.11 python3.12 python3 python}; do
    if fits "$python"; then
        break
    fi
    python=
done
if [ -z "$python" ]; then
    echo "tightfit needs Python 3.11 or 3.12 with pip: name one, make PYTHON=/path/to/python3.11" >&2
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
install --editable ".[workflow,$extras]"
# It asks for torchvision, which it does not use here and which must match PyTorch's build.
install --no-deps pytorchcv
case ",$extras," in
    # It asks for tools to follow and to configure experiments, which its models do not use.
    *,zoo,*) install --no-deps neuraloperator ;;
esac
# Tests search in several processes at a time; a run compiles what they share while it traces.
case ",$extras," in
    *,test,*) "$folder/bin/python" -m tightfit.stages.combine.local_search.precompile ;;
esac
