#!/bin/sh
# install.sh: Debian's Slurm, where there is none.
set -eu

if command -v slurmctld slurmd munged >/dev/null; then
    exit 0
fi
echo "Installing slurm-wlm and munge ..."
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurm-wlm munge >/dev/null
