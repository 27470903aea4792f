"""What a forward uses up where it reads it: iterators, files, queues.

Nothing tells where such a thing stands, and nothing puts it back: a forward that reads one is ended
before it can advance it.
"""

from __future__ import annotations

import functools
import queue
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from tightfit.schemas.errors import ModelError
from tightfit.stages.device.readings import bound_to, slots_of
from tightfit.stages.trace.spaces import users_class

_TAKEN = (queue.Queue, queue.SimpleQueue, random.SystemRandom)
_OF_NUMPY = ("BitGenerator", "SeedSequence")
_CONTAINERS = (list, tuple, set, frozenset)
_DEEPEST = 6


class AdvancingError(ModelError):
    """The forward reads what it would use up."""


def check_advancing(value: Any, shown: str) -> None:
    """Raises AdvancingError where a value that is read, or something in it, is used up by those who
    take from it. Iterators of a user's class have fields, which are watched."""
    found = _advancing(value)
    if found is not None:
        raise AdvancingError(
            f"the forward reads {shown or 'a value'}, which is or holds what is used up where it "
            f"is taken from ({type(found).__name__}), and a plan would take nothing; take from it "
            "outside of the model, and pass in what was taken"
        )


def _advancing(value: Any, depth: int = 0) -> Any:
    if isinstance(value, _TAKEN) or _is_source(value):
        return value
    if isinstance(value, Iterator):
        watched = hasattr(value, "__dict__") and users_class(type(value))
        return None if watched or isinstance(value, nn.Module) else value
    if isinstance(value, types.AsyncGeneratorType | types.CoroutineType):
        return value
    for item in _inside(value) if depth < _DEEPEST else ():
        found = _advancing(item, depth + 1)
        if found is not None:
            return found
    return None


def _inside(value: Any) -> Any:
    if isinstance(value, dict | types.MappingProxyType):
        return value.values()
    if isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.SimpleNamespace):
        return vars(value).values()
    return (bound_to(value), *slots_of(value).values())


def _is_source(value: Any) -> bool:
    """True for what NumPy's generators draw from."""
    numpy = sys.modules.get("numpy")
    kinds = () if numpy is None else tuple(getattr(numpy.random, name) for name in _OF_NUMPY)
    return isinstance(value, kinds)
