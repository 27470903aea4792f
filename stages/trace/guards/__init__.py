"""stages/trace/guards."""
