"""stages/runtime/kernels."""
