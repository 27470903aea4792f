"""One command for a machine with a GPU: all tests for CUDA, the battery and the benchmark."""
