"""The dtypes of tensors, and their sizes, for rooms without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTHS = {
    16: "complex128",
    8: "float64 complex64 int64 uint64",
    4: "float32 complex32 int32 uint32",
    2: "float16 bfloat16 int16 uint16",
    1: (
        "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
        "float4_e2m1fn_x2 int8 uint8 bool"
    ),
}
DTYPE_BYTES = {name: width for width, names in _WIDTHS.items() for name in names.split()}
"""The dtypes that a tensor of a graph may have, each with the bytes of an element."""


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one after the other in the order of their dimensions."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
