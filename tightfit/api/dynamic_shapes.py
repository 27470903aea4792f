"""`dynamic_shapes` in the convention of torch.export, as dimensions of a sample's inputs."""

from __future__ import annotations

import builtins
import inspect
import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tightfit.api.multi_shape_module import call_signature
from tightfit.schemas.graph.dynamic_inputs import DynamicDimension, DynamicInputs
from tightfit.util.errors import ConfigError, ModelError
from tightfit.util.strategies import STRATEGIES

if TYPE_CHECKING:
    from tightfit.stages.torch_utils.model_factory import BuiltModel

SMALLEST_SIZE = 2
"""Sizes 0 and 1 are those of other programs: operators broadcast, or have nothing to do."""


def check_dynamic_shapes(strategy: str, others: Mapping[str, object]) -> None:
    """Raises ConfigError where a plan with dynamic shapes cannot be made as it is asked for:
    `others` are options of `plan`, by name, which must not be given."""
    for name, given in others.items():
        if given:
            raise ConfigError(
                f"plan: dynamic_shapes and {name} exclude each other for now: leave one of them "
                "out, or give samples of several shapes"
            )
    if STRATEGIES[strategy].links:
        raise ConfigError(
            f"plan: dynamic_shapes is not for the strategy {strategy}, which sends tensors away "
            'whose places do not change: take another one, as strategy="auto"'
        )


def with_dynamic_shapes(given: Sequence[BuiltModel], dynamic_shapes: Any) -> list[BuiltModel]:
    """The samples, which are of one shape, enlarged to the largest sizes of their dynamic
    dimensions.

    Args:
        given: Samples of one shape, apart where they have masks of other kinds.
        dynamic_shapes: By the name of each argument of the forward, or in their order, the dynamic
            axes: a mapping from axes to `torch.export.Dim`, `Dim.AUTO`, `Dim.DYNAMIC`, names or
            None, or a list with one of these for each axis; for an argument that has tensors in
            lists or dictionaries such a list or dictionary.

    Raises:
        ConfigError: It is not of this form, does not fit the sample, or has a range that no plan
            can have.
    """
    from tightfit.stages.torch_utils.sample_sizes import resize_samples

    if len({call_signature(*built.samples[0]) for built in given}) > 1:
        raise ConfigError(
            "plan: dynamic_shapes takes samples of one shape, of which all other sizes are made, "
            "and is given several: leave samples out"
        )
    dynamic = _DimensionReader(given[0]).read(dynamic_shapes)
    return [resize_samples(replace(built, dynamic=dynamic), dynamic.largest) for built in given]


