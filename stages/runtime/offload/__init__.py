"""stages/runtime/offload."""
