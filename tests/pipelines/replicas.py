"""Two replicas of a pipeline of two ranks, whose gradients are averaged."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import distributed

from tightfit.stages.torch_utils.model_factory import build_from_factory
from tightfit.stages.validate.load import load_package
from tightfit.stages.validate.training_step import randomize_sample

MICROBATCHES = 4


def work(rank: int, factory: str, module: str, meet: str) -> None:
    """One of the four processes: compares the average with that of two processes of a model."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=4)
    pipes = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    across = [distributed.new_group([0, 2]), distributed.new_group([1, 3])]
    replica, place = divmod(rank, 2)
    built = _built(factory)
    pipeline: Any = load_package(module).load_pipeline(built.model, group=pipes[replica])
    batches = [
        [randomize_sample(built.samples[0], 100 * one + number) for number in range(MICROBATCHES)]
        for one in range(2)
    ]
    pipeline.step(batches[replica], built.loss)
    for parameter in pipeline.parameters():
        distributed.all_reduce(parameter.grad, group=across[place])
        parameter.grad.div_(2)
    sums: list[dict[str, torch.Tensor]] = []
    for calls in batches:
        other = _built(factory)
        assert other.loss is not None
        for args, kwargs in calls:
            other.loss(other.model(*args, **kwargs)).backward()
        sums.append(
            {name: p.grad for name, p in other.model.named_parameters() if p.grad is not None}
        )
    for name, parameter in pipeline.named_parameters():
        assert torch.equal(parameter.grad, (sums[0][name] + sums[1][name]) / 2), name
    distributed.barrier()
    distributed.destroy_process_group()


def _built(factory: str) -> Any:
    importlib.import_module(factory.partition(":")[0])
    torch.manual_seed(0)
    return build_from_factory(factory, {"dropout": 0.0})
