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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import collect_metadata_analysis
from torch.autograd.function import BackwardCFunction
from torch.fx.experimental import proxy_tensor

from tightfit.stages.runtime.pytree import argument_name, flatten, read_tree
from tightfit.stages.torch_utils.input_masks import all_ones_leaves
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.capture_errors import is_data_dependent
from tightfit.stages.trace.code_inspection import short_path
from tightfit.util.torch_version import release_of

_DECOMPOSED_IN_EAGER = ("dropout", "native_batch_norm", "cudnn_batch_norm")
RECURRENT_OPERATORS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operators that eager runs by cuDNN on a GPU, with the addresses of the weights, which tensors
without memory do not have."""
_OPERATORS_WITHOUT_SYMBOLS = ("matmul",) if release_of(torch.__version__) < (2, 13) else ()
"""Operators whose kernels of eager take no sizes that are symbols."""
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_BACKWARD = "backward_pass_autocast"
_MIRROR = "_mirror_autograd_meta_to"
_DISABLE_CACHE = "disable_autocast_cache"
_COMPILING, _SCAN = "is_torchdynamo_compiling", "use_associative_scan"
_PACKED = "find_packed_sequence_indices"


@contextlib.contextmanager
def disable_python_decompositions(on_gpu: bool = False, symbolic: bool = False) -> Iterator[None]:
    """Within it PyTorch's operators run the kernels that eager runs, not Python in their place, but
    for recurrent layers on a GPU, and with sizes that are symbols where kernels take none; autocast
    casts a leaf once for all its uses and leaves the backward alone."""
    hidden = []
    without_symbols = _OPERATORS_WITHOUT_SYMBOLS if symbolic else ()
    kept = (*(RECURRENT_OPERATORS if on_gpu else ()), *without_symbols)
    for overload in _python_decomposed_overloads((*_DECOMPOSED_IN_EAGER, *kept)):
        kernels = overload.py_kernels
        hidden.append((overload, {key: kernels.pop(key) for key in _KEYS if key in kernels}))
        _clear_dispatch_cache(overload)
    try:
        with (
            enable_python_dispatcher() if without_symbols else contextlib.nullcontext(),
            _enable_autocast_cache(),
            _disable_backward_autocast(),
        ):
            yield
    finally:
        for overload, kernels in hidden:
            overload.py_kernels.update(kernels)
            _clear_dispatch_cache(overload)


@contextlib.contextmanager
def _enable_autocast_cache() -> Iterator[None]:
    """Leaves autocast its cache, as it is in eager, but empty for each tracing: casts that another
    tracing made are unknown to it. Only leaves are kept there, so leaves stay leaves."""
    with contextlib.ExitStack() as stack:
        if hasattr(torch, _MIRROR):
            stack.enter_context(patch_attribute(torch, _MIRROR, _mirror_leaf_metadata))
        for module in (collect_metadata_analysis, proxy_tensor):
            if hasattr(module, _DISABLE_CACHE):
                stack.enter_context(
                    patch_attribute(module, _DISABLE_CACHE, lambda _: _clear_autocast_cache)
                )
        yield


def _mirror_leaf_metadata(mirror: Callable[..., None]) -> Callable[..., None]:
    def to(source: torch.Tensor, other: torch.Tensor) -> None:
        if source.is_leaf and source.requires_grad:
            other.requires_grad_()
        else:
            mirror(source, other)

    return to


@contextlib.contextmanager
def _clear_autocast_cache() -> Iterator[None]:
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def _disable_backward_autocast() -> contextlib.AbstractContextManager[None]:
    """Traces the backward without autocast: it is called after autocast around the forward."""
    if hasattr(functorch_config, _BACKWARD):
        return functorch_config.patch({_BACKWARD: "off"})
    return contextlib.nullcontext()


def _python_decomposed_overloads(kept: Sequence[str]) -> Iterator[torch._ops.OpOverload]:
    """The operators that have a kernel in Python for one of the keys that only tracing asks for,
    without those that are kept."""
    own = _aten_overloads(len(torch._C._dispatch_get_all_op_names()))
    for packet_name, overload in own:
        if packet_name not in kept and not overload.py_kernels.keys().isdisjoint(_KEYS):
            yield overload


@functools.lru_cache(maxsize=1)
def _aten_overloads(count: int) -> list[tuple[str, torch._ops.OpOverload]]:
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


def _clear_dispatch_cache(overload: torch._ops.OpOverload) -> None:
    """Lets the operator look again which of its kernels to run."""
    getattr(overload, "_dispatch_cache", {}).clear()


@contextlib.contextmanager
def patch_is_compiling() -> Iterator[None]:
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
        with patch_attribute(torch.compiler, "is_compiling", asked):
            yield
    except Exception as error:
        for place in places:
            error.add_note(
                f"at {place} it asks whether it is compiled, which is so while it is captured, and "
                "may go on without what eager makes there, such as a mask: give it that"
            )
        raise


@contextlib.contextmanager
def disable_associative_scans() -> Iterator[None]:
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
                stack.enter_context(patch_attribute(module, _COMPILING, lambda _: lambda: False))
        yield


@contextlib.contextmanager
def patch_packed_sequence_masks(count_up: Callable[[torch.Tensor], bool]) -> Iterator[None]:
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

    with patch_attribute(masking, _PACKED, looking):
        yield


@contextlib.contextmanager
def patch_attribute(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Within it an attribute is what `wrap` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


_TRACING = "is_tracing"


def all_ones_hint(built: BuiltModel, error: Exception) -> str:
    """What is said besides of a capture's error where a forward may look for inputs of ones."""
    if built.ones or not is_data_dependent(error):
        return ""
    paths = read_tree(flatten(built.samples[0])[1]).paths("input")
    names = [argument_name(paths[leaf]) for leaf in all_ones_leaves(built)]
    if not names:
        return ""
    masks = " or ".join(names)
    return f"; where it looks whether {masks} is all ones, plan with assume_all_ones_masks=True"


