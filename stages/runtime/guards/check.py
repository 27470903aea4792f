"""Gathers the tensors of a call and checks that they are what the plan was made for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import repeat
from operator import is_
from pathlib import Path
from typing import Any

import torch

from ..interface import Interface, TensorSpec
from ..mismatch import PlanMismatch
from ..strides import match_spacing, match_strides
from .aliasing import AliasingGuard
from .call_arguments import CallArguments
from .compare import ModelDifference
from .state import GuardedState, read_guard_description
from .tensor_queries import TensorQueryGuard

_REMEDY = 'undo it, plan again with it, or load the plan with on_mismatch="original"'


_SHAPE_REMEDY = (
    "plan with a sample of each shape, or with a range in dynamic_shapes, or load the plan with "
    'on_mismatch="original"; tightfit.plan also takes on_mismatch="replan"'
)
_RANGE_REMEDY = (
    "plan with a range in dynamic_shapes that has it or, for 0 and 1, where PyTorch runs other "
    'operators, with on_mismatch="replan", or load the plan with on_mismatch="original"'
)
_MAX_REMEMBERED_SIZES = 1 << 12


def _plan_mismatch(difference: Exception) -> Exception:
    """The error for a call that differs, with the number that is another one, if that is why."""
    remedy = getattr(difference, "remedy", "") or _REMEDY
    mismatch = PlanMismatch(f"{difference}; {remedy}")
    vars(mismatch)["number"] = getattr(difference, "number", None)
    return mismatch


class ExpectedLayouts:
    """Shapes and strides of the tensors of a call, and the interface of its `sizes`, which are a
    text for people, "" where all calls have the same; `step` is the one of a second plan for these
    sizes, None for the plan's own."""

    def __init__(self, interface: Interface, sizes: str = "", step: Any = None) -> None:
        self.interface = interface
        self.step = step
        self.sizes = sizes
        self.shapes = [torch.Size(tensor.shape) for tensor in interface.tensors]
        self.strides = [tensor.strides for tensor in interface.tensors]


