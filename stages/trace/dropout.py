"""Dropout as eager PyTorch computes it on the CPU.

The capture has `native_dropout`, which scales by 1 / (1 - p) in double precision. Eager dropout on
the CPU divides ones by 1 - p in the tensor's own precision: another number for some p. Where p is 1
it multiplies by zero and draws nothing.
"""

from __future__ import annotations

import torch

from tightfit.stages.trace.program import Call, Program, Variable

aten = torch.ops.aten


def exact_dropout(program: Program) -> None:
    """Gives each dropout of a CPU program the scale of the eager one, backward and forward."""
    scales: dict[Variable | None, float] = {}
    nothing: set[Variable | None] = set()
    calls = []
    for call in program.calls:
        if call.target is aten.native_dropout.default and _is_whole(call):
            nothing.add(call.outputs[1])
            calls.extend(_dropped(call))
            continue
        if call.target is aten.native_dropout_backward.default and call.args[1] in nothing:
            calls.append(_zeroed(call, call.args[0], call.outputs[0]))
            continue
        if call.target is aten.native_dropout.default and _is_plain(call):
            dtype, p = call.args[0].fake.dtype, call.args[1]
            scale = eager_scale(p, dtype)
            scales[call.outputs[1]] = scale
            if scale != torch.tensor(1 / (1 - p), dtype=dtype).item():
                calls.extend(_spelled_out(call, scale))
                continue
        elif call.target is aten.native_dropout_backward.default and call.args[1] in scales:
            call.args = (*call.args[:2], scales[call.args[1]])
        calls.append(call)
    program.calls = calls


def eager_scale(p: float, dtype: torch.dtype) -> float:
    """What eager dropout on the CPU multiplies the kept elements by."""
    return torch.ones(1, dtype=dtype).div_(1 - p).item()


def _is_plain(call: Call) -> bool:
    return call.args[2] is True and 0 < call.args[1] < 1 and call.args[0].fake.is_cpu


def _is_whole(call: Call) -> bool:
    return call.args[2] is True and call.args[1] == 1 and call.args[0].fake.is_cpu


def _dropped(call: Call) -> list[Call]:
    """Dropout of everything: a multiplication by zero, and a mask, which may be asked for."""
    source = call.args[0]
    options = {"dtype": torch.bool, "memory_format": torch.contiguous_format}
    mask = Call(aten.zeros_like.default, (source,), options, call.outputs[1:])
    return [_zeroed(call, source, call.outputs[0]), mask]


def _zeroed(call: Call, source: Variable, result: Variable | None) -> Call:
    return Call(aten.mul.Tensor, (source, 0.0), {}, [result], call.module, call.source)


def _spelled_out(call: Call, scale: float) -> list[Call]:
    """The mask, drawn as before, and two multiplications."""
    source, p, _ = call.args
    result, mask = call.outputs
    assert result is not None and mask is not None
    empty = Variable("intermediate", mask.fake)
    masked = Variable("intermediate", result.fake)
    options = {"dtype": torch.bool, "memory_format": torch.contiguous_format}
    where = (call.module, call.source)
    return [
        Call(aten.empty_like.default, (source,), options, [empty], *where),
        Call(aten.bernoulli.p, (empty, 1 - p), {}, [mask], *where),
        Call(aten.mul.Tensor, (source, mask), {}, [masked], *where),
        Call(aten.mul.Tensor, (masked, scale), {}, [result], *where),
    ]
