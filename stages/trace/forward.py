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
from torch import fx, nn
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.runtime.guards.buffer_values import encode_buffer_value
from tightfit.stages.runtime.guards.encode import encode_value
from tightfit.stages.runtime.pytree import flatten, read_tree
from tightfit.stages.torch_utils.input_masks import all_ones_leaves, binary_mask_leaves
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.activation_checkpoints import ActivationCheckpoints
from tightfit.stages.trace.backward_state import BackwardState
from tightfit.stages.trace.call_recorder import CallEvent, CallRecorder, first_divergence
from tightfit.stages.trace.capture_errors import line_suffix
from tightfit.stages.trace.code_inspection import short_path
from tightfit.stages.trace.constant_folding import MAX_ASSUMED_ELEMENTS, ConstantFolder
from tightfit.stages.trace.data_dependence import averaging_norm_message
from tightfit.stages.trace.forward_operators import ForwardOperatorsMode
from tightfit.stages.trace.guards.namespaces import reject_stateful_iterators
from tightfit.stages.trace.guards.tensor_queries import TensorQueries
from tightfit.stages.trace.random_states import RandomStates
from tightfit.util.errors import ModelError

aten = torch.ops.aten


class FakeConstantError(ModelError):
    """A plain tensor attribute of the model is part of the program, so the model must be real."""


@dataclass(frozen=True)
class CapturedLeaf:
    """One leaf of the model's output: a tensor, numbered as in `Forward.run`, with its
    `requires_grad`, or a constant. The view may be one of several (`multiple`) that one function
    makes; PyTorch lets nobody write into these."""

    tensor: int | None
    constant: Any = None
    requires_grad: bool = False
    multiple: bool = False


