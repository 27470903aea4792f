"""What generated packages have as `kernels.py`: `stages.device.kernels`, under the same name."""

from stages.device.kernels import Form, Kernel, Over, check_compiler, compile_function

__all__ = ["Form", "Kernel", "Over", "check_compiler", "compile_function"]
