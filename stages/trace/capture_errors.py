"""What is said of a model that cannot be captured."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from traceback import walk_tb
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.runtime.guards.tensor_queries import TENSOR_QUERIES
from tightfit.stages.runtime.offload.placeholder_parameter import PLACEHOLDER_CLASS
from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample
from tightfit.stages.torch_utils.operators import draws_random_numbers
from tightfit.stages.trace.code_inspection import find_line, node_source_line
from tightfit.stages.trace.data_dependence import data_dependence_message
from tightfit.stages.trace.guards.guard_source import (
    GuardSource,
    StateSnapshot,
    is_capture_tensor_class,
)
from tightfit.stages.trace.guards.reachable_state import hook_name
from tightfit.stages.trace.guards.tensor_queries import TensorQueries
from tightfit.util.errors import ModelError

_DATA_DEPENDENT_ERRORS = (
    *("data-dependent", "DataDependent", "GuardOnDataDependent", "_local_scalar_dense"),
    *(".numpy() is not supported", "data is not allocated yet"),
)
_DYNAMIC_SHAPE_ERRORS = ("DynamicOutputShape",)
_SHAPE_REMEDY = (
    "let all shapes follow from the inputs' shapes, with a mask for instance, or compute it "
    "outside of the model"
)
_SHAPE_REMEDIES = {
    "_ctc_loss": "leave this loss out of the model, and compute it from what the planned module "
    "gives",
    "nonzero": "indexing by a mask, or where() of a condition alone, gives as many elements as the "
    "mask has ones: use torch.where(mask, x, 0) or a sum weighted by the mask, or index outside of "
    "the model",
    "_pack_padded_sequence": "give recurrent layers padded sequences, and mask what they give",
}
"""What else to do, by what is in the name of an operator whose results have shapes by data."""
_HIGHER_ORDER_MODULE = re.compile(
    r"torch\._higher_order_ops\.(cond|scan|while_loop|associative_scan|map)"
)
"""Modules of PyTorch's operators that run functions of the user's."""
_UNTRACKED_WRITE_ERRORS = ("entirely functional graph", "n=copy_")
_RECOMPILE_ERRORS = ("fail_on_recompile",)
_NO_FAKE_KERNEL_ERROR = re.compile(
    r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>"
    r"|([\w:.]+): attempted to run this operator with Meta tensors"
    r"|UnsupportedOperatorException ([\w:.]+)"
)
_TENSOR_CLASS_ERROR = re.compile(r"<class '[\w.]*\.(FunctionalTensor|FakeTensor)'>")
_GROUPED_MM_ERROR = "Expected inputs of BF16 type"
_UNHASHABLE_SIZE = "unhashable type: non-nested SymInt"
_GENERATOR_ERROR = "argument of type: <class 'torch._C.Generator'>"  # before PyTorch 2.13
_OWN_GENERATOR = (
    "draws from a torch.Generator of its own, which a plan cannot draw from again: let it draw "
    "from PyTorch's default generator"
)
NO_DERIVATIVE_WARNING = r"(?!aten::)([\w:.]+): an autograd kernel was not registered"
"""How PyTorch's warning begins of an operator without a derivative that autograd meets."""
_NO_DERIVATIVE_ERROR = re.compile(r"backward through ([\w:.]+) but no autograd formula")
_WRAPPERS = {
    "OptimizedModule": "compiled: plan the module inside of it (its _orig_mod) and compile what "
    "plan gives",
    **dict.fromkeys(
        ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"),
        "a wrapper: plan the module inside of it (its module) and wrap what plan gives",
    ),
    "RecursiveScriptModule": "a TorchScript module, which has no Python forward: plan the module "
    "that it was made of",
}


def check_model(label: str, model: nn.Module) -> None:
    """Raises ModelError for a model that is around the one that is to be planned."""
    if hasattr(type(model), "_tightfit_original"):
        raise ModelError(f"{label}: the model is a planned module already: plan the original one")
    for path, module in model.named_modules():
        said = _WRAPPERS.get(type(module).__name__)
        if said is not None and type(module).__module__.startswith("torch."):
            raise ModelError(f"{label}: {path or 'the model'} is {said}")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            check_sparse_gradient(label, path, module)
    check_forward(label, model)
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"{label}: {path} is of a lazy module and not made yet: run the model once before "
                "planning"
            )
        if type(tensor).__name__ == PLACEHOLDER_CLASS:
            raise ModelError(
                f"{label}: {path} is in an offload target, where the optimizer of a plan keeps it: "
                "close() that optimizer before the model is planned again"
            )


