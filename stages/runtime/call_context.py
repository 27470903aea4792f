"""What is going on around a call that a planned step cannot go through."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._C import _len_torch_function_stack
from torch.autograd import forward_ad
from torch.overrides import _pop_mode_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .mismatch import PlanMismatch

_FX_TRACING_FLAG = "_is_fx_tracing_flag"
_TRACING = ("FAKE", "PROXY", "FUNCTIONAL")
_TRANSPARENT_HOOKS = ("torch.utils.checkpoint", "torch.autograd.graph")
"""Modules whose own hooks give back what was saved, bit for bit."""
_OBSERVING_MODES = (
    *("torch.utils.flop_counter", "torch.utils._debug_mode", "torch.utils._device"),
    *("torch.utils.checkpoint", "torch.distributed._tools", "torch.testing._internal"),
)
"""Modules whose modes only look at what runs, or say where new tensors are made."""


def is_tracing(args: Any, kwargs: Any) -> bool:
    """Whether a call is not run but traced: by a capture, an export, `make_fx`, torch.fx or
    TorchScript."""
    symbolic = sys.modules.get("torch.fx._symbolic_trace")
    if torch._C._get_tracing_state() is not None or getattr(symbolic, _FX_TRACING_FLAG, False):
        return True
    keys = torch._C._TorchDispatchModeKey
    if any(torch._C._get_dispatch_mode(getattr(keys, key)) is not None for key in _TRACING):
        return True
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    if fakes is None:
        return False
    return any(isinstance(leaf, fakes.FakeTensor) for leaf in pytree.tree_leaves((args, kwargs)))


@contextlib.contextmanager
def disable_dynamo() -> Iterator[None]:
    """Within it torch.compile does not take up the functions that are called."""
    set_callback = torch._C._dynamo.eval_frame.set_eval_frame
    callback = set_callback(None)
    try:
        yield
    finally:
        set_callback(callback)


def check_call_context(writes: bool) -> None:
    """Raises PlanMismatch where the call is inside something that would not see the step; `writes`
    says whether the step writes buffers."""
    mode = intercepting_mode()
    if mode:
        raise PlanMismatch(
            f"the call is inside {mode}, which would see other operators than those of the "
            f"original model: call it outside of it"
        )
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise PlanMismatch(
            "the call is inside a transform of torch.func (grad, vmap, jvp), which cannot go "
            "through a planned step: transform the original model"
        )
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and getattr(hooks[0], "__module__", "") not in _TRANSPARENT_HOOKS:
        raise PlanMismatch(
            "the call is inside saved_tensors_hooks, which would not see what a planned step "
            "saves: call it outside of them"
        )
    if hooks is not None and writes and hooks[0].__module__ == "torch.utils.checkpoint":
        raise PlanMismatch(
            "the call is inside checkpoint(), which would run the forward once more and update "
            "its buffers twice: leave the checkpoint out, the plan decides what is kept"
        )


def intercepting_mode(functions: bool = True) -> str:
    """The name of a mode that may run something else than the operators that are called, or with
    `functions` than PyTorch's functions; "" where there is none."""
    stacks = [(torch._C._len_torch_dispatch_stack(), torch._C._get_dispatch_stack_at)]
    if functions:
        stacks.append((torch._C._len_torch_function_stack(), torch._C._get_function_stack_at))
    for length, at in stacks:
        for kind in (type(at(place)) for place in range(length)):
            if not kind.__module__.startswith(_OBSERVING_MODES):
                return f"the mode {kind.__name__}"
    return ""


@contextlib.contextmanager
def disable_function_modes() -> Iterator[None]:
    """Within it no mode meets the functions that are called: eager's backward calls none."""
    length = torch._C._len_torch_function_stack()
    modes = [torch._C._pop_torch_function_stack() for _ in range(length)]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


def check_tensor_types(tensors: Iterable[torch.Tensor]) -> None:
    """Raises PlanMismatch where a tensor is more than a plain one."""
    tensors = list(tensors)
    for kind in {type(tensor) for tensor in tensors} - {torch.Tensor, torch.nn.Parameter}:
        if not _is_plain(kind):
            raise PlanMismatch(
                f"a tensor of the call is a {kind.__name__}, whose own behavior a planned step "
                f"does not have: give it plain tensors"
            )
    if any(tensor.is_inference() for tensor in tensors):
        raise PlanMismatch(
            "a tensor of the call was made in inference mode, which autograd cannot keep for the "
            "backward; give a clone of it, made outside of inference mode"
        )
    if any(_carries_derivative(tensor) for tensor in tensors):
        raise PlanMismatch(
            "a tensor of the call carries a forward-mode derivative, which a planned step "
            "does not compute: use the original model"
        )


