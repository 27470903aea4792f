"""What autocast does to eager's step: the casts that it keeps, and what it does to a backward."""

from __future__ import annotations

import torch

from tightfit.schemas.graph import NONE, Graph, Op

_DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes that autocast can be on with."""
_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_CAST = "aten._to_copy.default"
_FLOATS = ("float16", "bfloat16", "float32")
_LOWERED = frozenset(
    "_addmm_activation _convolution _native_multi_head_attention "
    "_scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm "
    "addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d conv_transpose3d convolution cudnn_convolution cudnn_convolution_transpose "
    "einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mkldnn_rnn_layer mm mv "
    "prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention".split()
)
"""What autocast does in its own dtype."""
_WIDENED = frozenset(
    "addcdiv addcmul atan2 bilinear cat cross dot index_copy index_put scatter_add stack tensordot "
    "vdot".split()
)
"""What autocast does in the widest dtype of its operands; all else is done in float32."""


def spared_dtypes(graph: Graph) -> list[str]:
    """The dtypes of autocast under which eager's backward is the same as without autocast."""
    ops = [op for op in graph.ops if op.phase == "backward" and _has_kernel(graph.device, op)]
    return [dtype for dtype in _DTYPES if all(_spared(graph, op, dtype) for op in ops)]


def kept_casts(graph: Graph) -> list[int]:
    """The parameters and inputs of which autocast keeps what it cast them to, if it is on."""
    found = {
        value
        for op in graph.ops
        if op.phase == "forward" and op.target == _CAST
        for value in op.inputs
    }
    return [
        value.id
        for value in graph.values
        if value.id in found and value.requires_grad and value.dtype == "float32"
    ]


def _has_kernel(device: str, op: Op) -> bool:
    """True where autocast has something to do with an operator."""
    namespace, _, rest = op.target.partition(".")
    name, _, overload = rest.partition(".")
    full = f"{namespace}::{name}" + ("" if overload == "default" else f".{overload}")
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(full, _KEYS[device])
    except RuntimeError:
        return False


def _spared(graph: Graph, op: Op, dtype: str) -> bool:
    name = op.target.split(".")[1]
    values = [graph.values[value] for value in op.inputs if value != NONE]
    found = {value.dtype for value in values if value.dtype in _FLOATS}
    if name in _LOWERED:
        return found <= {dtype}
    if name in _WIDENED:
        return found <= {"float32"} or found <= {dtype}
    return found <= {"float32"}