@contextlib.contextmanager
def patch_is_tracing(supposed: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Within it transformers looks at the masks of which something is supposed, as in eager.

    Such a model asks whether it is traced before it looks at a mask, and then takes no shortcut for
    one that masks nothing.
    """
    with contextlib.ExitStack() as stack:
        for name, module in [*sys.modules.items()]:
            if name.startswith("transformers.") and _TRACING in vars(module):
                stack.enter_context(patch_attribute(module, _TRACING, _wrap_is_tracing(supposed)))
        yield


def _wrap_is_tracing(
    supposed: Callable[[torch.Tensor], bool],
) -> Callable[[Any], Callable[..., bool]]:
    def wrap(is_tracing: Callable[..., bool]) -> Callable[..., bool]:
        def answer(tensor: Any = None) -> bool:
            if isinstance(tensor, torch.Tensor) and supposed(tensor):
                return False
            return is_tracing(tensor)

        return answer

    return wrap


class PythonBackwardDetector:
    """Whether a capture had Python in its backward (`found`), and in it some that takes one of
    `several` gradients, for which autograd gives it zeros or None where only others arrive."""

    def __init__(self) -> None:
        self.found = False
        self.several = False

    @contextlib.contextmanager
    def detect_python(self) -> Iterator[None]:
        """Within it functions that run and hooks that are given are noticed."""
        with (
            patch_attribute(BackwardCFunction, "apply", self._taking),
            patch_attribute(torch.Tensor, "register_hook", self._hooking),
        ):
            yield

    def _taking(self, original: Any) -> Any:
        noticed = self._noticed(original)

        def call(function: Any, *gradients: Any) -> Any:
            self.several |= len(gradients) > 1
            return noticed(function, *gradients)

        return call

    def _hooking(self, original: Any) -> Any:
        noticed = self._noticed(original)

        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # The hook of one of several results is given None where only others have a gradient.
            with torch._C.DisableTorchFunction():
                maker = tensor.grad_fn
            self.several |= len(getattr(maker, "_input_metadata", ())) > 1
            return noticed(tensor, *args, **kwargs)

        return call

    def _noticed(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.found = True
            return original(*args, **kwargs)

        return call


def has_independent_gradient(
    graph: fx.GraphModule,
    outputs: Iterable[fx.Node],
    tangents: Iterable[fx.Node],
    gradients: Iterable[fx.Node],
) -> bool:
    """True where one of the gradients, or what one is added to, may hang on no gradient of an
    output: Python in the backward made it, which runs where the gradient that it is given arrives.
    """
    arriving, wanted, forward = set(tangents), set(gradients), set(outputs)
    for node in graph.graph.nodes:
        operands = node.all_input_nodes
        if not arriving.isdisjoint(operands):
            arriving.add(node)
            sums = node.target is torch.ops.aten.add.Tensor and not arriving.issuperset(operands)
            if sums and not forward:
                return True
        elif node in wanted:
            return True
        forward.discard(node)
    return False