def check_sparse_gradient(label: str, path: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    """Raises ModelError for an embedding with sparse gradients."""
    if module.sparse and module.weight.requires_grad:
        raise ModelError(
            f"{label}: {path or 'the model'} makes sparse gradients (sparse=True), which a plan "
            "does not hold: set its sparse to False, and train it with an optimizer of dense "
            "gradients"
        )


def check_forward(label: str, model: nn.Module) -> None:
    """Raises ModelError for a model whose forward is another one than that of its class."""
    forward = vars(model).get("forward")
    if forward is None:
        return
    function = getattr(forward, "__func__", forward)
    inner = getattr(function, "__wrapped__", function)
    names = [str(getattr(each, "__module__", "")) for each in (function, inner)]
    if any(name.startswith("accelerate") for name in names) or hasattr(model, "_original_forward"):
        raise ModelError(
            f"{label}: accelerate's prepare() has replaced the model's forward: plan the model "
            "before prepare(), within accelerator.autocast(), and give prepare() what plan gives"
        )
    raise ModelError(
        f"{label}: the model's forward was replaced on the instance, by "
        f"{getattr(function, '__qualname__', type(forward).__name__)}, and a planned module takes "
        "the place of its class's forward: plan the model before that, or put the new forward into "
        "a class of its own"
    )


def capture_failure_reason(model: nn.Module, error: BaseException) -> str:
    """Why the capture of a model raised an error."""
    text = str(error).strip()
    said = f"{type(error).__name__} {text}"
    if is_data_dependent(error):
        return data_dependence_message(model, error)
    if name := _higher_order_operator(error):
        return (
            f"torch's {name}() runs a function of the model by what the data of a tensor says, or "
            "in one operator, which a plan cannot: write it in Python (choose between tensors by "
            "torch.where, loop by for), or call it outside of the model"
        )
    if any(word in said for word in _RECOMPILE_ERRORS):
        return (
            "it calls a function that torch.compile has compiled, which planning does not enter: "
            "leave torch.compile out of the model, and compile the planned module"
        )
    if _UNHASHABLE_SIZE in said:
        return (
            "it keeps something by a dynamic size, as in a dictionary or a cache of lengths, of "
            "which a plan has none: make it anew in each forward, or leave the dimension out"
        )
    if _GENERATOR_ERROR in said:
        return f"it {_OWN_GENERATOR}"
    if "shape_env" in said:
        return (
            "it makes a nested tensor (torch.nested), whose shape depends on the data of a tensor, "
            "which a plan does not hold: compute with padded tensors and a mask"
        )
    if match := _NO_FAKE_KERNEL_ERROR.search(said):
        return (
            f"the operator {next(filter(None, match.groups()))} has no fake kernel, which planning "
            "needs: register one (torch.library.register_fake)"
        )
    if match := _NO_DERIVATIVE_ERROR.search(said):
        return _no_derivative_message(match[1])
    if isinstance(error, AssertionError) and any(word in said for word in _UNTRACKED_WRITE_ERRORS):
        return (
            "the forward writes in place into a tensor that it has from elsewhere and that is no "
            "buffer, as a plain attribute or a global: register it as a buffer (register_buffer)"
        )
    if _TENSOR_CLASS_ERROR.search(said):
        return (
            "a function that it calls chooses by the exact class of a tensor, which is another one "
            "while it is captured: name the choice in the call (as einx's backend), or ask "
            "isinstance(x, torch.Tensor)"
        )
    if _GROUPED_MM_ERROR in said:
        return (
            "PyTorch captures products of groups (grouped_mm) in bfloat16 alone: cast the model to "
            "it, or run its experts otherwise, in transformers by "
            'model.set_experts_implementation("batched_mm")'
        )
    first = text.splitlines()[0] if text else ""
    if has_data_dependent_shape(error):
        named = (said for name, said in _SHAPE_REMEDIES.items() if name in first)
        return (
            f"the shape of what {first or 'an operator'} gives depends on the data of a tensor: "
            f"{next(named, _SHAPE_REMEDY)}"
        )
    raised = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return "; ".join([raised, *getattr(error, "__notes__", ())])


def _higher_order_operator(error: BaseException) -> str:
    """The name of PyTorch's operator that an error left and that runs a function, else ""."""
    names = (
        match[1]
        for frame, _ in walk_tb(error.__traceback__)
        if (match := _HIGHER_ORDER_MODULE.fullmatch(str(frame.f_globals.get("__name__"))))
    )
    return next(names, "")


def has_data_dependent_shape(error: BaseException) -> bool:
    """Whether an error of the capture says that a shape depends on the data of a tensor."""
    said = f"{type(error).__name__} {error}"
    return any(word in said for word in _DYNAMIC_SHAPE_ERRORS)


def is_data_dependent(error: BaseException) -> bool:
    """Whether an error of the capture says that Python asked for the data of a tensor."""
    said = f"{type(error).__name__} {error}"
    return any(word in said for word in _DATA_DEPENDENT_ERRORS)


def check_derivatives(label: str, warned: Iterable[str]) -> None:
    """Raises ModelError where PyTorch warned of an operator without a derivative."""
    for text in warned:
        if match := re.match(NO_DERIVATIVE_WARNING, text):
            raise ModelError(f"{label}: {_no_derivative_message(match[1])}")


def _no_derivative_message(operator: str) -> str:
    return (
        f"the operator {operator} has no derivative: register one "
        "(torch.library.register_autograd), or call it under torch.no_grad"
    )


def check_placeholder(label: str, graph: fx.GraphModule, desc: Any) -> None:
    """Raises ModelError for an input of the capture that nothing can be given for."""
    effect = next((node for node in graph.graph.nodes if "with_effects" in str(node.target)), None)
    if type(desc).__name__ == "ForwardTokenAOTInput" and effect is not None:
        where = node_source_line(effect.meta)
        raise ModelError(
            f"{label}: {effect.args[1]}{f' at {where}' if where else ''} looks at the data of a "
            "tensor to raise an error, which a plan would not do: use a function that does not "
            "check, as torch.linalg.inv_ex, solve_ex and cholesky_ex"
        )
    written = getattr(getattr(desc, "output", None), "mutated_input", None)
    target = getattr(written, "target", None)
    if target is not None:
        raise ModelError(
            f"{label}: the model writes to {target!r} during the forward (as "
            "Embedding(max_norm=...) does) and differentiates through it: do so between the steps"
        )
    base = getattr(desc, "base_of", None)
    if base is not None:
        raise ModelError(
            f"{label}: the model writes to {getattr(base, 'target', 'an input')!r}, and another "
            "buffer or input is a view of its memory, which a plan does not follow: keep a copy"
        )
    raise ModelError(f"{label}: the capture has an unknown input {desc!r}")


def parameter_write_error(label: str, name: str, place: str = "") -> ModelError:
    """What is raised where the forward writes to a parameter that is trained."""
    return ModelError(
        f"{label}: the forward writes{line_suffix(place)} to its parameter {name!r}, which is "
        "trained: write it between the steps (max_norm of an embedding writes in each), or freeze "
        "it (requires_grad_(False)) if it is an average of others that is updated under "
        "torch.no_grad()"
    )


def check_backward_randomness(
    label: str, graph: fx.GraphModule, outputs: Iterable[fx.Node], tangents: Iterable[fx.Node]
) -> None:
    """Raises ModelError for random numbers that Python in the backward draws from no gradient: a
    plan would draw them in the forward, and other draws would get other numbers."""
    arriving = set(tangents)
    forward = set(outputs)
    for node in graph.graph.nodes:
        if arriving.intersection(node.all_input_nodes):
            arriving.add(node)
        drawn = isinstance(node.target, torch._ops.OpOverload) and draws_random_numbers(
            node.target, node.args
        )
        if drawn and not forward and node not in arriving:
            raise ModelError(
                f"{label}: the backward draws random numbers by {node.target._opname}() that hang "
                "on no gradient, which a plan would draw in the forward: let them hang on one, as "
                "by torch.rand_like(gradient), or draw them in the forward"
            )
        forward.discard(node)


def check_tensor_queries(built: BuiltModel, asked: TensorQueries) -> None:
    """Raises ModelError where the forward asks something of tensors of which the capture has
    another answer than the sample and the model."""
    given = [leaf for one in built.samples for leaf in flatten(one)[0] if _is_real(leaf)]
    own = [leaf for leaf in (*built.model.parameters(), *built.model.buffers()) if _is_real(leaf)]
    for (fact, of_input), place in asked.facts.items():
        holds, said = TENSOR_QUERIES[fact]
        what = "an input" if of_input else "a parameter or a buffer"
        for tensor in given if of_input else own:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                if holds(tensor):
                    continue
            raise ModelError(
                f"{built.label}: {what} of shape {tuple(tensor.shape)} {said}, and the forward "
                f"asks for that{f' at {place}' if place else ''}: plan with a tensor that was just "
                "made, as by detach().clone()"
            )
    patterns = {_aliasing_pattern(one) for one in built.samples}
    if asked.identity and len(patterns) > 1:
        raise ModelError(
            f"{built.label}: one sample has a tensor in several places and another one has "
            f"not, and the forward asks at {asked.identity} which tensors are one object: plan "
            "each by itself"
        )
    if asked.identity and {id(leaf) for leaf in given} & {id(leaf) for leaf in own}:
        raise ModelError(
            f"{built.label}: an input is a parameter or a buffer of the model, and the forward "
            f"asks at {asked.identity} which tensors are one object: give it a clone"
        )


def _aliasing_pattern(sample: Sample) -> tuple[int, ...]:
    """Which leaves of a sample are one tensor."""
    first: dict[int, int] = {}
    leaves = flatten(sample)[0]
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return tuple(first.setdefault(id(leaf), number) for number, leaf in enumerate(tensors))


def _is_real(leaf: Any) -> bool:
    return type(leaf) in (torch.Tensor, nn.Parameter, nn.Buffer)


def check_shared_memory(built: BuiltModel, constants: Iterable[torch.Tensor]) -> None:
    """Raises ModelError for a constant that lies in the memory of what changes from step to step: a
    parameter, a buffer or an input, as `weight.data` and `weight.detach()` do."""
    owners = {
        _storage_key(tensor): name
        for name, tensor in (
            *(
                (f"an input ({leaf.dtype})", leaf)
                for leaf in flatten(built.samples[0])[0]
                if isinstance(leaf, torch.Tensor)
            ),
            *((f"the buffer {path!r}", tensor) for path, tensor in built.model.named_buffers()),
            *(
                (f"the parameter {path!r}", tensor)
                for path, tensor in built.model.named_parameters()
            ),
        )
    }
    for constant in constants:
        owner = owners.get(_storage_key(constant))
        if owner is not None and constant.numel():
            raise ModelError(
                f"{built.label}: the forward uses a tensor of shape {tuple(constant.shape)} that "
                f"shares its memory with {owner}, as .data or detach() kept in an attribute does; "
                "a plan would keep what it held: let the forward read it from there each time"
            )


def _storage_key(tensor: torch.Tensor) -> Any:
    """What tells the storages of tensors apart, whatever modes are on."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return tensor.untyped_storage()._cdata


def tensor_constant(label: str, value: Any) -> torch.Tensor:
    """A constant of the capture; raises ModelError where it is no tensor."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, torch.Generator) or "Generator" in type(value).__name__:
        raise ModelError(f"{label}: the model {_OWN_GENERATOR}")
    raise ModelError(
        f"{label}: the model uses a {type(value).__name__} inside an operator, which a plan "
        "cannot keep: let it use tensors"
    )


def fake_constants_message(built: BuiltModel) -> str:
    """Says which plain tensor attributes of a model have no data."""
    names = [
        f"{path}.{name}" if path else name
        for path, module in built.model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, FakeTensor)
    ]
    named = f" ({', '.join(names)})" if names else ""
    return f"a tensor of the model{named} has no data under fake tensors: make it a buffer"


