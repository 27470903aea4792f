"""From a sequence of blocks to the schedule of its ops."""
