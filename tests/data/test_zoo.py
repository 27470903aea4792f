"""The models of zoo.yaml: every factory is there, and some of each kind run like their module."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.stages.trace.eager_comparison import check_against_eager
from tightfit.schemas.config import read_config
from tightfit.stages.torch_utils.model_factory import build_from_factory, load_factory
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError

ROOT = Path(__file__).parents[2]
ZOO = read_config(ROOT / "zoo.yaml").models


def test_the_zoo_is_large_and_of_all_kinds() -> None:
    assert len(ZOO) >= 20
    modules = {model.factory.partition(":")[0] for model in ZOO.values()}
    kinds = {path.stem for path in (ROOT / "data").glob("zoo_*.py")}
    assert {f"data.{kind}" for kind in kinds} <= modules


@pytest.mark.parametrize("name", ZOO)
def test_every_factory_takes_its_arguments(name: str) -> None:
    inspect.signature(load_factory(ZOO[name].factory)).bind(**ZOO[name].arguments)


@pytest.mark.sample(only=["squeezenet"])
@pytest.mark.parametrize("name", ["t5", "squeezenet", "fno", "clip"])
def test_the_graph_is_the_model_and_the_same_each_time(name: str, tmp_path: Path) -> None:
    model = ZOO[name]
    graph = trace(build_from_factory(model.factory, model.arguments, fake=True), name)
    real = build_from_factory(model.factory, model.arguments)
    check_against_eager(graph, real, tmp_path / "graph.arrow")
    assert trace(build_from_factory(model.factory, model.arguments, fake=True), name) == graph


@pytest.mark.long
def test_a_model_whose_shapes_hang_on_its_data_is_told_in_a_sentence() -> None:
    with pytest.raises(ModelError, match=r"vilt.*depends on the data of a tensor"):
        trace(build_from_factory(ZOO["vilt"].factory, ZOO["vilt"].arguments, fake=True), "vilt")