def submodule_hook_message(path: str, field: str, hook: Any) -> str:
    """A hook of a submodule, which a plan would not run."""
    kind = field.strip("_").replace("_", " ").removesuffix("s")
    return (
        f"{path} has the {kind} {hook_name(hook)}, which a plan would not run; remove it before "
        f"planning, do its work in the forward, or put it on the whole model"
    )


def hook_change_message(shown: str, hook: Any) -> str:
    """A hook that the forward puts on or removes."""
    return (
        f"the forward puts the hook {hook_name(hook)} on {shown or 'the model'} or removes it, "
        f"which a plan would not do; do its work in the forward"
    )


def attribute_change_message(
    shown: str, name: Any, fields: bool, codes: Iterable[types.CodeType]
) -> str:
    """An attribute or field that the forward sets."""
    whole = f"{shown}.{name}" if shown else name
    if not fields and shown:
        line = find_line(codes, "read", shown.rpartition(".")[2])
        plain = isinstance(name, str) and name.isidentifier()
        name = torch.Tensor if is_capture_tensor_class(name) else name
        what = f"changes {whole}" if plain else f"changes {name!r} in {shown}"
    else:
        line = find_line(codes, "attribute", name) or find_line(codes, "global", name)
        what = f"sets {whole}"
    return (
        f"the forward {what}{line_suffix(line)}, which a plan would not do; return it, keep it in "
        f"a buffer, or where it is only made once run the model once before planning"
    )


def generator_draw_message(kept: StateSnapshot, draws: dict[int, str]) -> str:
    """A generator of the model that the forward draws from."""
    return (
        f"the forward draws from {kept.shown}{line_suffix(draws.get(id(kept.thing), ''))}, and a "
        f"plan would keep what was drawn when it was made; draw with torch's default generator"
    )


def source_part_name(holder: GuardSource, name: str) -> str:
    """A part of a holder by name."""
    return f"{holder.shown}.{name}" if holder.shown else name


def line_suffix(line: str) -> str:
    """A source line behind a sentence, where it is known."""
    return f" at {line}" if line else ""