class _DimensionReader:
    """Reads dynamic shapes beside the first sample of a model."""

    def __init__(self, built: BuiltModel) -> None:
        from tightfit.stages.runtime.pytree import flatten, read_tree

        self.leaves, text = flatten(built.samples[0])
        args, kwargs = read_tree(text).unflatten(range(len(self.leaves)))
        self.arguments = _bind_arguments(built, args, kwargs)
        self.dimensions: dict[str, DynamicDimension] = {}
        self.first: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def read(self, dynamic_shapes: Any) -> DynamicInputs:
        """The dimensions, and the axes that have them."""
        axes: dict[int, dict[int, str]] = {}
        for name, spec in self._by_argument(dynamic_shapes).items():
            if spec is None:
                continue
            if name not in self.arguments:
                known = ", ".join(self.arguments)
                raise ConfigError(
                    f"plan: dynamic_shapes names {name!r}, and the sample has the arguments {known}"
                )
            for leaf, path, own in self._leaf_specs(self.arguments[name], spec, name):
                found = dict(self._axes(leaf, path, own))
                if found:
                    axes[leaf] = found
        if not axes:
            raise ConfigError(
                "plan: dynamic_shapes has no dynamic dimension: give one, as "
                '{"input_ids": {1: torch.export.Dim("tokens", max=1024)}}, or leave it out'
            )
        return DynamicInputs(tuple(self.dimensions.values()), axes)

    def _by_argument(self, dynamic_shapes: Any) -> Mapping[str, Any]:
        if isinstance(dynamic_shapes, Mapping) and all(isinstance(k, str) for k in dynamic_shapes):
            return dynamic_shapes
        if isinstance(dynamic_shapes, list | tuple):
            names = list(self.arguments)
            if len(dynamic_shapes) <= len(names):
                return dict(zip(names, dynamic_shapes, strict=False))
        raise ConfigError(
            f"plan: dynamic_shapes is {dynamic_shapes!r}, expected the dynamic axes by the names "
            "of arguments or in their order, as "
            '{"input_ids": {1: torch.export.Dim("tokens", max=1024)}}'
        )

    def _leaf_specs(self, argument: Any, spec: Any, path: str) -> Iterator[tuple[int, str, Any]]:
        """The leaves of an argument, whose numbers stand in it, with what is said of each."""
        if spec is None:
            return
        if isinstance(argument, int):
            yield argument, path, spec
        elif isinstance(argument, Mapping) and isinstance(spec, Mapping):
            for key, own in spec.items():
                if key not in argument:
                    raise ConfigError(f"plan: dynamic_shapes: {path} has no {key!r}")
                yield from self._leaf_specs(argument[key], own, f"{path}[{key!r}]")
        elif (
            isinstance(argument, list | tuple)
            and isinstance(spec, list | tuple)
            and len(spec) == len(argument)
        ):
            for number, (item, own) in enumerate(zip(argument, spec, strict=True)):
                yield from self._leaf_specs(item, own, f"{path}[{number}]")
        else:
            raise ConfigError(
                f"plan: dynamic_shapes says {spec!r} of {path}, which is of another structure"
            )

    def _axes(self, leaf: int, path: str, spec: Any) -> Iterator[tuple[int, str]]:
        """The dynamic axes of a leaf with the names of their dimensions."""
        import torch

        tensor = self.leaves[leaf]
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(f"plan: dynamic_shapes: {path} is no tensor in the sample")
        if isinstance(spec, list | tuple):
            spec = dict(enumerate(spec))
        if not isinstance(spec, Mapping):
            raise ConfigError(
                f"plan: dynamic_shapes says {spec!r} of {path}, expected axes with dimensions, as "
                '{0: torch.export.Dim("batch", max=8)}'
            )
        for axis, dim in spec.items():
            if type(axis) is not int or not 0 <= axis < tensor.dim():
                raise ConfigError(
                    f"plan: dynamic_shapes: {path} has no axis {axis!r}: its sample has shape "
                    f"{tuple(tensor.shape)}"
                )
            name = self._dimension(dim, tensor.shape[axis], axis, f"axis {axis} of {path}")
            if name:
                yield axis, name

    def _dimension(self, dim: Any, size: int, axis: int, where: str) -> str:
        """The name of a dimension, "" for one that is the same in all calls."""
        if dim is None or getattr(getattr(dim, "type", None), "name", "") == "STATIC":
            return ""
        if isinstance(dim, int) and not isinstance(dim, bool):
            if dim != size:
                raise ConfigError(
                    f"plan: dynamic_shapes: {where} is {size} in the sample, not {dim}"
                )
            return ""
        name = self._name(dim, size, axis, where)
        limits = DynamicDimension(name, *_size_limits(dim, size))
        _check_limits(limits, size, where)
        known = self.dimensions.setdefault(name, limits)
        self.first.setdefault(name, where)
        if known != limits or self.sizes.setdefault(name, size) != size:
            raise ConfigError(
                f"plan: dynamic_shapes: {name!r} is {self.sizes[name]} on {self.first[name]} and "
                f"{size} on {where} in the sample, or has two ranges: give two names"
            )
        return name

    def _name(self, dim: Any, size: int, axis: int, where: str) -> str:
        if getattr(getattr(dim, "type", None), "name", "") in ("AUTO", "DYNAMIC") or dim is ...:
            return f"size_{axis}_of_{size}"
        name = dim if isinstance(dim, str) else getattr(dim, "__name__", None)
        if type(dim).__name__ in ("_DerivedDim", "_IntWrapper") or hasattr(dim, "root"):
            raise ConfigError(
                f"plan: dynamic_shapes: {where} is computed from another dimension, which is not "
                "supported yet: give it a dimension of its own"
            )
        if not isinstance(name, str) or (not isinstance(dim, str) and not hasattr(dim, "max")):
            raise ConfigError(
                f"plan: dynamic_shapes says {dim!r} of {where}, expected a torch.export.Dim, a "
                "name or None"
            )
        if not name.isidentifier() or keyword.iskeyword(name) or hasattr(builtins, name):
            raise ConfigError(
                f"plan: dynamic_shapes: {name!r} on {where} cannot be a name in a program: choose "
                "another one"
            )
        return name


def _bind_arguments(built: BuiltModel, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call of a model by name; raises ModelError where it takes others."""
    signature = inspect.signature(built.model.forward)
    try:
        found = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise ModelError(f"{built.label}: the forward does not take the sample: {error}") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(name, {})
    return found


def _size_limits(dim: Any, size: int) -> tuple[int, int]:
    """The smallest and the largest size of a dimension; without limits of its own that is the one
    of the sample at most."""
    least, most = getattr(dim, "min", None), getattr(dim, "max", None)
    largest = int(most) if isinstance(most, int) else size
    return max(int(least or 0), SMALLEST_SIZE), largest


def _check_limits(limits: DynamicDimension, size: int, where: str) -> None:
    name, smallest, largest = limits.name, limits.smallest, limits.largest
    if size < SMALLEST_SIZE:
        raise ConfigError(
            f"plan: dynamic_shapes: {where} ({name}) has the size {size} in the sample, for which "
            f"PyTorch runs other operators: give a sample with at least {SMALLEST_SIZE} there"
        )
    if not smallest <= size <= largest:
        raise ConfigError(
            f"plan: dynamic_shapes: {where} is {size} in the sample, and {name} is from {smallest} "
            f"to {largest}: give a larger range or a sample within it"
        )
    if smallest == largest:
        raise ConfigError(
            f"plan: dynamic_shapes: {name} on {where} has the one size {size}: give it a larger "
            f'one, as torch.export.Dim("{name}", max={2 * size}), or None'
        )
