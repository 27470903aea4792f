"""Loads a user's model factory and builds the model with its samples, with or without memory.

A factory is a function that returns `(model, samples)` or `(model, samples, loss)`: `samples` is
one `(args tuple, kwargs dict)` or a list of them, `loss` a function from the model's output to a
scalar.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tightfit.schemas.graph.dynamic_inputs import DynamicInputs
from tightfit.stages.runtime.pytree import flatten, read_tree
from tightfit.stages.torch_utils.devices import parse_device
from tightfit.stages.torch_utils.devices import require_device as require_device
from tightfit.util.errors import ModelError
from tightfit.util.tracebacks import describe_error, describe_error_location, format_last_calls

if TYPE_CHECKING:
    from tightfit.stages.trace.assumed_data import AssumedData


@contextlib.contextmanager
def fake_tensor_mode() -> Iterator[FakeTensorMode]:
    """A mode in which tensors are made without memory, and modules can still be converted.

    `module.to(...)`, `.bfloat16()` and the like replace parameters in place, which fake tensors
    refuse; within this mode they put new parameters in the old ones' places, tied ones together.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # Copies of tensors are of this mode, too.
    mode.__deepcopy__ = lambda _: mode  # type: ignore[attr-defined]
    original = nn.Module._apply
    nn.Module._apply = _make_converter()  # type: ignore[method-assign]
    try:
        with mode:
            yield mode
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


