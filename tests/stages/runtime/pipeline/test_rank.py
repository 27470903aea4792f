"""What the ranks of a pipeline compute, in turn in one process, beside the model itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import built_of
from tests.stages.runtime.pipeline import single_process
from tests.stages.runtime.pipeline.single_process import (
    FACTS,
    Hard,
    Mail,
    blocks_by_hand,
    calls_of,
    hard,
    loss_of,
    package_of,
    run_in_turn,
    split_by_hand,
)
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.pipeline.split import SplitPipeline
from tightfit.stages.generate.pipeline import build_pipeline_package
from tightfit.stages.runtime.pipeline import step
from tightfit.stages.runtime.pipeline.rank import MicrobatchLoss
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError, ScheduleError

ALLOCATIONS = {
    "one": ([0], [7]),
    "in a row": ([0, 1, 2], [2, 4, 7]),
    "back and forth": ([0, 1, 0, 2, 1], [1, 3, 4, 5, 7]),
    "the loss alone": ([0, 1, 0, 1], [2, 4, 6, 7]),
}
"""Devices of stages, and the last position of each; the seventh is the loss."""


def reference(model: Hard, calls: list[Any]) -> tuple[Hard, list[torch.Tensor], list[Any]]:
    own, losses, outputs = copy.deepcopy(model), [], []
    for args, kwargs in calls:
        outputs.append(own(*args, **kwargs))
        loss = loss_of(outputs[-1])
        loss.backward()
        losses.append(loss.detach())
    return own, losses, outputs


def check(package: Any, calls: list[Any], patching: pytest.MonkeyPatch) -> None:
    model, _ = hard()
    torch.manual_seed(5)
    given: list[Any] = []
    losses, models = run_in_turn(package, model, calls, loss_of, patching, given)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    own, expected, outputs = reference(model, calls)
    assert torch.equal(after, torch.get_rng_state())
    assert all(map(torch.equal, losses, expected)) and len(losses) == len(expected)
    for mine, other in zip(given, outputs, strict=True):
        assert mine["label"] == "text"
        assert all(torch.equal(mine[name], other[name]) for name in ("loss", "logits", "hidden"))
    seen: set[str] = set()
    wanted = dict(own.named_parameters())
    kept = dict(own.named_buffers())
    for rank, each in enumerate(models):
        needed = set(package.runtime.pipeline.rank.json.loads(_facts(package))["needed"][rank])
        tensors = package.runtime.pipeline.rank.json.loads(_facts(package))["tensors"]
        paths = {
            tensor.path
            for value, tensor in zip(tensors, package.INTERFACE.tensors, strict=True)
            if value in needed
        }
        for name, parameter in each.named_parameters():
            if name in paths:
                seen.add(name)
                assert parameter.grad is not None, (rank, name)
                other = wanted[name].grad
                assert other is not None and torch.equal(parameter.grad, other), (rank, name)
            else:
                assert parameter.grad is None
        for name, buffer in each.named_buffers():
            if name in paths:
                assert torch.equal(buffer, kept[name]), (rank, name)
    assert seen == set(wanted)


def _facts(package: Any) -> bytes:
    return (Path(package.__file__).parent / "pipeline.json").read_bytes()


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_ranks_compute_what_one_process_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties, skips, dropout, batch norm and several outputs, whichever rank has what."""
    _, graph = hard()
    devices, cuts = ALLOCATIONS[name]
    found = split_by_hand(graph, blocks_by_hand(graph, 6), devices, cuts, 3)
    package = package_of(graph, found, tmp_path / "module")
    check(package, calls_of(3), monkeypatch)


