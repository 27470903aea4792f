"""How functions that take a state are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NJIT_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
_INTERNAL_OPTIONS: dict[str, Any] = {
    **_NJIT_OPTIONS,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def njit_internal(function: _Function) -> _Function:
    """Compiles a function as `uncounted` does, for compiled ones only to call."""
    compiled: _Function = njit(**_INTERNAL_OPTIONS)(function)
    return compiled


def njit_inline(function: _Function) -> _Function:
    """Compiles a function as `inner` does, into those that call it: to pass a state takes longer
    than most of what is done with it."""
    compiled: _Function = njit(forceinline=True, **_INTERNAL_OPTIONS)(function)
    return compiled


def njit_no_refcount(function: _Function) -> _Function:
    """Compiles a function that makes no array, without the counting of references, which for the
    many arrays of a state takes ten times as long as a move."""
    compiled: _Function = njit(**_NJIT_OPTIONS)(function)
    return compiled
