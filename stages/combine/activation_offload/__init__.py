"""Plans of a step that send storages to another memory: what to keep, to run again, to send."""
