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
from tests.stages.generate.watched import is_planned, traced_watched
from tightfit.schemas.errors import ArtifactError
from tightfit.stages.generate.package import package
from tightfit.stages.generate.watched import watched_bytes

X = torch.ones(2, 3)

MALFORMED = [
    "[]",
    '{"watch": []}',
    '{"watch": {"modules": [["a"]]}}',
    '{"watch": {"modules": [], "tensors": [], "holders": [{}], "names": [], "hooks": [], '
    '"twins": [], "states": {}}}',
    '{"watch": {"modules": [], "tensors": [], "holders": [], "names": [], "hooks": [], '
    '"twins": [], "states": {"a": []}}}',
]


@pytest.mark.parametrize("guards", MALFORMED)
def test_malformed_guards_are_one_sentence(guards: str) -> None:
    graph, _ = traced_watched((nn.Linear(3, 3), ((X,), {})))
    with pytest.raises(ArtifactError, match="the guards are not JSON of the known form"):
        watched_bytes(replace(graph, guards=guards))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alike", 3),
        ("alike", [[0, 1]]),
        ("alike", [[0]]),
        ("asked", [["leaf"]]),
        ("asked", [[[], 1]]),
    ],
)
def test_malformed_answers_are_one_sentence(name: str, value: Any) -> None:
    graph, _ = traced_watched((nn.Linear(3, 3), ((X,), {})))
    guards = json.dumps({**json.loads(graph.guards), name: value})
    with pytest.raises(ArtifactError, match="the guards are not JSON of the known form"):
        package(replace(graph, guards=guards), _steps(graph), PLAN)


def test_a_package_without_its_description_is_refused(tmp_path: Path) -> None:
    graph, built = traced_watched((nn.Linear(3, 3), ((X,), {})))
    module = generated(graph, tmp_path / "linear")
    assert is_planned(module.load(built.model)(X))
    file = tmp_path / "linear" / "watched.json"
    document = json.loads(file.read_text())
    document["watch"]["holders"][0]["place"] = [["module"]]
    file.write_text(json.dumps(document))
    with pytest.raises(RuntimeError, match=r"watched\.json is not what was generated"):
        module.load(built.model)
    document["watch"]["holders"][0] |= {"place": [["python", "builtins"], ["global", "len"]]}
    for kind in ("defaults", "cells", "names"):
        document["watch"]["holders"][0] |= {"kind": kind, "reads": {"x": 1}}
        file.write_text(json.dumps(document))
        with pytest.raises(RuntimeError, match=r"the plan was made|is not what was generated"):
            module.load(built.model)
    file.write_text("[" * 100_000)
    with pytest.raises(RuntimeError, match=r"watched\.json cannot be read, generate the module"):
        module.load(built.model)
    file.unlink()
    with pytest.raises(RuntimeError, match=r"watched\.json cannot be read, generate the module"):
        module.load(built.model)
    assert "watched.json" in package(graph, _steps(graph), PLAN)


def _steps(graph: Any) -> Any:
    from tightfit.stages.combine.schedule.opening import open_schedule
    from tightfit.stages.generate.package import timeless
    from tightfit.stages.replay.referee import replay

    costs = timeless(graph)
    return replay(graph, costs, open_schedule(graph, costs, keep_all(graph), False)).steps
