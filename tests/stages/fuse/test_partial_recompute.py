"""Parts of groups that run where the group would run again: exact and faster ones are kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.fuse.test_compile_groups import CPU
from tests.stages.generate.plans import generated, keep_all, traced
from tightfit.schemas.graph.fused_groups import GroupBody, is_fused_group, read_group_body
from tightfit.schemas.graph.training_graph import Graph, Op, read_graph, write_graph
from tightfit.stages.audit.artifact_kinds import read_graph_with_groups
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.fuse import compile_groups
from tightfit.stages.fuse import partial_recompute as parted
from tightfit.stages.fuse.fuse_graph import fuse
from tightfit.stages.fuse.partial_recompute import (
    PartialRecompute,
    _candidates_of_group,
    add_partial_recomputes,
    distinct_partial_recomputes,
    find_partial_recomputes,
    is_exact_and_faster,
)
from tightfit.stages.generate.package import zero_time_costs
from tightfit.stages.runtime.kernels.compile import Kernel, zeros_of_form
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.fused_group_operators import (
    evaluate_body,
    group_kernel,
    tensor_forms,
)
from tightfit.stages.torch_utils.graph_check import check_graph_program
from tightfit.util.errors import ArtifactError

WIDTH = 24


class Normed(nn.Module):
    """Matrix products, each of a layer norm of a sum that is read later, too."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        made = x
        for line, norm in zip(self.lines, self.norms, strict=True):
            x = x + made * 2
            made = line(norm(x))
        return made


@pytest.fixture(scope="module")
def normed() -> tuple[Graph, Any]:
    torch.manual_seed(0)
    graph, built = traced((Normed().train(), ((torch.randn(16, WIDTH),), {})))
    return add_partial_recomputes(fuse(graph), lambda body, part: True), built


def origin(graph: Graph) -> Op:
    """The group that makes a sum and its layer norm."""
    return next(op for op in graph.ops if is_fused_group(op.target) and len(op.outputs) == 4)


def sizes(graph: Graph, op: Op) -> list[int]:
    return [graph.storages[graph.values[value].storage] for value in op.outputs]


def drawn(body: GroupBody) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn_like(zeros_of_form(form, CPU)) for form in tensor_forms(body.inputs)]


def read(part: PartialRecompute, given: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor]:
    return [[*given, *made][number] for number in part.reads]


def test_each_large_output_has_its_parts(normed: tuple[Graph, Any]) -> None:
    """The norm is made of the sum and its statistics, or of the statistics and what is summed."""
    graph = normed[0]
    op = origin(graph)
    body, size = read_group_body(op), sizes(graph, op)
    large = [number for number, bytes_ in enumerate(size) if bytes_ == max(size)]
    small = {len(body.inputs) + number for number in range(4) if number not in large}
    found = {output: find_partial_recomputes(body, output, size) for output in large}
    assert sorted(len(parts) for parts in found.values()) == [1, 2]
    for output, parts in found.items():
        others = {len(body.inputs) + number for number in large if number != output}
        if len(parts) == 1:
            assert max(parts[0].reads) < len(body.inputs)
            continue
        assert [set(part.reads) >= small for part in parts] == [True, True]
        assert [others <= set(part.reads) for part in parts] == [True, False]
        targets = [[call.target for call in part.body.calls] for part in parts]
        assert not any("layer_norm" in target for each in targets for target in each)


def test_a_part_makes_what_the_group_makes(normed: tuple[Graph, Any]) -> None:
    graph = normed[0]
    op = origin(graph)
    body = read_group_body(op)
    given = drawn(body)
    made = evaluate_body(body, given)
    for output in range(len(body.outputs)):
        for part in find_partial_recomputes(body, output, sizes(graph, op)):
            [found] = evaluate_body(part.body, read(part, given, made))
            torch.testing.assert_close(found, made[output])


def test_a_body_of_one_output_has_no_parts(normed: tuple[Graph, Any]) -> None:
    for op in normed[0].ops:
        if is_fused_group(op.target) and len(op.outputs) == 1:
            assert not find_partial_recomputes(read_group_body(op), 0, sizes(normed[0], op))


def test_alternatives_stand_behind_the_ops_and_are_checked(
    normed: tuple[Graph, Any], tmp_path: Path
) -> None:
    graph = normed[0]
    assert graph.alternatives
    check_graph_program(graph, "graph")
    write_graph(tmp_path / "graph.arrow", graph)
    assert read_graph(tmp_path / "graph.arrow") == graph
    other = graph.alternatives[0]
    wrong = replace(other, arguments=other.arguments.replace("aten.", "aten.u", 1))
    doctored = replace(graph, alternatives=[wrong])
    with pytest.raises(ArtifactError, match="has a body of another digest"):
        check_graph_program(doctored, "graph")
    write_graph(tmp_path / "doctored.arrow", doctored)
    with pytest.raises(ArtifactError, match="has a body of another digest"):
        read_graph_with_groups(tmp_path / "doctored.arrow")


