"""The description that a package has of what the trace read: malformed or lost, it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import PLAN, generated, keep_all
from tests.stages.runtime.guards.guarded_plans import is_planned, traced_watched
from tightfit.stages.generate.graph_guards import guard_file_bytes
from tightfit.stages.generate.package import build_package
from tightfit.util.errors import ArtifactError

X = torch.ones(2, 3)

MALFORMED = [
    "[]",
    '{"guards": []}',
    '{"guards": {"modules": [["a"]]}}',
    '{"guards": {"modules": [], "tensors": [], "sources": [{}], "names": [], "hooks": [], '
    '"same_named_classes": [], "global_state": {}}}',
    '{"guards": {"modules": [], "tensors": [], "sources": [], "names": [], "hooks": [], '
    '"same_named_classes": [], "global_state": {"a": []}}}',
]


@pytest.mark.parametrize("guards", MALFORMED)
def test_malformed_guards_are_one_sentence(guards: str) -> None:
    graph, _ = traced_watched((nn.Linear(3, 3), ((X,), {})))
    with pytest.raises(ArtifactError, match="the guards are not JSON of the known form"):
        guard_file_bytes(replace(graph, guards=guards))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("same_object_inputs", 3),
        ("same_object_inputs", [[0, 1]]),
        ("same_object_inputs", [[0]]),
        ("tensor_queries", [["leaf"]]),
        ("tensor_queries", [[[], 1]]),
    ],
)
def test_malformed_answers_are_one_sentence(name: str, value: Any) -> None:
    graph, _ = traced_watched((nn.Linear(3, 3), ((X,), {})))
    guards = json.dumps({**json.loads(graph.guards), name: value})
    with pytest.raises(ArtifactError, match="the guards are not JSON of the known form"):
        build_package(replace(graph, guards=guards), _steps(graph), PLAN)


def test_a_package_without_its_description_is_refused(tmp_path: Path) -> None:
    graph, built = traced_watched((nn.Linear(3, 3), ((X,), {})))
    module = generated(graph, tmp_path / "linear")
    assert is_planned(module.load(built.model)(X))
    file = tmp_path / "linear" / "guards.json"
    document = json.loads(file.read_text())
    document["guards"]["sources"][0]["path"] = [["module"]]
    file.write_text(json.dumps(document))
    with pytest.raises(RuntimeError, match=r"guards\.json is not what was generated"):
        module.load(built.model)
    document["guards"]["sources"][0] |= {"path": [["python", "builtins"], ["global", "len"]]}
    for kind in ("defaults", "cells", "names"):
        document["guards"]["sources"][0] |= {"kind": kind, "values": {"x": 1}}
        file.write_text(json.dumps(document))
        with pytest.raises(RuntimeError, match=r"the plan was made|is not what was generated"):
            module.load(built.model)
    file.write_text("[" * 100_000)
    with pytest.raises(RuntimeError, match=r"guards\.json cannot be read, generate the module"):
        module.load(built.model)
    file.unlink()
    with pytest.raises(RuntimeError, match=r"guards\.json cannot be read, generate the module"):
        module.load(built.model)
    assert "guards.json" in build_package(graph, _steps(graph), PLAN)


def _steps(graph: Any) -> Any:
    from tightfit.stages.combine.lowering.schedule import lower_to_schedule
    from tightfit.stages.generate.package import zero_time_costs
    from tightfit.stages.simulate.simulate import simulate

    costs = zero_time_costs(graph)
    return simulate(graph, costs, lower_to_schedule(graph, costs, keep_all(graph), False)).steps