def as_plain_gradient(tangent: torch.Tensor, number: int) -> torch.Tensor:
    """The gradient of the output `number` as a plain tensor. Raises RuntimeError where it is more
    than one: many at once, one with a derivative of its own, a subclass with its own behavior."""
    functorch = torch._C._functorch
    if functorch.peek_interpreter_stack() is not None or functorch.is_legacy_batchedtensor(tangent):
        raise RuntimeError(
            "the backward is inside a transform (is_grads_batched, vmap, a vectorized jacobian), "
            "which cannot go through a planned step: call it once for each gradient, or use the "
            "original model"
        )
    if _carries_derivative(tangent):
        raise RuntimeError(
            f"the gradient of output {number} carries a forward-mode derivative, which a planned "
            f"step does not compute: use the original model"
        )
    kind = type(tangent)
    if kind is torch.Tensor:
        return tangent
    if not _is_plain(kind):
        raise RuntimeError(
            f"the gradient of output {number} is a {kind.__name__}, whose own behavior a planned "
            f"step does not have: give it a plain tensor, or use the original model"
        )
    return tangent.as_subclass(torch.Tensor)


def _carries_derivative(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a dual number of forward-mode differentiation."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def _is_plain(kind: type) -> bool:
    function: Any = kind.__torch_function__  # type: ignore[attr-defined]
    own = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return (
        getattr(function, "__func__", function) in [getattr(each, "__func__", each) for each in own]
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    )


_METADATA_KEY = "tightfit"
_probe_tensors = threading.local()


class AutocastRegion:
    """A call's part in a region: the tensors of which the region keeps casts."""

    def __init__(self, node: Any, tensors: Sequence[torch.Tensor]) -> None:
        self.node = node
        self.tensors = {id(tensor) for tensor in tensors}

    def enter_backward(self) -> None:
        """Raises RuntimeError in a backward that runs through another call of the region which
        cast the same tensors."""
        task = torch._C._current_graph_task_id()
        going = self.node.metadata[_METADATA_KEY].setdefault("backward", {})
        if going.get("task") != task:
            going.clear()
            going.update(task=task, tensors=set())
        if not self.tensors.isdisjoint(going["tensors"]):
            raise RuntimeError(
                "one backward goes through several calls of a planned module in one autocast "
                "region, whose casts of the weights eager shares: give each call an autocast "
                "region of its own, or each loss its own backward"
            )
        going["tensors"] |= self.tensors


def current_autocast_region(
    device: torch.device, tensors: Sequence[torch.Tensor]
) -> AutocastRegion | None:
    """The region that a call runs in, None where it keeps no casts of the call.

    `tensors` are those that the call casts. Raises PlanMismatch where one has changed since an
    earlier call in the region, since eager would use it as it was then.
    """
    leaves = [tensor for tensor in tensors if tensor.is_leaf]
    if not leaves or not torch.is_autocast_enabled(device.type):
        return None
    if not torch.is_autocast_cache_enabled():
        return None
    node = _cached_cast_node(device)
    seen = node.metadata.setdefault(_METADATA_KEY, {}).setdefault("versions", {})
    for tensor in leaves:
        _known, version = seen.setdefault(id(tensor), (tensor, tensor._version))
        if version != tensor._version:
            raise PlanMismatch(
                "a weight was changed inside the autocast region, where eager goes on with the "
                "cast that it made before: leave the region after each step"
            )
    return AutocastRegion(node, leaves)


def _cached_cast_node(device: torch.device) -> Any:
    """The node of a cast that autocast keeps as long as the region: one object for each region."""
    probes: dict[torch.device, torch.Tensor] = vars(_probe_tensors).setdefault("of", {})
    if device not in probes:
        probes[device] = torch.empty(0, 0, device=device, requires_grad=True)
    probe = probes[device]
    multiplied: Any = torch.mm(probe, probe).grad_fn
    return multiplied.next_functions[0][0]


@contextmanager
def default_torch_state() -> Iterator[None]:
    """PyTorch as it starts: no gradients, no autocast, no modes of the caller, no default device,
    and float32 as the default dtype. What it was before comes back at the end."""
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        for _ in range(_len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, dtype)
        yield
