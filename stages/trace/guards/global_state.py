"""The random states and the settings of the process that a model's forward must not move."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tightfit.stages.runtime.guards.encode import is_installed_code
from tightfit.stages.runtime.guards.global_state import ATTENTION_STATES, GLOBAL_STATES
from tightfit.stages.trace.code_inspection import (
    find_line,
    global_reads,
    is_tightfit_code,
    short_path,
)
from tightfit.stages.trace.guards.guard_source import (
    set_torch_generator_bytes,
    torch_generator_bytes,
)

_SEED_FUNCTIONS = {
    function.__code__: f"torch.{name}"
    for name in ("manual_seed", "seed", "set_rng_state")
    for function in (getattr(torch.random, name),)
}
_SAVED_TENSORS_HOOKS_INIT = torch.autograd.graph.saved_tensors_hooks.__init__.__code__
_ALLOWED_HOOKS = ("_checkpoint_hook", "save_on_cpu", "_CachingTorchDispatchMode")


def global_state_setters() -> dict[Any, str]:
    """PyTorch's built-in functions that change what runs, with the name of what they set."""
    names = {
        "_set_default_dtype": "the default dtype",
        "_set_cudnn_enabled": "torch.backends.cudnn.enabled",
        "_set_cudnn_deterministic": "torch.backends.cudnn.deterministic",
        "_set_cudnn_benchmark": "torch.backends.cudnn.benchmark",
        "_set_mkldnn_enabled": "torch.backends.mkldnn.enabled",
        "_set_deterministic_algorithms": "the use of deterministic algorithms",
        "_set_float32_matmul_precision": "the precision of float32 products",
    }
    return {getattr(torch._C, n): shown for n, shown in names.items() if hasattr(torch._C, n)}


_INTERMEDIATE_MODULES = (
    *("torch.random", "torch.cuda.random", "torch.autograd.graph", "torch._compile"),
    "torch._dynamo",
)
"""Modules of PyTorch between a caller and what it asks for."""


class GlobalStateMonitor:
    """Notices draws, seeds and settings while a forward runs.

    `problems` are sentences on what was noticed; `draws` says where each generator of Python's
    `random`, by its id, was first drawn from; `attends` whether attention was asked for.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.draws: dict[int, str] = {}
        self.uses_attention = False
        self.states = global_settings()
        self.before = generator_states()
        self._started: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._setters = global_state_setters()
        self._attention = getattr(torch._C._nn, "scaled_dot_product_attention", None)

    def start(self) -> None:
        """Remembers the states with which the forward begins."""
        self._started = (generator_states(), global_settings())

    def stop(self, codes: Iterable[types.CodeType]) -> None:
        """Compares the states with which the forward ends."""
        if self._started is None:
            return
        drawn, settings = self._started
        for name, state in generator_states().items():
            if state != drawn.get(name, state):
                self.problems.append(_random_draw_message(name, self._line(name, codes)))
        if settings["the cache of parametrizations"]:
            self.problems.append(
                "the model runs within parametrize.cached(), which a plan does not share with "
                "other calls; plan it outside"
            )
        for name, value in global_settings().items():
            if self.uses_attention and name in ATTENTION_STATES and not settings[name]:
                self.problems.append(
                    f"{name} is False, which the capture of attention does not follow; "
                    f"plan with all kernels of attention allowed"
                )
            if value != settings[name]:
                self.problems.append(
                    f"the forward sets {name}, which a plan would not do; set it outside the model"
                )

    def _line(self, name: str, codes: Iterable[types.CodeType]) -> str:
        if name == "Python's random":
            return self.draws.get(id(random._inst), "")
        return find_numpy_draw(codes) if name == "NumPy's random" else ""

    def put_back(self) -> None:
        """Gives all generators of the process the states they had."""
        now = generator_states()
        for name, state in self.before.items():
            if now.get(name) != state:
                _set_named_generator(name, state)

    def called(self, frame: types.FrameType) -> None:
        """Notes a call of a Python function that seeds or that saves tensors its own way."""
        code = frame.f_code
        if code in _SEED_FUNCTIONS:
            line = _caller_line(frame.f_back)
            if line is not None:
                self.problems.append(
                    f"the forward calls {_SEED_FUNCTIONS[code]}{_at_line(line)}, which a plan "
                    "would not do; "
                    f"call it before the model"
                )
        elif code is _SAVED_TENSORS_HOOKS_INIT:
            self._saves(frame)

    def _saves(self, frame: types.FrameType) -> None:
        hooks = type(frame.f_locals["self"]).__name__
        packs = getattr(frame.f_locals.get("pack_hook"), "__module__", None) or ""
        line = _caller_line(frame.f_back)
        if hooks not in _ALLOWED_HOOKS and packs.partition(".")[0] != "torch" and line is not None:
            self.problems.append(
                f"the forward uses saved_tensors_hooks{_at_line(line)}, which a plan does not run; "
                f"leave them out, the plan decides what is kept"
            )

    def record_builtin_call(self, function: Any, frame: types.FrameType) -> None:
        """Notes a call of a built-in function: a draw, a setting, an attention."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, random.Random):
            self.draws.setdefault(id(owner), _caller_line(frame) or "")
        elif function is self._attention:
            self.uses_attention = True
        elif function in self._setters:
            line = _setting_line(frame)
            if line is not None:
                self.problems.append(
                    f"the forward sets {self._setters[function]}{_at_line(line)}, "
                    f"which a plan would not do; set it outside the model"
                )


