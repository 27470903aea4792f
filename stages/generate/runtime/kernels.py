"""What generated packages have as `kernels.py`: `stages.device.kernels`, under the same name."""

from tightfit.stages.device.kernels import (
    CompilerError,
    Form,
    Kernel,
    KernelError,
    Over,
    build_key,
    build_said,
    check_compiler,
    checked_kernel,
    compile_function,
)

__all__ = [
    "CompilerError",
    "Form",
    "Kernel",
    "KernelError",
    "Over",
    "build_key",
    "build_said",
    "check_compiler",
    "checked_kernel",
    "compile_function",
]
