"""The random states and the settings of the process that a model's forward must not move."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from tightfit.stages.device.readings import installed_code
from tightfit.stages.device.states import ATTENTION_STATES, STATES
from tightfit.stages.trace.codes import globals_read, line_that
from tightfit.stages.trace.functions import own_code
from tightfit.stages.trace.holders import set_torch_bytes, torch_bytes
from tightfit.stages.trace.source import short_path

_SEEDING = {
    function.__code__: f"torch.{name}"
    for name in ("manual_seed", "seed", "set_rng_state")
    for function in (getattr(torch.random, name),)
}
_HOOKS = torch.autograd.graph.saved_tensors_hooks.__init__.__code__
_HARMLESS = ("_checkpoint_hook", "save_on_cpu", "_CachingTorchDispatchMode")


def setters() -> dict[Any, str]:
    """PyTorch's built-in functions that change what runs, with the name of what they set."""
    names = {
        "_set_default_dtype": "the default dtype",
        "_set_cudnn_enabled": "torch.backends.cudnn.enabled",
        "_set_cudnn_deterministic": "torch.backends.cudnn.deterministic",
        "_set_cudnn_benchmark": "torch.backends.cudnn.benchmark",
        "_set_mkldnn_enabled": "torch.backends.mkldnn.enabled",
        "_set_deterministic_algorithms": "the use of deterministic algorithms",
        "_set_float32_matmul_precision": "the precision of float32 products",
        "_set_sdp_use_math": "the kernels of attention",
        "_set_sdp_use_flash": "the kernels of attention",
        "_set_sdp_use_mem_efficient": "the kernels of attention",
        "_set_sdp_use_cudnn": "the kernels of attention",
    }
    return {getattr(torch._C, n): shown for n, shown in names.items() if hasattr(torch._C, n)}


_THROUGH = (
    *("torch.random", "torch.cuda.random", "torch.autograd.graph", "torch._compile"),
    "torch._dynamo",
)
"""Modules of PyTorch between a caller and what it asks for."""


class Moved:
    """Notices draws, seeds and settings while a forward runs.

    `problems` are sentences on what was noticed; `draws` says where each generator of Python's
    `random`, by its id, was first drawn from; `attends` whether attention was asked for.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.draws: dict[int, str] = {}
        self.attends = False
        self.states = states()
        self.before = generators()
        self._started: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._setters = setters()
        self._attention = getattr(torch._C._nn, "scaled_dot_product_attention", None)

    def start(self) -> None:
        """Remembers the states with which the forward begins."""
        self._started = (generators(), states())

    def stop(self, codes: Iterable[types.CodeType]) -> None:
        """Compares the states with which the forward ends."""
        if self._started is None:
            return
        drawn, settings = self._started
        for name, state in generators().items():
            if state != drawn.get(name, state):
                self.problems.append(_drew(name, self._line(name, codes)))
        if settings["the cache of parametrizations"]:
            self.problems.append(
                "the model runs within parametrize.cached(), which a plan does not share with "
                "other calls; plan it outside"
            )
        for name, value in states().items():
            if self.attends and name in ATTENTION_STATES and not settings[name]:
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
        return line_of_numpy(codes) if name == "NumPy's random" else ""

    def put_back(self) -> None:
        """Gives all generators of the process the states they had."""
        now = generators()
        for name, state in self.before.items():
            if now.get(name) != state:
                _set(name, state)

    def called(self, frame: types.FrameType) -> None:
        """Notes a call of a Python function that seeds or that saves tensors its own way."""
        code = frame.f_code
        if code in _SEEDING:
            line = _caller(frame.f_back)
            if line is not None:
                self.problems.append(
                    f"the forward calls {_SEEDING[code]}{_at(line)}, which a plan would not do; "
                    f"call it before the model"
                )
        elif code is _HOOKS:
            self._saves(frame)

    def _saves(self, frame: types.FrameType) -> None:
        hooks = type(frame.f_locals["self"]).__name__
        packs = getattr(frame.f_locals.get("pack_hook"), "__module__", None) or ""
        line = _caller(frame.f_back)
        if hooks not in _HARMLESS and packs.partition(".")[0] != "torch" and line is not None:
            self.problems.append(
                f"the forward uses saved_tensors_hooks{_at(line)}, which a plan does not run; "
                f"leave them out, the plan decides what is kept"
            )

    def built_in(self, function: Any, frame: types.FrameType) -> None:
        """Notes a call of a built-in function: a draw, a setting, an attention."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, random.Random):
            self.draws.setdefault(id(owner), _caller(frame) or "")
        elif function is self._attention:
            self.attends = True
        elif function in self._setters:
            line = _setting(frame)
            if line is not None:
                self.problems.append(
                    f"the forward sets {self._setters[function]}{_at(line)}, "
                    f"which a plan would not do; set it outside the model"
                )


def states() -> dict[str, Any]:
    """The settings of the process that change what runs."""
    return {name: ask() for name, ask in STATES.items()}


def generators() -> dict[str, Any]:
    """The states of the process's random generators, by how they are called in a sentence."""
    found: dict[str, Any] = {
        "Python's random": random.getstate(),
        "PyTorch's random": torch_bytes(torch.default_generator),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["NumPy's random"] = _Numpy(numpy.random.get_state())
    if torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            found[f"cuda:{number}'s random"] = torch_bytes(generator)
    return found


class _Numpy:
    """The state of NumPy's global generator, comparable."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.parts = tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numpy) and self.parts == other.parts

    __hash__ = None  # type: ignore[assignment]


def _set(name: str, state: Any) -> None:
    if name == "Python's random":
        random.setstate(state)
    elif name == "PyTorch's random":
        set_torch_bytes(torch.default_generator, state)
    elif name == "NumPy's random":
        sys.modules["numpy"].random.set_state(state.state)
    else:
        number = int(name.removeprefix("cuda:").removesuffix("'s random"))
        set_torch_bytes(torch.cuda.default_generators[number], state)


def _drew(name: str, line: str) -> str:
    if name == "PyTorch's random":
        return (
            "the forward seeds or sets PyTorch's random state, which a plan would not do; "
            "seed before the model is called"
        )
    return (
        f"the forward draws from {name}{_at(line)}, and a plan would keep what was drawn when it "
        f"was made; draw with torch, or before the model and pass it in"
    )


def _at(line: str | None) -> str:
    return f" at {line}" if line else ""


def line_of_numpy(codes: Iterable[types.CodeType]) -> str:
    """Where one of the codes names NumPy's generator, as far as its text says it."""
    for code in codes:
        for name, inner in globals_read(code):
            if name in ("np", "numpy") and inner == "random":
                return _where(code, name)
    return ""


def _where(code: types.CodeType, name: str) -> str:
    return line_that([code], "read", "random") or line_that([code], "name", name)


def _caller(frame: types.FrameType | None) -> str | None:
    """The "file:line" of the innermost frame outside Python's library that asked for something,
    None where PyTorch itself did."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        file = frame.f_code.co_filename
        if name.partition(".")[0] == "torch":
            if not name.startswith(_THROUGH):
                return None
        elif own_code(file):
            return None
        elif not installed_code(frame.f_code, frame.f_globals) or "-packages" in file:
            return f"{short_path(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _setting(frame: types.FrameType | None) -> str | None:
    """As `_caller`, for what is set through PyTorch's modules of settings."""
    through = ("torch", "torch.backends", "torch.nn.attention", "contextlib")
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in through and not name.startswith("torch.backends."):
            return _caller(frame)
        frame = frame.f_back
    return None
