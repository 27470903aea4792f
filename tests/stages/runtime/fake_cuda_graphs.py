"""Stands in for CUDA graphs where there is no GPU: doubles that capture operators on the CPU.

As with the real ones, a capture runs nothing: what it changes is put back, and what it makes holds
no numbers. A replay runs the operators once more, into the tensors that were made then. What later
graphs of a pool have left is overwritten by the replay of an earlier one, since they may share
their bytes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Call = tuple[Any, Any, Any, Any]


@dataclass
class Captures:
    """What was done: "capture" and "replay" with the number of the graph, "wait" of a stream."""

    done: list[tuple[str, Any]] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    stream: Any = "default"
    capturing: bool = False
    fails: str = ""
    held: Counter[int] = field(default_factory=Counter)

    def hold(self, tensors: list[torch.Tensor]) -> None:
        """Counts what the doubles hold and real graphs do not."""
        self.held.update(tensor.untyped_storage()._cdata for tensor in tensors)

    def since(self, start: int) -> list[str]:
        """What was done from a place on, in short: "c0 r0" for a capture and a replay."""
        return [f"{what[0]}{number}" for what, number in self.done[start:]]


@dataclass
class Pool:
    """The graphs of a pool, in the order of their captures."""

    graphs: list[Graph] = field(default_factory=list)


class Graph:
    """The double of torch.cuda.CUDAGraph."""

    def __init__(self, captures: Captures) -> None:
        self.captures = captures
        self.calls: list[Call] = []
        self.pool: Pool | None = None

    @property
    def number(self) -> int:
        assert self.pool is not None
        return self.pool.graphs.index(self)

    def replay(self) -> None:
        """Runs the operators into the tensors of the capture."""
        assert self.pool is not None
        self.captures.done.append(("replay", self.number))
        for later in self.pool.graphs[self.number + 1 :]:
            later.spoil()
        with torch.no_grad():
            for operator, args, kwargs, made in self.calls:
                result = operator(*args, **kwargs)
                if operator._schema.is_mutable:
                    continue
                old, new = pytree.tree_leaves(made), pytree.tree_leaves(result)
                for one, other in zip(old, new, strict=True):
                    if isinstance(one, torch.Tensor) and _place(one) != _place(other):
                        flat(one).copy_(flat(other))

    def spoil(self) -> None:
        """Leaves no numbers in what the operators made."""
        for _, args, kwargs, made in self.calls:
            there = {_place(each) for each in _tensors((args, kwargs))}
            for tensor in _tensors(made):
                if _place(tensor) not in there:
                    _no_numbers(tensor)


class _Recording(TorchDispatchMode):
    """Writes operators down, with what they change as it was."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = zip(operator._schema.arguments, args, strict=False)
        named = [
            (one, kwargs[one.name]) for one in operator._schema.arguments if one.name in kwargs
        ]
        for argument, value in (*given, *named):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.before += [(each, each.clone()) for each in _tensors(value)]
        made = operator(*args, **kwargs)
        alone = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs, made))
        self.graph.calls.append((operator, *alone))
        self.graph.captures.hold(_tensors(alone))
        return made


def stand_in(patch: pytest.MonkeyPatch) -> Captures:
    """Puts doubles in the place of what torch.cuda has for CUDA graphs."""
    captures = Captures()

    @contextlib.contextmanager
    def graph(made: Graph, pool: Pool, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local" and isinstance(stream, Stream)
        made.pool = pool
        pool.graphs.append(made)
        captures.done.append(("capture", made.number))
        state, recording = torch.get_rng_state(), _Recording(made)
        captures.capturing = True
        try:
            with recording:
                yield
        finally:
            captures.capturing = False
        if captures.fails:
            raise RuntimeError(captures.fails)
        with torch.no_grad():
            for tensor, before in reversed(recording.before):
                tensor.copy_(before)
        torch.set_rng_state(state)
        made.spoil()

    def new_pool() -> Pool:
        captures.pools.append(Pool())
        return captures.pools[-1]

    @contextlib.contextmanager
    def stream(entered: Any) -> Iterator[None]:
        yield

    doubles = {
        "CUDAGraph": lambda: Graph(captures),
        "graph": graph,
        "graph_pool_handle": new_pool,
        "Stream": lambda device: _stream_of(captures),
        "stream": stream,
        "current_stream": lambda device=None: captures.stream,
        "is_current_stream_capturing": lambda: captures.capturing,
    }
    for name, double in doubles.items():
        patch.setattr(torch.cuda, name, double)
    counted = torch._C._storage_Use_Count
    patch.setattr(
        torch._C, "_storage_Use_Count", lambda place: counted(place) - captures.held[place]
    )
    return captures


@dataclass
class Stream:
    """A stream that writes down what it waits for."""

    captures: Captures
    name: str

    def wait_stream(self, other: Any) -> None:
        self.captures.done.append(("wait", f" {self.name} for {getattr(other, 'name', other)}"))


def _stream_of(captures: Captures) -> Any:
    return Stream(captures, "capture")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor's storage."""
    whole: torch.Tensor = tensor.as_strided(
        (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0
    )
    return whole


def _no_numbers(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        flat(tensor).fill_(float("nan") if tensor.is_floating_point() else 1)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
