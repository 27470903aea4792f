"""stages/runtime/pipeline."""