def _make_converter() -> Callable[..., nn.Module]:
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def convert(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if id(tensor) not in replaced:
            with torch.no_grad():
                new = function(tensor)
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, tensor.requires_grad)
            replaced[id(tensor)] = (tensor, new)
        return replaced[id(tensor)][1]

    def apply(
        module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> nn.Module:
        for submodule in module.modules() if recurse else [module]:
            for tensors in (submodule._parameters, submodule._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = convert(tensor, function)
        return module

    return apply


def structure_leaves(value: Any) -> list[Any]:
    """The leaves of a value, in order."""
    return flatten(value)[0]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with what a function makes of each leaf."""
    leaves, text = flatten(value)
    return read_tree(text).unflatten([function(leaf) for leaf in leaves])


Sample = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class BuiltModel:
    """A model with its sample inputs, all of the same shapes, and its loss where it has one.

    `fake_mode` is the mode under which model and samples were made without memory, None for real
    ones. `label` names the factory in messages. With `ones` a plan may rest on it that inputs hold
    only ones, which do so in all samples. `mixed` are leaves of (args, kwargs), masks of which it
    takes no call where they hold only ones. `numbers` are leaves, tensors of float64 without
    dimensions, in whose places the model is given floats. Calls may have other sizes on the
    `dynamic` dimensions, of which the samples have the largest. A `symbolic` capture has symbols
    there. With `assumed` data the capture is of the path that these choose, for what nobody runs.
    """

    model: nn.Module
    samples: list[Sample]
    loss: Callable[[Any], torch.Tensor] | None = None
    fake_mode: FakeTensorMode | None = None
    label: str = "the model"
    ones: bool = False
    mixed: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    dynamic: DynamicInputs | None = None
    symbolic: bool = False
    assumed: AssumedData | None = None


def load_factory(spec: str, search_path: Sequence[Path | str] = ()) -> Callable[..., Any]:
    """The function that "package.module:function" names.

    `search_path` and the current directory are searched before the installed packages. Raises
    ModelError when the module or the function does not exist, or importing it fails.
    """
    module_name, colon, function_name = spec.partition(":")
    if not (module_name and colon and function_name):
        raise ModelError(f"the factory {spec!r} is not of the form 'package.module:function'")
    extend_import_path(search_path)
    try:
        with contextlib.chdir("."):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            said = f"there is no module {error.name!r}{_module_hint(module_name)}"
            raise ModelError(f"the factory {spec!r}: {said}") from error
        raise _factory_error(spec, "cannot be imported:", error) from error
    except (Exception, SystemExit) as error:
        raise _factory_error(spec, "cannot be imported:", error) from error
    function = getattr(module, function_name, None)
    if function is None:
        names = [name for name, value in vars(module).items() if callable(value)]
        close = difflib.get_close_matches(function_name, names, 1)
        hint = f", did you mean {close[0]}" if close else ""
        raise ModelError(f"the factory {spec!r}: {module_name} has no {function_name!r}{hint}")
    if not callable(function):
        raise ModelError(f"the factory {spec!r} is no function")
    return function


def _module_hint(module_name: str) -> str:
    """What may have been meant by a module that is not there, "" for nothing."""
    if module_name.endswith(".py"):
        return f", write {module_name.removesuffix('.py').replace('/', '.')!r}"
    return " (it is looked for in search_path, the current folder and installed packages)"


def extend_import_path(search_path: Iterable[Path | str]) -> None:
    """Lets imports look into these folders and the current one before the installed packages."""
    for entry in (*search_path, Path.cwd()):
        if str(Path(entry).resolve()) not in sys.path:
            sys.path.insert(0, str(Path(entry).resolve()))


def build_from_factory(
    spec: str,
    arguments: Mapping[str, Any],
    fake: bool = False,
    search_path: Sequence[Path | str] = (),
    device: str = "cpu",
) -> BuiltModel:
    """Calls the factory with keyword arguments and checks what it returns.

    With `fake` the weights are never allocated; a factory that fails so is called for real. Model
    and samples are moved to `device`. The working directory is the same afterwards. Raises
    ModelError with one sentence that names the factory.
    """
    factory = load_factory(spec, search_path)
    require_device(device)
    if fake:
        try:
            with contextlib.chdir("."), fake_tensor_mode() as mode:
                built = check_factory_result(factory(**arguments), spec)
                return replace(move_built_model(built, device), fake_mode=mode)
        except (Exception, SystemExit):  # what went wrong is told by the real call
            return build_from_factory(spec, arguments, False, search_path, device)
    try:
        with contextlib.chdir("."):
            result = factory(**arguments)
    except (Exception, SystemExit) as error:
        raise _factory_error(spec, "raises", error) from error
    return move_built_model(check_factory_result(result, spec), device)


def check_factory_result(result: Any, spec: str, label: str = "") -> BuiltModel:
    """What a factory returned, as a Built; raises ModelError when it is something else.

    `label` is what messages begin with, unless given the factory's name.
    """
    label = label or f"the factory {spec!r}"
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise ModelError(
            f"{label} returns {_describe_type(result)} instead of (model, samples) or (model, "
            "samples, loss)"
        )
    model, samples, loss = (*result, None)[:3]
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{label} returns {_describe_type(model)} as its model instead of a torch module"
        )
    if loss is not None and not callable(loss):
        raise ModelError(
            f"{label} returns {_describe_type(loss)} as its loss instead of a function"
        )
    built = BuiltModel(model, _samples(samples, label), loss, None, label)
    check_dense_tensors(label, model, built.samples)
    _check_same_shapes(built)
    if any(tensor.device.type == "meta" for tensor in all_tensors(built)):
        raise ModelError(
            f"{label}: tensors on the device 'meta' have no values: make model and inputs on the"
            ' CPU, or give them memory with to_empty(device="cpu") and load the weights'
        )
    trains = any(parameter.requires_grad for parameter in model.parameters())
    if not trains and not any(leaf.requires_grad for leaf in _tensor_leaves(built.samples[0])):
        raise ModelError(f"{label}: no parameter of the model and no input requires a gradient")
    return built


def move_built_model(built: BuiltModel, device: str) -> BuiltModel:
    """The same with model and samples on `device`."""
    target = parse_device(device)
    if all(parse_device(tensor.device) == target for tensor in all_tensors(built)):
        return built

    def to_device(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(target).requires_grad_(leaf.requires_grad)

    samples = [map_leaves(to_device, sample) for sample in built.samples]
    return replace(built, model=built.model.to(target), samples=samples)


def _samples(samples: Any, label: str) -> list[Sample]:
    several = samples if isinstance(samples, list) else [samples]
    if not several:
        raise ModelError(f"{label} returns no samples")
    for sample in several:
        if not (
            isinstance(sample, tuple)
            and len(sample) == 2
            and isinstance(sample[0], tuple | list)
            and isinstance(sample[1], dict)
            and all(isinstance(key, str) for key in sample[1])
        ):
            raise ModelError(
                f"{label} returns samples that are not (args tuple, kwargs dict) or a list of such"
            )
    return [(tuple(args), dict(kwargs)) for args, kwargs in several]


def check_dense_tensors(label: str, model: nn.Module, samples: Iterable[Any]) -> None:
    """Raises ModelError for a parameter, a buffer or an input whose memory is not that of an
    ordinary tensor."""
    own = (*model.named_parameters(), *model.named_buffers())
    given = (("an input", leaf) for leaf in _tensor_leaves(list(samples)))
    for name, tensor in (*own, *given):
        kinds = {
            "nested": tensor.is_nested,
            "quantized": tensor.is_quantized,
            f"of the layout {tensor.layout}": tensor.layout != torch.strided,
        }
        kind = next((kind for kind, holds in kinds.items() if holds), None)
        if kind is not None:
            raise ModelError(
                f"{label}: {name} is {kind}, which a plan does not hold: make it an ordinary "
                "tensor (to_dense(), dequantize(), torch.nested.to_padded_tensor()), or compute "
                "with it outside of the model"
            )


def _check_same_shapes(built: BuiltModel) -> None:
    first, first_tree = flatten(built.samples[0])
    for index, sample in enumerate(built.samples[1:], start=1):
        leaves, tree = flatten(sample)
        if tree != first_tree:
            raise ModelError(f"{built.label}: sample {index} has another structure than sample 0")
        for mine, other in zip(first, leaves, strict=True):
            if _signature(mine) != _signature(other):
                raise ModelError(
                    f"{built.label}: sample {index} has {_describe_leaf(other)} where sample 0 has "
                    f"{_describe_leaf(mine)}"
                )


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device.type, leaf.requires_grad
    return type(leaf), leaf


def _describe_leaf(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        gradient = ", requires grad" if leaf.requires_grad else ""
        dtype = str(leaf.dtype).removeprefix("torch.")
        return f"a {dtype} tensor {list(leaf.shape)} (strides {list(leaf.stride())}{gradient})"
    return repr(leaf)


def _tensor_leaves(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in structure_leaves(tree) if isinstance(leaf, torch.Tensor))


def all_tensors(built: BuiltModel) -> Iterator[torch.Tensor]:
    """The parameters and buffers of a model, then the tensors among its samples."""
    yield from built.model.parameters()
    yield from built.model.buffers()
    yield from _tensor_leaves(built.samples)


def _describe_type(thing: Any) -> str:
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _factory_error(spec: str, verb: str, error: BaseException) -> ModelError:
    """What is said of an exception in the code of a factory: where it is, and how it came there."""
    location = describe_error_location(error)
    message = f"the factory {spec!r} {verb} {describe_error(error)}"
    message += f" ({location})" if location else ""
    return ModelError(message, details=format_last_calls(error))
