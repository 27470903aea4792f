"""The planners of chains with a link to the host, one file each."""
