#!/bin/sh
# install.sh: Debian's Slurm, where there is none.
set -eu

there() {
    for program in munged slurmctld slurmd sbatch; do
        command -v "$program" >/dev/null || return 1
    done
}

if there; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "There is no Slurm here: install Debian's slurm-wlm and munge, or run this as root." >&2
    exit 1
fi
echo "Installing slurm-wlm and munge ..."
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null
