"""A GPU that computes nothing, for PyTorch as it is built for CUDA on a machine without one: the
steps of `tests.gpu` run as there, with the bytes of PyTorch's allocator, the operators and the
dtypes of CUDA, and without values or times.

    python -m tests.gpu.cuda_stubs FOLDER      compiles it (gcc, nm) for the PyTorch of this Python,
    which may be
                                               installed without NVIDIA's libraries, but for the
                                               headers of nvidia-cuda-runtime
    source FOLDER/env                          lets programs of this shell find it
"""
