"""Plans of a step that send storages to an offload target: what to keep, to run again, to send."""