class Guards:
    """Everything a plan was specialized to, laid out for one model.

    Raises RuntimeError when the model is another one: of other modules, parameters or buffers, or
    with other attributes where the plan's trace read them. With `copying`, inputs that lie
    otherwise in memory are copied where the step may take a copy.
    """

    def __init__(
        self, interface: Interface, model: torch.nn.Module, package: Path, copying: bool = False
    ) -> None:
        self.interface = interface
        self.copied = interface.copyable_inputs if copying else ()
        self.device = interface.device
        self.training = "" not in interface.eval_modules
        self.modules = _ModuleGuard(interface, model)
        self.call = CallArguments(interface, model)
        self.constants = _ProgramConstants(interface, package)
        tensors = interface.tensors
        self.layouts = ExpectedLayouts(interface)
        self.by_sizes: dict[tuple[int, ...], ExpectedLayouts] = {}
        self.dtypes = [getattr(torch, tensor.dtype) for tensor in tensors]
        self.needs = [tensor.requires_grad for tensor in tensors]
        self.names = [self.call.names.get(i, t.path) for i, t in enumerate(tensors)]
        description = package / f"{interface.file_prefix}guards.json"
        watched, written = read_guard_description(description)
        try:
            self.watch = GuardedState(watched, dict(model.named_modules(remove_duplicate=False)))
        except (KeyError, TypeError, ValueError) as error:
            raise RuntimeError(f"{description} is not what was generated") from error
        except ModelDifference as difference:
            remedy = difference.remedy or "undo it or plan this model"
            said = _describe_loaded_model(interface, str(difference))
            raise RuntimeError(f"{said}; {remedy}") from None
        self.answers = TensorQueryGuard(interface, self.names)
        tied = {at for at, first in interface.same_object_inputs if at != first}
        self.ties = AliasingGuard(
            tensors, self.names, written, tied, set(interface.offloaded_parameters)
        )
        self.writes = bool(written)

    def gather(
        self, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[torch.Tensor]:
        """The tensors the step takes, in order; raises PlanMismatch where one does not fit."""
        tensors: list[Any] = [None] * len(self.interface.tensors)
        if "_is_replica" in vars(model):
            raise PlanMismatch(
                "the call is on a replica of DataParallel, whose weights are copies: use "
                "DistributedDataParallel, with a process for each device"
            )
        try:
            self.check_autocast()
            modules = self.modules.gather(model, tensors)
            self.watch.check(modules)
            self.call.gather(args, kwargs, tensors)
            self.constants.gather(tensors)
            self.check_present(tensors)
            expected = self.expected(tensors)
            self.answers.check(tensors, modules, self.watch.lists.tensors, expected.strides)
            self.check(tensors, expected)
        except (PlanMismatch, ModelDifference) as difference:
            # The error has no name here: with one it would keep this frame and its tensors alive.
            raise _plan_mismatch(difference) from difference.__cause__
        tie = self.ties.difference(tensors, self.watch.lists.tensors)
        if tie is not None:
            raise PlanMismatch(tie)
        self.modules.renew(modules, tensors)
        return tensors

    def check_autocast(self) -> None:
        """Compares the state of autocast with that of the trace."""
        for device, expected in self.interface.autocast.items():
            if torch.is_autocast_enabled(device):
                found = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            else:
                found = None
            if found != expected:
                raise PlanMismatch(
                    f"autocast on {device} is {found or 'off'}, "
                    f"the plan was made with it {expected or 'off'}"
                )
            cached = torch.is_autocast_cache_enabled()
            if found and self.interface.autocast_cache not in (None, cached):
                raise ModelDifference(
                    f"autocast {'keeps' if cached else 'does not keep'} its casts, of which the "
                    f"forward uses one twice, and the plan was made with "
                    f"cache_enabled={self.interface.autocast_cache}",
                    f"plan within torch.autocast(..., cache_enabled={cached})",
                )

    def check_present(self, tensors: list[Any]) -> None:
        """Raises PlanMismatch where there is None in the place of a tensor."""
        absent = list(map(is_, tensors, repeat(None)))
        if any(absent):
            name = self.names[absent.index(True)]
            raise PlanMismatch(f"{name} is None, the plan was made for a tensor")

    def expected(self, tensors: Sequence[torch.Tensor]) -> ExpectedLayouts:
        """How the tensors of a call are to lie, by its sizes where these differ from call to call.
        Raises Difference where a size is not within its range."""
        dynamic = self.interface.sizes
        if dynamic is None:
            return self.layouts
        try:
            sizes = dynamic.read(tensors)
        except IndexError:
            return self.layouts
        found = self.by_sizes.get(sizes)
        if found is None:
            if clause := dynamic.difference(sizes, self.names):
                raise ModelDifference(clause, _RANGE_REMEDY)
            small = dynamic.small
            if small is not None and small.takes(sizes):
                own, step = small.interface, small.step
            else:
                own, step = self.interface, None
            found = ExpectedLayouts(own.at(sizes), dynamic.describe(sizes), step)
            if len(self.by_sizes) >= _MAX_REMEMBERED_SIZES:
                self.by_sizes.clear()
            self.by_sizes[sizes] = found
        return found

    def check(self, tensors: list[torch.Tensor], expected: ExpectedLayouts) -> None:
        """Compares shapes, dtypes, devices, gradients and strides of all tensors, and puts copies
        in the place of those that may come with other gaps or, where asked for, strides."""
        device = tensors[0].device
        if (
            device.type == self.device
            and [tensor.shape for tensor in tensors] == expected.shapes
            and [tensor.dtype for tensor in tensors] == self.dtypes
            and [tensor.requires_grad for tensor in tensors] == self.needs
            and [tensor.device for tensor in tensors].count(device) == len(tensors)
            and [tensor.stride() for tensor in tensors] == expected.strides
        ):
            return
        for position in self.interface.stride_flexible_inputs:
            like = expected.interface.tensors[position]
            tensors[position] = match_spacing(tensors[position], like.shape, like.strides)
        for position in self.copied:
            like = expected.interface.tensors[position]
            tensors[position] = match_strides(tensors[position], like.shape, like.strides)
        for position, tensor in enumerate(tensors):
            self.compare(position, tensor, device, expected)

    def compare(
        self, position: int, tensor: torch.Tensor, device: torch.device, layouts: ExpectedLayouts
    ) -> None:
        """Raises Difference, naming a tensor, where it does not fit."""
        shape, expected = tuple(tensor.shape), layouts.interface.tensors[position]
        clause = remedy = ""
        if shape != expected.shape:
            at = f" where {layouts.sizes}" if layouts.sizes else ""
            clause = f"has shape {shape}, the plan was made for {expected.shape}{at}"
            remedy = _SHAPE_REMEDY if position in self.call.names and not layouts.sizes else ""
        elif tensor.dtype != self.dtypes[position]:
            clause = f"has dtype {tensor.dtype}, the plan was made for {self.dtypes[position]}"
        elif tensor.device.type != self.device:
            clause = f"is on {tensor.device}, the plan was made for {self.device}"
        elif tensor.device != device:
            clause = f"is on {tensor.device}, other tensors of the call are on {device}"
        elif tensor.requires_grad != expected.requires_grad:
            wanted = "with" if expected.requires_grad else "without"
            found = "requires a gradient" if tensor.requires_grad else "requires no gradient"
            clause = f"{found}, the plan was made {wanted} one"
        elif not _same_strides(shape, tensor.stride(), expected.strides):
            clause = f"has strides {tensor.stride()}, the plan was made for {expected.strides}"
            copied = position in self.interface.copyable_inputs
            remedy = _layout_remedy(self.names[position], expected, copied)
        if clause:
            raise ModelDifference(f"{self.names[position]} {clause}", remedy)


class _ModuleGuard:
    """Finds parameters and buffers by name, and compares the training flags of all submodules."""

    def __init__(self, interface: Interface, model: torch.nn.Module) -> None:
        self.device = interface.device
        self.paths = [path for path, _ in model.named_modules(remove_duplicate=False)]
        absent = sorted(interface.eval_modules - set(self.paths))
        if absent:
            raise RuntimeError(
                f"{_plan_clause(interface)} and this model has no module {absent[0]}"
            )
        numbers = {path: number for number, path in enumerate(self.paths)}
        self.walk = [
            (numbers[path.rpartition(".")[0]], path.rpartition(".")[2]) for path in self.paths[1:]
        ]
        self.modes = [
            (numbers[path], path not in interface.eval_modules) for path, _ in model.named_modules()
        ]
        self.parameters: list[tuple[int, int, str]] = []
        self.buffers: list[tuple[int, int, str]] = []
        self.aliases: list[tuple[int, int, str]] = []
        known = {path for path, _ in model.named_parameters(remove_duplicate=False)}
        known |= {path for path, _ in model.named_buffers(remove_duplicate=False)}
        for position, tensor in enumerate(interface.tensors):
            if tensor.kind in ("parameter", "buffer"):
                for path in (tensor.path, *tensor.aliases):
                    if path not in known:
                        raise RuntimeError(
                            f"{_plan_clause(interface)} and this model has no {tensor.kind} {path}"
                        )
                self._enter(position, tensor, numbers)
        self.assigned = [place for place in self.buffers if place[0] in interface.assigned_buffers]
        self.unread = self._unread(model, numbers)

    def _enter(self, position: int, tensor: TensorSpec, numbers: dict[str, int]) -> None:
        found = self.parameters if tensor.kind == "parameter" else self.buffers
        for target, path in [(found, tensor.path), *((self.aliases, a) for a in tensor.aliases)]:
            owner, _, name = path.rpartition(".")
            target.append((position, numbers[owner], name))

    def gather(self, model: torch.nn.Module, tensors: list[Any]) -> list[torch.nn.Module]:
        """Puts parameters and buffers at their positions; the modules at all paths."""
        modules = [model]
        try:
            for parent, name in self.walk:
                modules.append(modules[parent]._modules[name])  # type: ignore[arg-type]
            for position, owner, name in self.parameters:
                tensors[position] = modules[owner]._parameters[name]
            for position, owner, name in self.buffers:
                tensors[position] = modules[owner]._buffers[name]
            self._check_unread(modules)
        except KeyError:
            raise PlanMismatch(
                f"the model no longer has the {self._absent(model)} the plan was made for"
            ) from None
        for position, owner, name in self.aliases:
            tied = modules[owner]._parameters.get(name, modules[owner]._buffers.get(name))
            if tied is not tensors[position]:
                raise PlanMismatch(
                    f"{self._join(owner, name)} is no longer the same tensor that it was tied to"
                )
        for number, wanted in self.modes:
            if modules[number].training != wanted:
                found, planned = (
                    ("evaluation", "training") if wanted else ("training", "evaluation")
                )
                raise PlanMismatch(
                    f"{self.paths[number]} is in {found} mode, the plan was made in {planned} mode"
                )
        return modules

    def _unread(
        self, model: torch.nn.Module, numbers: dict[str, int]
    ) -> list[tuple[int, str, str, torch.dtype, str]]:
        """The parameters and buffers that no output depends on, with dtype and kind of device: the
        forward may read them all the same, and fail where they are of another one."""
        known = {(owner, name) for _, owner, name in (*self.parameters, *self.buffers)}
        known |= {(owner, name) for _, owner, name in self.aliases}
        return [
            (numbers[path], held, name, tensor.dtype, tensor.device.type)
            for path, module in model.named_modules(remove_duplicate=False)
            for held in ("_parameters", "_buffers")
            for name, tensor in vars(module)[held].items()
            if tensor is not None and (numbers[path], name) not in known
        ]

    def _check_unread(self, modules: Sequence[torch.nn.Module]) -> None:
        for owner, held, name, dtype, device in self.unread:
            tensor = vars(modules[owner])[held].get(name)
            if tensor is None:
                continue
            if tensor.dtype != dtype:
                raise PlanMismatch(
                    f"{self._join(owner, name)} has dtype {tensor.dtype}, the plan was loaded "
                    f"when it had {dtype}"
                )
            if tensor.device.type not in (device, self.device):
                raise PlanMismatch(
                    f"{self._join(owner, name)} is on {tensor.device}, the plan was made for "
                    f"{self.device}"
                )

    def renew(self, modules: Sequence[torch.nn.Module], tensors: list[torch.Tensor]) -> None:
        """Puts copies in the place of the buffers that the step will write where the forward
        assigns them: whoever holds what stood there keeps it as it was."""
        for position, owner, name in self.assigned:
            with torch.no_grad():
                tensors[position] = tensors[position].clone()
            modules[owner]._buffers[name] = tensors[position]

    def _absent(self, model: torch.nn.Module) -> str:
        """The first module, parameter or buffer that is not where it was."""
        found = dict(model.named_modules(remove_duplicate=False))
        for path in self.paths:
            if path not in found:
                return f"module {path}"
        for kind, places in (("parameter", self.parameters), ("buffer", self.buffers)):
            for _, owner, name in places:
                if name not in vars(found[self.paths[owner]])[f"_{kind}s"]:
                    return f"{kind} {self._join(owner, name)}"
        return "modules"

    def _join(self, owner: int, name: str) -> str:
        return f"{self.paths[owner]}.{name}" if self.paths[owner] else name


class _ProgramConstants:
    """The tensors that belong to the program itself, read once for each device."""

    def __init__(self, interface: Interface, package: Path) -> None:
        self.file = package / f"{interface.file_prefix}constants.bin"
        self.tensors = [(i, t) for i, t in enumerate(interface.tensors) if t.kind == "constant"]
        self.read: dict[torch.device, list[torch.Tensor]] = {}
        self.digest = interface.constants
        if self.tensors:
            self.bytes()

    def bytes(self) -> bytearray:
        """The file's bytes; raises RuntimeError where they are not those of the plan."""
        data = bytearray(self.file.read_bytes() if self.file.is_file() else b"")
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise RuntimeError(
                f"{self.file} is not the file of constants that the plan was made of"
            )
        return data

    def gather(self, tensors: list[Any]) -> None:
        """Puts the constants at their positions, on the device of the other tensors."""
        if not self.tensors:
            return
        device = next((t.device for t in tensors if t is not None), torch.device("cpu"))
        for (position, _), constant in zip(self.tensors, self.on(device), strict=True):
            tensors[position] = constant

    def on(self, device: torch.device) -> list[torch.Tensor]:
        """The constants on a device."""
        if self.tensors and device not in self.read:
            data = self.bytes()
            self.read[device] = [_read_constant(tensor, data, device) for _, tensor in self.tensors]
        return self.read.get(device, [])


def _read_constant(tensor: TensorSpec, data: bytearray, device: torch.device) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    copied = torch.empty_strided(tensor.shape, tensor.strides, dtype=dtype, device=device)
    if copied.numel():
        read = torch.frombuffer(data, dtype=dtype, count=copied.numel(), offset=tensor.start)
        copied.copy_(read.reshape(tensor.shape))
    return copied


def _layout_remedy(name: str, expected: TensorSpec, copied: bool) -> str:
    """What to do with an input in other strides than expected, "" for what is no such input."""
    like = torch.empty_strided(expected.shape, expected.strides, device="meta")
    if expected.kind != "input":
        return ""
    first = f"give it {name}.contiguous(), " if like.is_contiguous() else ""
    ways = '"original", or "copy" to have such inputs copied' if copied else '"original"'
    return f"{first}plan with such strides, or load the plan with on_mismatch={ways}"


def _plan_clause(interface: Interface) -> str:
    return f"the plan was made for {interface.model}"


def _describe_loaded_model(interface: Interface, sentence: str) -> str:
    """What is said of a model, said of the model that is loaded."""
    if sentence.startswith("the model "):
        sentence = f"this {sentence.removeprefix('the ')}"
    elif not sentence.startswith(("this ", "the ")):
        sentence = f"this model's {sentence}"
    return f"{_plan_clause(interface)} and {sentence}"


def _same_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, ...]
) -> bool:
    """Strides of dimensions with one element, or of a tensor with none, mean nothing."""
    if 0 in shape:
        return True
    together = zip(shape, strides, expected, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in together)
