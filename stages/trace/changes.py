"""Whether a run changed what is kept of a thing, and how the thing is given that again."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from tightfit.stages.trace.holders import Kept, contents, put_back

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def chosen(kept: Kept) -> Any:
    """What a thing holds now, of the names that are compared."""
    now = contents(kept.thing)
    if kept.names is None:
        return now
    return {name: now[name] for name in kept.names if name in now}


def restore(kept: Kept) -> None:
    """Gives a thing what it was when it was first seen."""
    if kept.names is None:
        put_back(kept.thing, kept.before)
    for name in kept.names or ():
        _put_item_back(kept.thing, kept.before, name)


def undo(kept: Kept, name: Any) -> None:
    """Gives one part of a thing what it was when the forward began."""
    if name is None:
        put_back(kept.thing, kept.at_start)
    else:
        _put_item_back(kept.thing, kept.at_start, name)


def _put_item_back(thing: Any, then: Any, name: Any) -> None:
    if name in then:
        thing[name] = then[name]
    else:
        thing.pop(name, None)


def unchanged(before: Any, after: Any) -> bool:
    """True for one object, for plain values that are the same, and for tuples of these."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, tuple) and len(before) == len(after):
        return all(map(unchanged, before, after))
    if isinstance(before, _PLAIN):
        return before == after or (before != before and after != after)
    return False


def as_for_tensors(before: dict[Any, Any], name: Any, after: Any) -> bool:
    """True for what a dictionary has, by the class of a tensor that only the capture knows, where
    that is the object that it has for true tensors: eager finds it there."""
    return of_capture(name) and not _is_plain(after) and before.get(torch.Tensor) is after


def of_capture(name: Any) -> bool:
    """True for a class of tensors that only the capture knows."""
    return isinstance(name, type) and issubclass(name, (FakeTensor, FunctionalTensor))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, _PLAIN)


def holds_the_same(before: Any, now: Any) -> bool:
    """True for two contents of one thing (`stages.trace.holders.contents`) that are the same."""
    if isinstance(now, dict):
        return all(unchanged(before[name], value) for name, value in now.items())
    if not isinstance(now, list | set | collections.deque):
        return bool(before == now)
    return len(before) == len(now) and all(map(unchanged, _sorted(before), _sorted(now)))


def _sorted(items: Any) -> Any:
    return sorted(items, key=id) if isinstance(items, set) else items


@contextlib.contextmanager
def single_numbers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Puts back the tensors of one number that a forward writes, such as the counter of a batch
    norm: on these operators compute even without memory, to know their value."""
    state = (*model.parameters(), *model.buffers())
    single = [t for t in state if t.numel() == 1 and not (t.is_meta or isinstance(t, FakeTensor))]
    before = [(tensor, tensor.detach().clone()) for tensor in single]
    try:
        yield
    finally:
        for tensor, kept in before:
            if not torch.equal(tensor, kept):
                tensor.detach().copy_(kept)