def test_each_part_of_equal_groups_is_judged_once() -> None:
    graph, _ = traced((Normed(4).train(), ((torch.randn(16, WIDTH),), {})))
    fused, judged = fuse(graph), []

    def judge(body: GroupBody, part: PartialRecompute) -> bool:
        judged.append(repr((body, part)))
        return bool(set(part.reads) - set(range(len(body.inputs))))

    found = add_partial_recomputes(fused, judge)
    groups = [op for op in fused.ops if is_fused_group(op.target) and op.phase == "forward"]
    assert len(judged) == len(set(judged))
    assert len(judged) < sum(len(_candidates_of_group(fused, op, 0)) for op in groups)
    assert [op.id - len(found.ops) for op in found.alternatives] == [
        *range(len(found.alternatives))
    ]
    for op in found.alternatives:
        assert set(op.inputs) & set(found.ops[found.alternative_origins[op.id]].outputs)


def test_what_saves_little_is_not_compiled(normed: tuple[Graph, Any]) -> None:
    graph = normed[0]
    other = next(at for at in graph.values if at.kind == "tangent").storage
    large = [10**9 if at == other else size for at, size in enumerate(graph.storages)]
    found = add_partial_recomputes(replace(graph, storages=large), lambda body, part: True)
    assert found.alternatives == []


def test_no_more_are_told_than_there_are(
    normed: tuple[Graph, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal parts of several groups are compiled once, and judged for each group."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(compile_groups, "compile_in_parallel", lambda *_: None)
    monkeypatch.setattr(compile_groups, "is_exact_and_faster", lambda *_: False)
    monkeypatch.setattr(
        compile_groups,
        "distinct_partial_recomputes",
        lambda graph: distinct_partial_recomputes(graph)[:1],
    )
    plain = replace(normed[0], alternatives=[])
    compile_groups._add_partial_recomputes(
        plain, CPU, lambda done, total, _: told.append((done, total)), 1
    )
    assert len(told) > 1
    assert all(done <= total for done, total in told)


def failing(given: Sequence[Tensor]) -> list[Tensor]:
    raise RuntimeError("this kernel does not run")


@pytest.fixture(scope="module")
def cheap(normed: tuple[Graph, Any]) -> tuple[GroupBody, PartialRecompute]:
    """A group and the part that makes its norm of its sum."""
    op = origin(normed[0])
    body, size = read_group_body(op), sizes(normed[0], op)
    parts = [find_partial_recomputes(body, output, size) for output in range(4)]
    return body, next(each[0] for each in parts if len(each) == 2)


def test_the_kernel_of_a_part_has_the_bits_of_the_groups(
    cheap: tuple[GroupBody, PartialRecompute], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, taken in (([0.9, 1.0], True), ([0.99, 1.0], False)):
        monkeypatch.setattr(parted, "min_seconds", lambda calls, device, own=seconds: own)
        assert is_exact_and_faster(*cheap, CPU) is taken


@pytest.mark.parametrize("fails", [False, True])
def test_other_bits_are_not_taken(
    fails: bool, cheap: tuple[GroupBody, PartialRecompute], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, part = cheap
    less = group_kernel(part.body, CPU)

    def near(given: Sequence[Tensor]) -> list[Tensor]:
        return [made * (1 + 1e-6) for made in less(given)]

    def given(asked: GroupBody, device: torch.device) -> Kernel:
        return group_kernel(body, device) if asked == body else failing if fails else near

    monkeypatch.setattr(parted, "group_kernel", given)
    monkeypatch.setattr(parted, "min_seconds", lambda calls, device: [0.1, 1.0])
    assert not is_exact_and_faster(body, part, CPU)


def test_a_package_that_runs_one_gives_the_same_bits(
    normed: tuple[Graph, Any], cheap: tuple[GroupBody, PartialRecompute], tmp_path: Path
) -> None:
    """Each norm is let go after the forward, and made again of its sum for the backward."""
    graph, built = normed
    wanted = [
        op
        for op in graph.alternatives
        if len(read_group_body(op).calls) == len(cheap[1].body.calls)
        and set(op.inputs) & set(graph.ops[graph.alternative_origins[op.id]].outputs)
    ]
    sequence = keep_all(graph)
    loss = next(place for place, at in enumerate(sequence) if graph.ops[at].phase == "loss")
    again = [*sequence[: loss + 1], *(op.id for op in wanted), *sequence[loss + 1 :]]
    costs = zero_time_costs(graph)
    played = simulate(graph, costs, lower_to_schedule(graph, costs, again, False))
    assert played.repeated == len(wanted) > 0
    x = built.samples[0][0][0]
    found = []
    for name, executions in (("plain", sequence), ("again", again)):
        model = generated(graph, tmp_path / name, executions).load(copy.deepcopy(built.model))
        output = model(x)
        output.square().sum().backward()
        found.append([output, *(parameter.grad for parameter in model.parameters())])
    assert all(map(torch.equal, *found))
    text = (tmp_path / "again" / "step.py").read_text()
    assert ", again" in text and len(text) > len((tmp_path / "plain" / "step.py").read_text())