class TwoOutputs(nn.Module):
    """A small model with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.first(x))
        return self.second(y), y


def split_two_outputs(loss: MicrobatchLoss) -> tuple[TwoOutputs, Graph, SplitPipeline]:
    """The model, its graph with a loss, and two stages of it."""
    torch.manual_seed(0)
    model = TwoOutputs().train()
    graph = trace(built_of((model, ((torch.randn(4, 8),), {}), loss)), "two outputs")
    return model, graph, split_by_hand(graph, blocks_by_hand(graph, 3), [0, 1], [1, 4], 2)


def test_the_gradient_of_a_sum_arrives_as_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With strides 0, though autograd would copy it for a leaf."""

    def loss(output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return output[0].sum() + output[1].mean()

    model, graph, found = split_two_outputs(loss)
    strides = [graph.values[output.tangent].strides for output in graph.outputs]
    assert strides == [[0, 0], [8, 1]]
    package = package_of(graph, found, tmp_path / "module")
    calls: list[Any] = [((torch.randn(4, 8),), {}) for _ in range(2)]
    losses, models = run_in_turn(package, model, calls, loss, monkeypatch)
    expected = [loss(model(*args)) for args, _ in calls]
    for each in expected:
        each.backward()
    assert all(map(torch.equal, losses, expected))
    for name, parameter in model.named_parameters():
        gradients = [dict(each.named_parameters())[name].grad for each in models]
        known = [each for each in gradients if each is not None]
        assert known and parameter.grad is not None, name
        assert all(torch.equal(each, parameter.grad) for each in known), name


def test_gradients_of_outputs_in_one_memory_are_refused() -> None:
    with pytest.raises(ModelError, match=r"let each have its own, as by mean\(\) in place of sum"):
        split_two_outputs(lambda output: output[0].sum() + output[1].sum())


def test_stages_that_compute_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, graph = hard()
    blocks = blocks_by_hand(graph, 6)
    for number, block in enumerate(blocks.blocks):
        object.__setattr__(block, "digest", str(number))
        written = [op for op in block.forward if not graph.ops[op].repeatable]
        object.__setattr__(block, "once", written)
    again = [("F_ck", 1), ("F_none", 2), ("F_all", 3), ("B", 3), ("F_all", 1), ("F_all", 2)]
    sequence = [
        ChainOperation(kind, block, branch=1)  # type: ignore[arg-type]
        for kind, block in [*again, ("B", 2), ("B", 1)]
    ]
    rest = [("F_all", 4), ("F_all", 5), ("F_all", 6), ("F_all", 7), ("B", 7), ("B", 6)]
    sequence += [
        ChainOperation(kind, block, branch=2)  # type: ignore[arg-type]
        for kind, block in [*rest, ("B", 5), ("B", 4)]
    ]
    found = split_by_hand(graph, blocks, [0, 1], [3, 7], 2, sequence)
    whole = split_by_hand(graph, blocks, [0, 1], [3, 7], 2)
    assert len(found.schedules[0]) > len(whole.schedules[0])
    assert found.pipeline.peaks[0] < whole.pipeline.peaks[0]
    check(package_of(graph, found, tmp_path / "module"), calls_of(2), monkeypatch)


def test_the_schedule_is_in_the_words_of_the_runtime(tmp_path: Path) -> None:
    _, graph = hard()
    found = split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1, 0], [2, 4, 7], 2)
    stages = list(zip(found.graphs, found.schedules, strict=True))
    files = build_pipeline_package(graph, found.pipeline, stages, FACTS)
    rows = files["schedule.csv"].decode().splitlines()
    assert sorted(rows[0].split(",")) == ["0B0", "0B1", "0F0", "0F1", "2B0", "2B1", "2F0", "2F1"]
    assert rows[1].split(",")[0] == "1F0" and len(rows) == 2


def test_a_pipeline_wants_as_many_calls_a_loss_and_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = hard()
    found = split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)
    package = package_of(graph, found, tmp_path / "module")
    with pytest.raises(RuntimeError, match="needs a group of processes"):
        package.load_pipeline(model, 0)
    monkeypatch.setattr(
        package.runtime.pipeline.rank, "PeerMessages", lambda group, facts: Mail(0, {})
    )
    pipeline = package.load_pipeline(model, 0)
    with pytest.raises(RuntimeError, match="planned for 2 microbatches, and 3 are given"):
        pipeline.step(calls_of(3), loss_of)
    with pytest.raises(RuntimeError, match="planned with a loss"):
        pipeline.step(calls_of(2))
    with pytest.raises(RuntimeError, match=r"a pair of the arguments .* given here is a Tensor"):
        pipeline.step([torch.zeros(2, 4), torch.zeros(2, 4)], loss_of)
    with pytest.raises(package.PlanMismatch, match="tokens has shape"):
        pipeline.begin([((torch.zeros(1, 4).long(),) * 2, {})] * 2, loss_of)
    model.first.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    try:
        with pytest.raises(RuntimeError, match=r"first\.weight has a hook"):
            pipeline.begin(calls_of(2), loss_of)
    finally:
        model.first.weight._post_accumulate_grad_hooks.clear()


