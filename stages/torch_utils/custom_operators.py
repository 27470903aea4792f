"""Operators that are not PyTorch's own: of libraries, of extensions, of a user's `torch.library`.

A graph may call them where the user names their namespace; no artifact can.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

import torch

from tightfit.stages.torch_utils.model_factory import extend_import_path
from tightfit.util.errors import ConfigError

TORCH_NAMESPACES = ("aten", "prims")
"""The namespaces of PyTorch's own operators."""
GROUP_NAMESPACE = "tightfit"
"""The namespace of groups (`stages.torch_utils.fused_group_operators`)."""
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OPTION_FORM = re.compile(rf"({_NAME})=({_NAME}(?:\.{_NAME})*)")

_allowed: ContextVar[frozenset[str]] = ContextVar("allowed", default=frozenset())


@contextlib.contextmanager
def allow_operators(namespaces: Iterable[str]) -> Iterator[None]:
    """Within it graphs may call the operators of these namespaces, too.

    Raises ConfigError for what is no list of names of namespaces.
    """
    if isinstance(namespaces, str) or not isinstance(namespaces, Iterable):
        raise ConfigError(
            f"operators: {namespaces!r} is no list of namespaces, expected one like ['mylib']"
        )
    chosen = list(namespaces)
    for name in chosen:
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            raise ConfigError(
                f"operators: {name!r} is no namespace of operators, expected a name like mylib"
            )
    token = _allowed.set(_allowed.get() | frozenset(chosen))
    try:
        yield
    finally:
        _allowed.reset(token)


@contextlib.contextmanager
def allow_all_operators() -> Iterator[None]:
    """Within it graphs may call all operators that are registered, in traces that nobody runs."""
    names = {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    with allow_operators(name for name in names if re.fullmatch(_NAME, name)):
        yield


def is_allowed_namespace(namespace: str) -> bool:
    """True for a namespace of PyTorch itself, that of groups and one that the user allows."""
    return namespace in (*TORCH_NAMESPACES, GROUP_NAMESPACE) or namespace in _allowed.get()


@contextlib.contextmanager
def register_operators(written: Iterable[str], search_path: Iterable[Path | str]) -> Iterator[None]:
    """Imports the modules that register operators, "namespace=module" each, and allows these.

    Raises ConfigError where one is not written so or cannot be imported.
    """
    namespaces = []
    extend_import_path(search_path)
    for words in written:
        match = _OPTION_FORM.fullmatch(words)
        if match is None:
            raise ConfigError(f"--operators {words}: is not of the form NAMESPACE=MODULE")
        namespaces.append(match[1])
        try:
            importlib.import_module(match[2])
        except Exception as error:  # whatever the user's module raises
            said = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"--operators {words}: {match[2]} cannot be imported ({said})"
            ) from error
    with allow_operators(namespaces):
        yield


def is_custom_operator(target: str) -> bool:
    """True for the name "namespace.name.overload" of an operator that is neither PyTorch's own nor
    a group."""
    return target.partition(".")[0] not in (*TORCH_NAMESPACES, GROUP_NAMESPACE)