def global_settings() -> dict[str, Any]:
    """The settings of the process that change what runs."""
    return {name: ask() for name, ask in GLOBAL_STATES.items()}


def generator_states() -> dict[str, Any]:
    """The states of the process's random generators, by how they are called in a sentence."""
    found: dict[str, Any] = {
        "Python's random": random.getstate(),
        "PyTorch's random": torch_generator_bytes(torch.default_generator),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["NumPy's random"] = _NumpyGlobalState(numpy.random.get_state())
    if torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            found[f"cuda:{number}'s random"] = torch_generator_bytes(generator)
    return found


class _NumpyGlobalState:
    """The state of NumPy's global generator, comparable."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.parts = tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NumpyGlobalState) and self.parts == other.parts

    __hash__ = None  # type: ignore[assignment]


def _set_named_generator(name: str, state: Any) -> None:
    if name == "Python's random":
        random.setstate(state)
    elif name == "PyTorch's random":
        set_torch_generator_bytes(torch.default_generator, state)
    elif name == "NumPy's random":
        sys.modules["numpy"].random.set_state(state.state)
    else:
        number = int(name.removeprefix("cuda:").removesuffix("'s random"))
        set_torch_generator_bytes(torch.cuda.default_generators[number], state)


def _random_draw_message(name: str, line: str) -> str:
    if name == "PyTorch's random":
        return (
            "the forward seeds or sets PyTorch's random state, which a plan would not do; "
            "seed before the model is called"
        )
    return (
        f"the forward draws from {name}{_at_line(line)}, and a plan would keep what was drawn when "
        "it "
        f"was made; draw with torch, or before the model and pass it in"
    )


def _at_line(line: str | None) -> str:
    return f" at {line}" if line else ""


def find_numpy_draw(codes: Iterable[types.CodeType]) -> str:
    """Where one of the codes names NumPy's generator, as far as its text says it."""
    for code in codes:
        for name, inner in global_reads(code):
            if name in ("np", "numpy") and inner == "random":
                return _numpy_draw_line(code, name)
    return ""


def _numpy_draw_line(code: types.CodeType, name: str) -> str:
    return find_line([code], "read", "random") or find_line([code], "name", name)


def _caller_line(frame: types.FrameType | None) -> str | None:
    """The "file:line" of the innermost frame outside Python's library that asked for something,
    None where PyTorch itself did."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        file = frame.f_code.co_filename
        if name.partition(".")[0] == "torch":
            if not name.startswith(_INTERMEDIATE_MODULES):
                return None
        elif is_tightfit_code(file):
            return None
        elif not is_installed_code(frame.f_code, frame.f_globals) or "-packages" in file:
            return f"{short_path(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _setting_line(frame: types.FrameType | None) -> str | None:
    """As `_caller_line`, for what is set through PyTorch's modules of settings."""
    through = ("torch", "torch.backends", "torch.nn.attention", "contextlib")
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in through and not name.startswith("torch.backends."):
            return _caller_line(frame)
        frame = frame.f_back
    return None


ProfileHook = Callable[[types.FrameType, str, Any], None]


@contextlib.contextmanager
def install_profiler(watch: ProfileHook) -> Iterator[None]:
    """Within it `watch` is Python's profiler, but for what PyTorch does inside of an operator;
    afterwards it is the one that was."""
    others: Any = sys.getprofile()
    sys.setprofile(watch)
    try:
        with _skip_operator_dispatch(watch):
            yield
    finally:
        if others is None or callable(others):
            sys.setprofile(others)
        else:  # one written in C, as cProfile: it stands for itself and cannot be called
            sys.setprofile(None)
            others.enable()


@contextlib.contextmanager
def _skip_operator_dispatch(watch: ProfileHook) -> Iterator[None]:
    """Within it `watch` does not see what the modes of a capture do with an operator: most of the
    time of watching, and nothing of the model's."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode
    from torch.fx.experimental.sym_node import SymNode

    from tightfit.stages.trace.forward_operators import ForwardOperatorsMode

    modes = (ForwardOperatorsMode, FunctionalTensorMode, FakeTensorMode)
    places: list[tuple[Any, str]] = [(mode, "__torch_dispatch__") for mode in modes]
    # Operators ask for sizes outside of the modes, too, which are symbols in some captures.
    places += [
        (SymNode, name)
        for name, value in vars(SymNode).items()
        if isinstance(value, types.FunctionType) and not name.startswith("__")
    ]
    known = [getattr(owner, name) for owner, name in places]
    for (owner, name), function in zip(places, known, strict=True):
        setattr(owner, name, _without_profiler(function, watch))
    try:
        yield
    finally:
        for (owner, name), function in zip(places, known, strict=True):
            setattr(owner, name, function)


def _without_profiler(dispatch: Callable[..., Any], watch: ProfileHook) -> Callable[..., Any]:
    @functools.wraps(dispatch)
    def unwatched(*args: Any, **kwargs: Any) -> Any:
        if sys.getprofile() is not watch:
            return dispatch(*args, **kwargs)
        sys.setprofile(None)
        try:
            return dispatch(*args, **kwargs)
        finally:
            sys.setprofile(watch)

    return unwatched


UNWATCHED_CODE = _without_profiler(len, lambda *_: None).__code__
"""The code that stands for what a profiler does not see; it asks nothing itself."""