class FunctionalForward:
    """Runs the forward of a model on the tensors among the leaves of its first sample.

    Each leaf is a tensor of its own, whatever they share in the sample, unless they are `tied`, and
    hooks of the model itself are left out, since they run at each call. `chosen` numbers the
    outputs that receive gradients, None stands for all that can. After a run `leaves` and
    `output_tree` tell what the model returned; behind the `returned` tensors of the output come the
    new values of the buffers that the forward `assigned` instead of writing into them. `shown`
    names the buffers that the output has a tensor's memory of. Each run is within a `running()`.
    `runs` are the logs of the runs, those of an `earlier` forward first; `every` as in
    `CallRecorder`. `ones` are the leaves of the sample that hold only ones, `masks` the other ones
    that may be masks. `looks_for_none` says whether a function of autograd asks for None in place
    of absent gradients, and `checkpoints` are those that the forward makes. `alike` has for each
    input tensor the number of the first one that is the same object, `asked` what the forward asks
    of its tensors."""

    def __init__(
        self,
        built: BuiltModel,
        chosen: set[int] | None,
        running: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        earlier: FunctionalForward | None = None,
        every: bool = False,
        asked: TensorQueries | None = None,
        tied: bool = False,
        stored: Callable[[], list[Any]] | None = None,
    ) -> None:
        self.built = built
        self.model = built.model
        self.chosen = chosen
        self.running = running
        self.given, text = flatten(built.samples[0])
        self.tree = read_tree(text)
        self.places = [i for i, leaf in enumerate(self.given) if isinstance(leaf, torch.Tensor)]
        self.asked: TensorQueries = (asked or TensorQueries()) if earlier is None else earlier.asked
        self.ones = [] if every else all_ones_leaves(built)
        self.masks = [] if every else binary_mask_leaves(built)
        tensors = (leaf for leaf in self.given if isinstance(leaf, torch.Tensor))
        own = (*self.model.parameters(), *self.model.buffers(), *tensors)
        known = ConstantFolder(every, built.ones, own)
        self.contents = _buffer_contents(self.model)
        self.follower = CallRecorder(self.model, built.label, self.asked, known)
        self.alike = _first_occurrences([self.given[place] for place in self.places])
        self.untied_order = list(range(len(self.places)))
        self.order = self.untied_order if not tied else self.alike
        if earlier is not None:
            self.order = earlier.order
        self.ties = _tied_parameters(self.model)
        self.leaves: list[CapturedLeaf] = []
        self.output_tree = ""
        self.returned = 0
        self.checks_none_gradients = False
        self.state = BackwardState(self.model, built.label)
        self.random = RandomStates(built.label, known)
        self.checkpoints = ActivationCheckpoints(built.model)
        self.assigned: list[str] = []
        self.shown: list[str] = []
        self.runs: list[list[CallEvent]] = [] if earlier is None else list(earlier.runs)
        self.stored = stored
        if earlier is not None and stored is None:
            self.stored = earlier.stored
        elif stored is not None:
            self.runs = []

    def watched(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        """Autograd's `grad`, within which the Python of a backward is watched, too."""

        def watching(*args: Any, **kwargs: Any) -> Any:
            mode = ForwardOperatorsMode(self.follower.known, self.random, self.built.assumed)
            if self.state.inside:
                with self.running(), mode:
                    return grad(*args, **kwargs)
            with self.state.as_the_forward_left_it():
                with self.running(), mode:
                    gradients = self.state.gradients(grad, *args, **kwargs)
                self.random.end()
                return gradients

        return watching

    def record_materialize_grads(self, materialize: Callable[..., None]) -> Callable[..., None]:
        """Autograd's `set_materialize_grads`, whose calls are noted."""

        def set_materialize_grads(context: Any, value: bool) -> None:
            self.checks_none_gradients |= not value
            materialize(context, value)

        return set_materialize_grads

    def tensors(self, mode: Any) -> list[torch.Tensor]:
        """The tensors to run it on, without memory."""
        found = []
        for path, leaf in zip(self.tree.paths("input"), self.given, strict=True):
            reject_stateful_iterators(leaf, path)
        if self.built.symbolic:
            from tightfit.stages.trace.symbolic_sizes import symbolic_inputs

            return symbolic_inputs(self.built, self.places, mode)
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

    def as_module(self) -> nn.Module:
        """A module with the model's parameters and buffers whose call is `run`."""
        # PyTorch interprets the graph of a GraphModule instead of calling it.
        of_graph = isinstance(self.model, fx.GraphModule)
        base = nn.Module if of_graph else type(self.model)

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
        known = self.follower.known
        self.random.begin()
        mode = ForwardOperatorsMode(known, self.random, self.built.assumed)
        with self.follower.follow_calls(), self.tied(), mode:
            self.follower.name((f"input {i}", tensor) for i, tensor in enumerate(tensors))
            self.follower.numbers.begin(given[place] for place in self.built.numbers)
            for place, number in zip(self.places, self.order, strict=True):
                if place in (*self.ones, *self.masks):
                    contents = None if place in self.ones else self.given[place]
                    known.assume_contents(tensors[number], place, contents)
            for path, (module, name) in self.buffers().items():
                buffer = module._buffers[name]
                if buffer is not None and path in self.contents:
                    known.assume_contents(buffer, path, self.contents[path])
            with self.state.forward(), self.running():
                output = self.model.forward(*args, **kwargs)
        self.random.end()
        self.check_asked_buffers()
        if self.stored is not None:
            output = (output, self.stored())
        self.follower.returns(flatten(output)[0])
        self.runs.append(self.follower.log)
        for name, tensor, before_run in needing:
            if tensor.requires_grad != before_run:
                raise ModelError(
                    f"{self.built.label}: the forward sets requires_grad of its {name}, which a "
                    f"plan would not do: set it before the model is called and planned"
                )
        self.check_arguments((args, kwargs), given)
        return self.flatten_output(output, before)

    def buffer_values(self) -> list[list[Any]]:
        """The buffers of whose values the forward asks, as `encode_buffer_value` writes them."""
        asked = sorted(self.follower.known.relied_buffers)
        with _disable_current_modes():
            return [encode_buffer_value(path, self.contents[path]) for path in asked]

    def check_asked_buffers(self) -> None:
        """Refuses a forward that changes the value of a buffer which it asks for: its next step
        may be another one."""
        known = self.follower.known
        for path in sorted(known.relied_buffers):
            module, name = self.buffers()[path]
            buffer = module._buffers[name]
            after = None if buffer is None else known.current_contents(buffer)
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                before = encode_value(self.contents[path])
                changed = after is None or encode_value(after) != before
            said = averaging_norm_message(self.model)
            if changed and said and path.endswith("num_batches_tracked"):
                raise ModelError(f"{self.built.label}: {said}")
            if changed:
                line = known.relied_buffers[path]
                raise ModelError(
                    f"{self.built.label}: the forward asks for the value of its buffer {path!r}"
                    f"{line_suffix(short_path(line))} and changes it, so that its next step may be "
                    "another one: if it does so in its first step alone, run the model once before "
                    "planning (in training mode), else let no step depend on what another one "
                    "counted"
                )

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

    def flatten_output(self, output: Any, before: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Numbers the tensors of an output and clones them, then writes assigned buffers."""
        leaves, self.output_tree = flatten(output)
        distinct: dict[int, torch.Tensor] = {}
        numbers: dict[int, int] = {}
        self.leaves = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                number = numbers.setdefault(id(leaf), len(numbers))
                distinct[number] = leaf
                multiple = leaf.requires_grad and _is_multi_output_view(leaf)
                self.leaves.append(CapturedLeaf(number, None, leaf.requires_grad, multiple))
            else:
                self.leaves.append(CapturedLeaf(None, leaf))
        clones = []
        for number, tensor in distinct.items():
            if self.chosen is not None and number not in self.chosen:
                tensor = tensor.detach()
            clones.append(aten.clone.default(tensor))
        self.returned = len(clones)
        bases = {id(_view_base(tensor)) for tensor in distinct.values()}
        held = ((path, module._buffers[name]) for path, (module, name) in self.buffers().items())
        self.shown = [path for path, buffer in held if id(buffer) in bases]
        return (*clones, *self.collect_assigned_buffers(before))

    def collect_assigned_buffers(self, before: dict[str, Any]) -> list[torch.Tensor]:
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
            place = first_divergence(first, other)
            if place is not None:
                raise ModelError(
                    f"{self.built.label}: the forward does not run the same way twice"
                    f"{f' (at {place})' if place else ''}; it may depend on random numbers of "
                    "Python or NumPy, on a counter or on the time, which a plan would freeze"
                )


def _first_occurrences(tensors: list[Any]) -> list[int]:
    """For each tensor the number of the first one that is the same object."""
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), number) for number, tensor in enumerate(tensors)]


def _tied_parameters(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module, str]]:
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


def _view_base(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a view is a view of."""
    return tensor._base if tensor._is_view() and tensor._base is not None else tensor


def _is_multi_output_view(tensor: torch.Tensor) -> bool:
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


def _buffer_contents(model: nn.Module) -> dict[str, torch.Tensor]:
    """The contents of the buffers whose values a forward may ask for: of the small ones."""
    return {
        path: buffer
        for path, buffer in model.named_buffers()
        if not _is_fake(buffer)
        and buffer.device.type != "meta"
        and buffer.numel() <= MAX_ASSUMED_ELEMENTS
    }