def test_what_ranks_do_not_have_in_common_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = hard()
    found = split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)
    package = package_of(graph, found, tmp_path / "module")

    def drawing(output: dict[str, Any]) -> torch.Tensor:
        return loss_of(output) * (1 + 0 * torch.rand(()))

    with pytest.raises(RuntimeError, match="the loss draws random numbers, which come to the rank"):
        run_in_turn(package, model, calls_of(2), drawing, monkeypatch)
    with monkeypatch.context() as patching:
        patching.setattr(
            package.runtime.pipeline.rank, "PeerMessages", lambda group, facts: Mail(0, {})
        )
        step = package.load_pipeline(model, 0).begin(calls_of(2), loss_of)
        compared: dict[str, str] = {}
        patching.setattr(step.messages, "meet", compared.update, raising=False)
        step.pipeline._meet(step.tensors)
    assert {"tokens", "labels", "embed.weight", "package of a plan"} <= set(compared)
    with pytest.raises(RuntimeError, match=r"the loss reads the parameter third\.weight of the"):
        step._check_reads(2 * model.third.weight.square().sum())
    with pytest.raises(RuntimeError, match="receives no gradient, unlike when the pipeline was"):
        run_in_turn(package, model, calls_of(2), lambda output: output["loss"], monkeypatch)

    def gathered(rows: list[Any], mine: Any, group: Any) -> None:
        rows[:] = [mine, {**mine, "embed.weight": "x"}]

    messages = package.runtime.pipeline.p2p.PeerMessages(
        None, {"microbatches": 2, "devices": [0, 0]}
    )
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    messages.meet({"tokens": "y"})
    with pytest.raises(RuntimeError, match=r"rank 1 of the pipeline has another embed\.weight"):
        messages.meet({"embed.weight": "y"})
    with (
        pytest.raises(RuntimeError, match="has lost rank 1, which has ended"),
        messages.peer_errors(1),
    ):
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError, match="has lost another rank"), messages.peer_errors():
        raise RuntimeError("Connection closed by peer")


def test_a_parameter_that_is_an_output_with_a_gradient_is_refused() -> None:
    class Giving(Hard):
        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            return {**super().forward(tokens, labels), "hidden": self.first.weight}

    graph = trace(built_of((Giving().train(), calls_of(1)[0], loss_of)), "giving")
    with pytest.raises(
        ModelError, match=r"returns first\.weight itself, which receives a gradient"
    ):
        split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)


def test_other_ranks_parameters_give_their_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = hard()
    found = split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)
    package = package_of(graph, found, tmp_path / "module")
    monkeypatch.setattr(
        package.runtime.pipeline.rank, "PeerMessages", lambda group, facts: Mail(0, {})
    )
    own = copy.deepcopy(model)
    pipeline = package.load_pipeline(own, 0, light=True)
    names = {name for name, _ in pipeline.named_parameters()}
    light = {name for name, parameter in own.named_parameters() if parameter.is_meta}
    assert light and names and not light & names
    assert own.head.weight is own.embed.weight
    pipeline.begin(calls_of(2), loss_of)


def test_a_rank_without_room_is_refused() -> None:
    _, graph = hard()
    blocks = blocks_by_hand(graph, 6)
    with pytest.MonkeyPatch.context() as patching:
        small = single_process.plan_by_hand([0, 1], [3, 7])
        for device in small[0].devices:
            object.__setattr__(device, "memory", 1000)
        patching.setattr(single_process, "plan_by_hand", lambda devices, cuts: small)
        with pytest.raises(ScheduleError, match=r"rank 0 \(cpu:0\) takes \d+ bytes of 1000"):
            split_by_hand(graph, blocks, [0, 1], [3, 7], 2)


def test_numbers_that_would_be_drawn_next_are_told_without_memory() -> None:
    state = torch.get_rng_state()
    usage, numbers = measure_call_memory("cpu", step._peek_random_numbers)
    assert usage.peak == 0 and torch.equal(torch.get_rng_state(), state)
    assert step._peek_random_numbers() == numbers
    torch.rand(())
    assert step._peek_random_numbers() != numbers
