"""The model's forward as a function of tensors alone, which is what can be captured."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tightfit.schemas.errors import ModelError
from tightfit.stages.device.factory import Built
from tightfit.stages.device.masks import leaves_of_masks, leaves_of_ones
from tightfit.stages.device.trees import flatten, read_tree
from tightfit.stages.trace.advancing import check_advancing
from tightfit.stages.trace.asked import Asked
from tightfit.stages.trace.checkpoints import Checkpoints
from tightfit.stages.trace.following import Event, Follower, first_difference
from tightfit.stages.trace.known import Known
from tightfit.stages.trace.parts import TrueParts

aten = torch.ops.aten


class FakeConstantError(ModelError):
    """A plain tensor attribute of the model is part of the program, so the model must be real."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of the model's output: a tensor, numbered as in `Forward.run`, with its
    `requires_grad`, or a constant. The view may be one of several (`multiple`) that one function
    makes; PyTorch lets nobody write into these."""

    tensor: int | None
    constant: Any = None
    requires_grad: bool = False
    multiple: bool = False


class Forward:
    """Runs the forward of a model on the tensors among the leaves of its first sample.

    Each leaf is a tensor of its own, whatever they share in the sample, unless they are `tied`, and
    hooks of the model itself are left out, since they run at each call. `chosen` numbers the
    outputs that receive gradients, None stands for all that can. After a run `leaves` and
    `output_tree` tell what the model returned; behind the `returned` tensors of the output come the
    new values of the buffers that the forward `assigned` instead of writing into them. `shown`
    names the buffers that the output has a tensor's memory of. Each run is within a `running()`.
    `runs` are the logs of the runs, those of an `earlier` forward first; `every` as in `Follower`.
    `ones` are the leaves of the sample that hold only ones, `masks` the other ones that may be
    masks. `looks_for_none` says whether a
    function of autograd asks for None in place of absent gradients, and `checkpoints` are those
    that the forward makes. `alike` has for each input tensor the number of the first one that is
    the same object, `asked` what the forward asks of its tensors.
    """

    def __init__(
        self,
        built: Built,
        chosen: set[int] | None,
        running: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        earlier: Forward | None = None,
        every: bool = False,
        asked: Asked | None = None,
        tied: bool = False,
    ) -> None:
        self.built = built
        self.model = built.model
        self.chosen = chosen
        self.running = running
        self.given, text = flatten(built.samples[0])
        self.tree = read_tree(text)
        self.places = [i for i, leaf in enumerate(self.given) if isinstance(leaf, torch.Tensor)]
        self.asked: Asked = (asked or Asked()) if earlier is None else earlier.asked
        self.ones = [] if every else leaves_of_ones(built)
        self.masks = [] if every else leaves_of_masks(built)
        known = Known(every, built.ones)
        self.follower = Follower(self.model, built.label, self.asked, known)
        self.alike = _alike([self.given[place] for place in self.places])
        self.untied = list(range(len(self.places)))
        self.order = self.untied if not tied else self.alike
        if earlier is not None:
            self.order = earlier.order
        self.ties = _ties(self.model)
        self.leaves: list[Leaf] = []
        self.output_tree = ""
        self.returned = 0
        self.looks_for_none = False
        self.checkpoints = Checkpoints(built.model)
        self.assigned: list[str] = []
        self.shown: list[str] = []
        self.runs: list[list[Event]] = [] if earlier is None else list(earlier.runs)

    def watched(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        """Autograd's `grad`, within which the Python of a backward is watched, too."""

        def watching(*args: Any, **kwargs: Any) -> Any:
            with self.running():
                return grad(*args, **kwargs)

        return watching

    def noting(self, materialize: Callable[..., None]) -> Callable[..., None]:
        """Autograd's `set_materialize_grads`, whose calls are noted."""

        def set_materialize_grads(context: Any, value: bool) -> None:
            self.looks_for_none |= not value
            materialize(context, value)

        return set_materialize_grads

    def tensors(self, mode: Any) -> list[torch.Tensor]:
        """The tensors to run it on, without memory."""
        found = []
        for path, leaf in zip(self.tree.paths("input"), self.given, strict=True):
            check_advancing(leaf, path)
        for place in self.places:
            like = self.given[place]
            if type(like) not in (torch.Tensor, nn.Parameter) and not _is_fake(like):
                kind = type(like).__name__
                raise ModelError(f"{self.built.label}: an input is a {kind}, no plain tensor")
            with mode:
                found.append(
                    torch.empty_strided(
                        like.shape, like.stride(), dtype=like.dtype, device=like.device
                    ).requires_grad_(like.requires_grad)
                )
        return found

    @contextlib.contextmanager
    def tied(self) -> Iterator[None]:
        """Within it a tied parameter is one tensor under all its names, as it really is."""
        before = []
        for holder, name, first, first_name in self.ties:
            before.append((holder, name, holder._parameters[name]))
            holder._parameters[name] = first._parameters[first_name]
        try:
            yield
        finally:
            for holder, name, parameter in before:
                holder._parameters[name] = parameter

    def buffers(self) -> dict[str, tuple[nn.Module, str]]:
        """The modules that hold buffers, and their names there, by path."""
        return {
            f"{path}.{name}" if path else name: (module, name)
            for path, module in self.model.named_modules()
            for name in module._buffers
        }

    def path(self, number: int) -> str:
        """What a person would call an input tensor."""
        return self.tree.paths("input")[self.places[number]]

    def face(self) -> nn.Module:
        """A module with the model's parameters and buffers whose call is `run`."""
        base = type(self.model)

        def call(_: nn.Module, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.run(*tensors)

        metaclass: Any = type(base)
        kind = metaclass(base.__name__, (base,), {"__call__": call, "forward": call})
        face = object.__new__(kind)
        object.__setattr__(face, "__dict__", vars(self.model))
        return face

    def run(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The distinct tensors of the output, each a clone, so that none is an alias of another
        tensor and each has one tangent; those that are not chosen are detached first."""
        given = list(self.given)
        for place, number in zip(self.places, self.order, strict=True):
            given[place] = tensors[number]
        self.asked.begin(tensors, (*self.model.parameters(), *self.model.buffers()))
        args, kwargs = self.tree.unflatten(given)
        _reseed(len(self.runs))
        before = {path: m._buffers[name] for path, (m, name) in self.buffers().items()}
        needing: list[tuple[str, torch.Tensor, bool]] = [
            (f"parameter {path!r}", weight, weight.requires_grad)
            for path, weight in self.model.named_parameters()
        ]
        needing += [(f"input {self.path(i)}", x, x.requires_grad) for i, x in enumerate(tensors)]
        with self.follower.following(), self.tied(), TrueParts():
            self.follower.name((f"input {i}", tensor) for i, tensor in enumerate(tensors))
            for place, number in zip(self.places, self.order, strict=True):
                if place in (*self.ones, *self.masks):
                    contents = None if place in self.ones else self.given[place]
                    self.follower.known.suppose(tensors[number], place, contents)
            with self.running():
                output = self.model.forward(*args, **kwargs)
        self.follower.returns(flatten(output)[0])
        self.runs.append(self.follower.log)
        for name, tensor, before_run in needing:
            if tensor.requires_grad != before_run:
                raise ModelError(
                    f"{self.built.label}: the forward sets requires_grad of its {name}, which a "
                    f"plan would not do: set it before the model is called and planned"
                )
        self.check_arguments((args, kwargs), given)
        return self.take_apart(output, before)

    def check_arguments(self, arguments: Any, given: list[Any]) -> None:
        """Refuses a forward that writes into the lists and dictionaries of its caller."""
        leaves, text = flatten(arguments)
        if text == flatten(self.tree.unflatten(given))[1]:
            changed = [
                path
                for path, mine, other in zip(self.tree.paths(""), leaves, given, strict=True)
                if mine is not other
            ]
            if not changed:
                return
        raise ModelError(
            f"{self.built.label}: the forward changes a list or a dictionary that it is given, "
            "which a plan would not do: let it work on a copy"
        )

    def take_apart(self, output: Any, before: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Numbers the tensors of an output and clones them, then writes assigned buffers."""
        leaves, self.output_tree = flatten(output)
        distinct: dict[int, torch.Tensor] = {}
        numbers: dict[int, int] = {}
        self.leaves = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                number = numbers.setdefault(id(leaf), len(numbers))
                distinct[number] = leaf
                multiple = leaf.requires_grad and _is_one_of_several(leaf)
                self.leaves.append(Leaf(number, None, leaf.requires_grad, multiple))
            else:
                self.leaves.append(Leaf(None, leaf))
        clones = []
        for number, tensor in distinct.items():
            if self.chosen is not None and number not in self.chosen:
                tensor = tensor.detach()
            clones.append(aten.clone.default(tensor))
        self.returned = len(clones)
        bases = {id(_base(tensor)) for tensor in distinct.values()}
        held = ((path, module._buffers[name]) for path, (module, name) in self.buffers().items())
        self.shown = [path for path, buffer in held if id(buffer) in bases]
        return (*clones, *self.take_assigned(before))

    def take_assigned(self, before: dict[str, Any]) -> list[torch.Tensor]:
        """The new values of assigned buffers, which are then again the tensors that they were."""
        self.assigned = []
        values = []
        for path, (module, name) in self.buffers().items():
            old, new = before.get(path), module._buffers[name]
            if old is None or new is old:
                continue
            if new is None or new.shape != old.shape or new.dtype != old.dtype:
                raise ModelError(
                    f"{self.built.label}: the model changes the shape or dtype of its buffer "
                    f"{path!r}"
                )
            self.assigned.append(path)
            values.append(aten.clone.default(new.detach()))
            module._buffers[name] = old
        return values

    def check_runs(self) -> None:
        """Refuses a forward that did not do the same each time that it ran, other numbers in
        Python's and NumPy's generators apart."""
        first, *others = self.runs
        for other in others:
            place = first_difference(first, other)
            if place is not None:
                raise ModelError(
                    f"{self.built.label}: the forward does not run the same way twice"
                    f"{f' (at {place})' if place else ''}; it may depend on random numbers of "
                    "Python or NumPy, on a counter or on the time, which a plan would freeze"
                )


def _alike(tensors: list[Any]) -> list[int]:
    """For each tensor the number of the first one that is the same object."""
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), number) for number, tensor in enumerate(tensors)]


def _ties(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module, str]]:
    """The further places of tied parameters, each with the first one."""
    first: dict[int, tuple[nn.Module, str]] = {}
    found = []
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            holder, known = first.setdefault(id(parameter), (module, name))
            if (holder, known) != (module, name):
                found.append((module, name, holder, known))
    return found


def _base(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a view is a view of."""
    return tensor._base if tensor._is_view() and tensor._base is not None else tensor


def _is_one_of_several(tensor: torch.Tensor) -> bool:
    kinds = torch._C._autograd.CreationMeta
    return tensor._is_view() and (
        torch._C._autograd._get_creation_meta(tensor) == kinds.MULTI_OUTPUT_NODE
    )


def _is_fake(tensor: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def _reseed(number: int) -> None:
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)
