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

from tests.stages.fuse.test_compiling import CPU
from tests.stages.generate.plans import generated, keep_all, traced
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import Graph, Op, read_graph, write_graph
from tightfit.schemas.groups import Body, body_of, is_group
from tightfit.stages.audit.folder import read_whole_graph
from tightfit.stages.combine.schedule.opening import open_schedule
from tightfit.stages.device.check import check_program
from tightfit.stages.device.evaluate import evaluate
from tightfit.stages.device.groups import forms_of, kernel
from tightfit.stages.device.kernels import Kernel, zeros_of
from tightfit.stages.fuse import alternatives as parted
from tightfit.stages.fuse import compiling
from tightfit.stages.fuse.alternatives import (
    _parts,
    distinct_parts,
    exact_and_faster,
    with_alternatives,
)
from tightfit.stages.fuse.fusing import fuse
from tightfit.stages.fuse.parts import Part, parts_of
from tightfit.stages.generate.package import timeless
from tightfit.stages.replay.referee import replay

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
    return with_alternatives(fuse(graph), lambda body, part: True), built


def origin(graph: Graph) -> Op:
    """The group that makes a sum and its layer norm."""
    return next(op for op in graph.ops if is_group(op.target) and len(op.outputs) == 4)


def sizes(graph: Graph, op: Op) -> list[int]:
    return [graph.storages[graph.values[value].storage] for value in op.outputs]


def drawn(body: Body) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn_like(zeros_of(form, CPU)) for form in forms_of(body.inputs)]


def read(part: Part, given: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor]:
    return [[*given, *made][number] for number in part.reads]


def test_each_large_output_has_its_parts(normed: tuple[Graph, Any]) -> None:
    """The norm is made of the sum and its statistics, or of the statistics and what is summed."""
    graph = normed[0]
    op = origin(graph)
    body, size = body_of(op), sizes(graph, op)
    large = [number for number, bytes_ in enumerate(size) if bytes_ == max(size)]
    small = {len(body.inputs) + number for number in range(4) if number not in large}
    found = {output: parts_of(body, output, size) for output in large}
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
    body = body_of(op)
    given = drawn(body)
    made = evaluate(body, given)
    for output in range(len(body.outputs)):
        for part in parts_of(body, output, sizes(graph, op)):
            [found] = evaluate(part.body, read(part, given, made))
            torch.testing.assert_close(found, made[output])


def test_a_body_of_one_output_has_no_parts(normed: tuple[Graph, Any]) -> None:
    for op in normed[0].ops:
        if is_group(op.target) and len(op.outputs) == 1:
            assert not parts_of(body_of(op), 0, sizes(normed[0], op))


def test_alternatives_stand_behind_the_ops_and_are_checked(
    normed: tuple[Graph, Any], tmp_path: Path
) -> None:
    graph = normed[0]
    assert graph.alternatives
    check_program(graph, "graph")
    write_graph(tmp_path / "graph.arrow", graph)
    assert read_graph(tmp_path / "graph.arrow") == graph
    other = graph.alternatives[0]
    wrong = replace(other, arguments=other.arguments.replace("aten.", "aten.u", 1))
    doctored = replace(graph, alternatives=[wrong])
    with pytest.raises(ArtifactError, match="has a body of another digest"):
        check_program(doctored, "graph")
    write_graph(tmp_path / "doctored.arrow", doctored)
    with pytest.raises(ArtifactError, match="has a body of another digest"):
        read_whole_graph(tmp_path / "doctored.arrow")


def test_each_part_of_equal_groups_is_judged_once() -> None:
    graph, _ = traced((Normed(4).train(), ((torch.randn(16, WIDTH),), {})))
    fused, judged = fuse(graph), []

    def judge(body: Body, part: Part) -> bool:
        judged.append(repr((body, part)))
        return bool(set(part.reads) - set(range(len(body.inputs))))

    found = with_alternatives(fused, judge)
    groups = [op for op in fused.ops if is_group(op.target) and op.phase == "forward"]
    assert len(judged) == len(set(judged))
    assert len(judged) < sum(len(_parts(fused, op, 0)) for op in groups)
    assert [op.id - len(found.ops) for op in found.alternatives] == [
        *range(len(found.alternatives))
    ]
    for op in found.alternatives:
        assert set(op.inputs) & set(found.ops[found.origins[op.id]].outputs)


def test_what_saves_little_is_not_compiled(normed: tuple[Graph, Any]) -> None:
    graph = normed[0]
    other = next(at for at in graph.values if at.kind == "tangent").storage
    large = [10**9 if at == other else size for at, size in enumerate(graph.storages)]
    found = with_alternatives(replace(graph, storages=large), lambda body, part: True)
    assert found.alternatives == []


def test_no_more_are_told_than_there_are(
    normed: tuple[Graph, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal parts of several groups are compiled once, and judged for each group."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(compiling, "compile_together", lambda *_: None)
    monkeypatch.setattr(compiling, "exact_and_faster", lambda *_: False)
    monkeypatch.setattr(compiling, "distinct_parts", lambda graph: distinct_parts(graph)[:1])
    plain = replace(normed[0], alternatives=[])
    compiling._with_alternatives(plain, CPU, lambda *counts: told.append(counts), 1)
    assert len(told) > 1
    assert all(done <= total for done, total in told)


def failing(given: Sequence[Tensor]) -> list[Tensor]:
    raise RuntimeError("this kernel does not run")


@pytest.fixture(scope="module")
def cheap(normed: tuple[Graph, Any]) -> tuple[Body, Part]:
    """A group and the part that makes its norm of its sum."""
    op = origin(normed[0])
    body, size = body_of(op), sizes(normed[0], op)
    parts = [parts_of(body, output, size) for output in range(4)]
    return body, next(each[0] for each in parts if len(each) == 2)


def test_the_kernel_of_a_part_has_the_bits_of_the_groups(
    cheap: tuple[Body, Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, taken in (([0.9, 1.0], True), ([0.99, 1.0], False)):
        monkeypatch.setattr(parted, "least_seconds", lambda calls, device, own=seconds: own)
        assert exact_and_faster(*cheap, CPU) is taken


@pytest.mark.parametrize("fails", [False, True])
def test_other_bits_are_not_taken(
    fails: bool, cheap: tuple[Body, Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, part = cheap
    less = kernel(part.body, CPU)

    def near(given: Sequence[Tensor]) -> list[Tensor]:
        return [made * (1 + 1e-6) for made in less(given)]

    def given(asked: Body, device: torch.device) -> Kernel:
        return kernel(body, device) if asked == body else failing if fails else near

    monkeypatch.setattr(parted, "kernel", given)
    monkeypatch.setattr(parted, "least_seconds", lambda calls, device: [0.1, 1.0])
    assert not exact_and_faster(body, part, CPU)


def test_a_package_that_runs_one_gives_the_same_bits(
    normed: tuple[Graph, Any], cheap: tuple[Body, Part], tmp_path: Path
) -> None:
    """Each norm is let go after the forward, and made again of its sum for the backward."""
    graph, built = normed
    wanted = [
        op
        for op in graph.alternatives
        if len(body_of(op).calls) == len(cheap[1].body.calls)
        and set(op.inputs) & set(graph.ops[graph.origins[op.id]].outputs)
    ]
    sequence = keep_all(graph)
    loss = next(place for place, at in enumerate(sequence) if graph.ops[at].phase == "loss")
    again = [*sequence[: loss + 1], *(op.id for op in wanted), *sequence[loss + 1 :]]
    costs = timeless(graph)
    played = replay(graph, costs, open_schedule(graph, costs, again, False))
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
