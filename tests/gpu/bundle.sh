#!/usr/bin/env bash
# Makes a folder of slim wheels for a machine with a GPU and no network, small enough to travel with the checkout:
# pyarrow without Flight and remote file systems (its library needs the rest), PuLP without foreign CBCs.
#
#     tests/gpu/bundle.sh FOLDER [PYTHON_TAG=312]
#
# The versions are those of constraints.txt in the current folder. About 41 MB. `unzip -q WHEEL -d SITE` or
# `pip install --no-index --no-deps` install them there.
set -euo pipefail
out=$1 tag=${2:-312}
here=$PWD
mkdir -p "$out" && out=$(cd "$out" && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
pinned() { sed -n "s/^$1==//Ip" "$here/constraints.txt" | head -1; }
platforms=(); for p in 2_34 2_31 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${p}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for name in pyarrow pulp highspy jsonschema jsonschema-specifications referencing rpds-py attrs; do
    version=$(pinned "$name")
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version "${tag:0:1}.${tag:1}" --implementation cp \
        "${platforms[@]}" -d "$work" "$name${version:+==$version}" 2>&1 | grep -v 'is ignored' || true
done
for wheel in "$work"/*.whl; do
    name=$(basename "$wheel")
    case $name in
        pyarrow-*) zip -q -d "$wheel" 'pyarrow/libarrow_flight*' 'pyarrow/libarrow_s3*' 'pyarrow/_flight*' 'pyarrow/_s3fs*' 'pyarrow/_gcsfs*' \
            'pyarrow/_azurefs*' 'pyarrow/_hdfs*' 'pyarrow/_orc*' 'pyarrow/include/*' 'pyarrow/tests/*' 'pyarrow/src/*' \
            'pyarrow/libarrow_python.so' 'pyarrow/libarrow_python.so.*.*.*' >/dev/null ;;
        pulp-*) zip -q -d "$wheel" 'pulp/solverdir/cbc/win/*' 'pulp/solverdir/cbc/osx/*' 'pulp/solverdir/cbc/linux/arm64/*' \
            'pulp/solverdir/cbc/linux/i32/*' >/dev/null ;;
    esac
    cp "$wheel" "$out/$name"
done
du -ch "$out"/*.whl | tail -1
