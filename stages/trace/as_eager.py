"""Lets the capture see the operators that eager PyTorch runs.

Some operators have a decomposition in Python that only tracing uses, with other roundings and
far more temporaries; and models ask whether they are being exported, to go another way. What is
replaced here is put back afterwards; where a PyTorch or a transformers has none of it, all stays
as it is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import collect_metadata_analysis
from torch.fx.experimental import proxy_tensor

from tightfit.stages.trace.source import short_path

_KEPT = ("dropout", "native_batch_norm", "cudnn_batch_norm")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operators that eager runs by cuDNN on a GPU, with the addresses of the weights, which tensors
without memory do not have."""
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_BACKWARD = "backward_pass_autocast"
_MIRROR = "_mirror_autograd_meta_to"
_UNCACHED = "disable_autocast_cache"
_COMPILING, _SCAN = "is_torchdynamo_compiling", "use_associative_scan"
_PACKED = "find_packed_sequence_indices"


@contextlib.contextmanager
def whole_operators(kept: Sequence[str] = ()) -> Iterator[None]:
    """Within it PyTorch's operators, but for those that are `kept`, run the kernels that eager
    runs, not Python in their place, autocast casts a leaf once for all its uses and leaves the
    backward alone."""
    hidden = []
    for overload in _with_python((*_KEPT, *kept)):
        kernels = overload.py_kernels
        hidden.append((overload, {key: kernels.pop(key) for key in _KEYS if key in kernels}))
        _forget_choice(overload)
    try:
        with _kept_casts(), _plain_backward():
            yield
    finally:
        for overload, kernels in hidden:
            overload.py_kernels.update(kernels)
            _forget_choice(overload)


@contextlib.contextmanager
def _kept_casts() -> Iterator[None]:
    """Leaves autocast its cache, as it is in eager, but empty for each tracing: casts that another
    tracing made are unknown to it. Only leaves are kept there, so leaves stay leaves."""
    with contextlib.ExitStack() as stack:
        if hasattr(torch, _MIRROR):
            stack.enter_context(replaced(torch, _MIRROR, _mirroring_leaves))
        for module in (collect_metadata_analysis, proxy_tensor):
            if hasattr(module, _UNCACHED):
                stack.enter_context(replaced(module, _UNCACHED, lambda _: _emptied_cache))
        yield


def _mirroring_leaves(mirror: Callable[..., None]) -> Callable[..., None]:
    def to(source: torch.Tensor, other: torch.Tensor) -> None:
        if source.is_leaf and source.requires_grad:
            other.requires_grad_()
        else:
            mirror(source, other)

    return to


@contextlib.contextmanager
def _emptied_cache() -> Iterator[None]:
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def _plain_backward() -> contextlib.AbstractContextManager[None]:
    """Traces the backward without autocast: it is called after autocast around the forward."""
    if hasattr(functorch_config, _BACKWARD):
        return functorch_config.patch({_BACKWARD: "off"})
    return contextlib.nullcontext()


def _with_python(kept: Sequence[str]) -> Iterator[torch._ops.OpOverload]:
    """The operators that have a kernel in Python for one of the keys that only tracing asks for,
    without those that are kept."""
    own = _own_operators(len(torch._C._dispatch_get_all_op_names()))
    for packet_name, overload in own:
        if packet_name not in kept and not overload.py_kernels.keys().isdisjoint(_KEYS):
            yield overload


@functools.lru_cache(maxsize=1)
def _own_operators(count: int) -> list[tuple[str, torch._ops.OpOverload]]:
    """PyTorch's own operators, by the names of their packets; `count` is that of all operators,
    which more are registered with."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet_name, _, overload_name = rest.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None) if namespace == "aten" else None
        overload = getattr(packet, overload_name or "default", None)
        if isinstance(overload, torch._ops.OpOverload):
            found.append((packet_name, overload))
    return found


def _forget_choice(overload: torch._ops.OpOverload) -> None:
    """Lets the operator look again which of its kernels to run."""
    getattr(overload, "_dispatch_cache", {}).clear()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Within it a model that asks is told that it is being compiled, since it cannot look at the
    data of its tensors; PyTorch's own code is told that it is not, and does what eager does. An
    error that leaves it has a note of where the model asked last."""
    places: list[str] = []

    def asked(question: Callable[[], bool]) -> Callable[[], bool]:
        def answer() -> bool:
            frame: types.FrameType | None = sys._getframe(1)
            if frame is None or frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
                return question()
            while frame.f_back is not None and "compiling" in frame.f_code.co_name:
                frame = frame.f_back
            places[:] = [f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"]
            return True

        return answer

    try:
        with replaced(torch.compiler, "is_compiling", asked):
            yield
    except Exception as error:
        for place in places:
            error.add_note(
                f"at {place} it asks whether it is compiled, which is so while it is captured, and "
                "may go on without what eager makes there, such as a mask: give it that"
            )
        raise


@contextlib.contextmanager
def plain_scans() -> Iterator[None]:
    """Within it state space models of transformers scan as in eager, and not in the associative
    way that they have for compilers, which gives other bits."""

    def scans(module: types.ModuleType) -> bool:
        kinds = (part for part in vars(module).values() if isinstance(part, type))
        made = (vars(kind).get("__init__") for kind in kinds)
        codes = [making.__code__ for making in made if isinstance(making, types.FunctionType)]
        return any(_SCAN in code.co_names for code in codes)

    with contextlib.ExitStack() as stack:
        for name, module in [*sys.modules.items()]:
            asks = name.startswith("transformers.models.") and _COMPILING in vars(module)
            if asks and scans(module):
                stack.enter_context(replaced(module, _COMPILING, lambda _: lambda: False))
        yield


@contextlib.contextmanager
def packed_sequences(count_up: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Within it transformers masks packed sequences where eager does.

    transformers looks whether the tokens' positions are those of several packed sequences, which
    need a mask; of tensors without data it cannot know and always makes one. `count_up`
    says of positions that hang on no input whether they follow one another.
    """
    masking = sys.modules.get("transformers.masking_utils")
    if not hasattr(masking, _PACKED):
        yield
        return

    def looking(find_packed: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
        def find(positions: torch.Tensor) -> Any:
            return None if count_up(positions) else find_packed(positions)

        return find

    with replaced(masking, _PACKED, looking):
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Within it an attribute is what `wrap` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
