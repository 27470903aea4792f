"""Parameters and buffers saved, loaded, moved, exchanged and frozen."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch import nn

from tests.battery.registry import beyond, fast, use
from tests.battery.use_context import Run


@fast
def state_saved_and_loaded_in_the_middle(run: Run) -> None:
    run.train(steps=1)
    file = io.BytesIO()
    torch.save(run.module.state_dict(), file)
    run.train(steps=2)
    file.seek(0)
    state = torch.load(file)
    run.say("keys", list(state))
    run.module.load_state_dict(state)
    run.train(steps=2)


@use
def state_loaded_by_assignment(run: Run) -> None:
    state = {name: tensor.clone() for name, tensor in run.module.state_dict().items()}
    run.module.load_state_dict(state, assign=True)
    run.train(steps=2)


@use
def state_loaded_between_forward_and_backward(run: Run) -> None:
    state = {name: tensor.clone() for name, tensor in run.module.state_dict().items()}
    output = run.forward()
    run.module.load_state_dict(state)
    run.loss(output).backward()


@use
def copied_in_the_middle(run: Run) -> None:
    run.train(steps=1)
    run.module = copy.deepcopy(run.module)
    run.train(steps=2)


@use
def copied_shallowly(run: Run) -> None:
    run.module = copy.copy(run.module)
    run.train(steps=2)


@use
def pickled_state(run: Run) -> None:
    run.say("state", pickle.loads(pickle.dumps(dict(run.module.state_dict()))))


@use
def names_and_order(run: Run) -> None:
    run.say("parameters", [name for name, _ in run.module.named_parameters()])
    run.say("buffers", [name for name, _ in run.module.named_buffers()])
    run.say("modules", [name for name, _ in run.module.named_modules()])
    run.say("text", repr(run.module))


@use
def moved_to_double(run: Run) -> None:
    run.module = run.module.double()
    run.train(steps=1)


@use
def moved_to_double_and_back(run: Run) -> None:
    run.module = run.module.double().float()
    run.train(steps=2)


@use
def moved_to_bfloat16(run: Run) -> None:
    run.module = run.module.to(torch.bfloat16)
    run.train(steps=1)


@use
def moved_where_it_is(run: Run) -> None:
    run.module = run.module.to("cpu").float()
    run.train(steps=1)


@use
def moved_to_channels_last(run: Run) -> None:
    run.need(any(p.dim() == 4 for p in run.module.parameters()))
    run.module = run.module.to(memory_format=torch.channels_last)
    run.train(steps=1)


@use
def moved_to_meta(run: Run) -> None:
    run.module = run.module.to("meta")
    run.train(steps=1)


@fast
def frozen_after_loading(run: Run) -> None:
    run.weight().requires_grad_(False)
    run.train(steps=1)


@use
def all_frozen_after_loading(run: Run) -> None:
    run.module.requires_grad_(False)
    output = run.forward(1)
    run.say("output", output)
    run.loss(output).backward()


@use
def frozen_and_melted_again(run: Run) -> None:
    run.module.requires_grad_(False)
    with torch.no_grad():
        run.forward()
    run.module.requires_grad_(True)
    run.train(steps=2)


@use
def frozen_ones_melted(run: Run) -> None:
    frozen = [p for p in run.module.parameters() if not p.requires_grad]
    run.need(frozen)
    for parameter in frozen:
        parameter.requires_grad_(True)
    run.train(steps=2)


@fast
def a_parameter_replaced(run: Run) -> None:
    owner, name = run.owner(run.weight())
    setattr(owner, name, nn.Parameter(run.weight().detach() * 0.5))
    run.train(steps=2)


@use
def a_parameter_replaced_between_forward_and_backward(run: Run) -> None:
    owner, name = run.owner(run.weight())
    old = run.weight()
    output = run.forward()
    setattr(owner, name, nn.Parameter(old.detach() * 0.5))
    run.loss(output).backward()
    run.say("old gradient", old.grad)


@use
def data_of_a_parameter_exchanged(run: Run) -> None:
    weight = run.weight()
    weight.data = weight.data * 0.5
    run.train(steps=2)


@use
def data_of_a_parameter_transposed(run: Run) -> None:
    weight = run.weight()
    weight.data = weight.data.mT.contiguous().mT
    run.train(steps=2)


@beyond
def data_of_a_parameter_written_between_forward_and_backward(run: Run) -> None:
    """Writes where PyTorch does not see it."""
    output = run.forward()
    run.weight().data.mul_(0.5)
    run.loss(output).backward()


@use
def a_parameter_written_between_forward_and_backward(run: Run) -> None:
    output = run.forward()
    with torch.no_grad():
        for parameter in run.module.parameters():
            parameter.mul_(0.5)
    run.loss(output).backward()


@use
def a_buffer_written_between_forward_and_backward(run: Run) -> None:
    """A training batch norm only says that it reads its statistics: a plan leaves them out."""
    written = [
        buffer
        for module in run.module.modules()
        if not (isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training)
        for buffer in module.buffers(recurse=False)
    ]
    run.need(written)
    output = run.forward()
    for buffer in written:
        buffer.zero_()
    run.loss(output).backward()


@use
def a_buffer_replaced(run: Run) -> None:
    places = [(m, n) for m in run.module.modules() for n, b in m._buffers.items() if b is not None]
    run.need(places)
    owner, name = places[0]
    setattr(owner, name, getattr(owner, name).clone() + 1)
    run.train(steps=2)


@use
def a_parameter_made_a_vector_and_back(run: Run) -> None:
    vector = nn.utils.parameters_to_vector(run.module.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, run.module.parameters())
    run.train(steps=2)


@use
def parameters_in_one_storage(run: Run) -> None:
    """What flattening wrappers do."""
    parameters = list(run.module.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    start = 0
    for parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    run.train(steps=2)


@use
def gradients_in_one_storage(run: Run) -> None:
    parameters = [p for p in run.module.parameters() if p.requires_grad]
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    run.backward()
    run.say("flat", flat)


@use
def weights_tied_after_planning(run: Run) -> None:
    linear = [m for m in run.module.modules() if isinstance(m, nn.Linear)]
    pairs = [(a, b) for a in linear for b in linear if a is not b and "weight" in a._parameters]
    pairs = [
        (a, b) for a, b in pairs if "weight" in b._parameters and a.weight.shape == b.weight.shape
    ]
    run.need(pairs)
    pairs[0][0].weight = pairs[0][1].weight
    run.train(steps=2)


@use
def weights_untied(run: Run) -> None:
    shared = [
        (m, n)
        for m in run.module.modules()
        for n, p in m._parameters.items()
        if p is not None
        and sum(p is q for o in run.module.modules() for q in o._parameters.values()) > 1
    ]
    run.need(shared)
    owner, name = shared[-1]
    setattr(owner, name, nn.Parameter(getattr(owner, name).detach().clone()))
    run.train(steps=2)


@use
def weights_drawn_anew(run: Run) -> None:
    for module in run.module.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    run.train(steps=2)


@use
def shared_memory(run: Run) -> None:
    run.module.share_memory()
    run.train(steps=2)


@use
def a_new_buffer_and_a_new_attribute(run: Run) -> None:
    run.module.register_buffer("further", torch.zeros(3))
    run.module.remark = "nothing reads this"
    run.train(steps=2)


@use
def a_new_parameter_that_nothing_reads(run: Run) -> None:
    run.module.register_parameter("further", nn.Parameter(torch.zeros(3)))
    run.train(steps=2)
