"""stages/runtime/guards."""
