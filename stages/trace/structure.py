"""What a model is made of: modules, parameters, buffers and hooks."""

from __future__ import annotations

from typing import Any

from torch import nn

from tightfit.stages.device.readings import class_of, type_of

HOOK_FIELDS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_COMPUTING = (
    *("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm"),
    "torch.nn.utils.prune",
)
"""The modules of hooks that only compute an attribute, which the capture sees."""
_ATTRIBUTE = ("name", "_tensor_name")
"""Where such hooks have the name of the attribute."""
_REQUIRING = "enable_input_require_grads.<locals>.make_inputs_require_grads"
"""A hook of transformers that lets embeddings require gradients, which the capture sees."""
_COLLECTING = "install_output_capuring_hook.<locals>.output_capturing_hook"
"""A hook of transformers that hands a submodule's output to the running forward."""


def structure(model: nn.Module) -> dict[str, Any]:
    """A model's modules with their types, its parameters and buffers, and hooks on submodules."""
    modules = list(model.named_modules(remove_duplicate=False))
    tensors: list[list[Any]] = []
    hooks = []
    for path, module in modules:
        for kind, field in (("parameter", "_parameters"), ("buffer", "_buffers")):
            for name, tensor in vars(module)[field].items():
                whole = f"{path}.{name}" if path else name
                shape = None if tensor is None else list(tensor.shape)
                dtype = None if tensor is None else str(tensor.dtype).removeprefix("torch.")
                tensors.append([whole, kind, shape, dtype])
        names = [name_of(h) for f in HOOK_FIELDS for h in vars(module)[f].values()]
        if path and names:
            hooks.append([path, *names])
    return {
        "modules": [[path, *type_of(module)] for path, module in modules],
        "tensors": tensors,
        "hooks": hooks,
        "twins": _twins([(path, class_of(module)) for path, module in modules]),
    }


def _twins(classes: list[tuple[str, type]]) -> list[list[str]]:
    """The paths of modules whose class is another one of the same name as that of a module before
    them, put together by class."""
    groups: dict[type, list[str]] = {}
    names: dict[tuple[str, ...], type] = {}
    for path, kind in classes:
        if names.setdefault((kind.__module__, kind.__qualname__), kind) is not kind:
            groups.setdefault(kind, []).append(path)
    return list(groups.values())


def own_paths(model: nn.Module) -> dict[int, str]:
    """The paths of all parameters and buffers by id, of all modules by that of their fields."""
    paths: dict[int, str] = {}
    for path, module in model.named_modules():
        paths.setdefault(id(vars(module)), path)
        for field in ("_parameters", "_buffers"):
            for name, tensor in vars(module)[field].items():
                if tensor is not None:
                    paths.setdefault(id(tensor), f"{path}.{name}" if path else name)
    return paths


def only_computes(hook: Any) -> bool:
    """True for a hook whose only effect is an attribute that the forward reads."""
    named = name_of(hook).endswith((_REQUIRING, _COLLECTING))
    return named or type(hook).__module__ in _COMPUTING


def computed(module: nn.Module) -> set[str]:
    """The attributes that computing hooks of a module set."""
    hooks = vars(module).get("_forward_pre_hooks", {}).values()
    found = [getattr(hook, at, None) for hook in hooks if only_computes(hook) for at in _ATTRIBUTE]
    return {name for name in found if isinstance(name, str)}


def name_of(hook: Any) -> str:
    """How a hook is called in a sentence."""
    return str(getattr(hook, "__qualname__", None) or type(hook).__qualname__)
