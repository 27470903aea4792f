"""The generated text: straight lines, the same every time, and harmless whatever a graph says."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.conftest import Planned
from tests.stages.generate.plans import PLAN, keep_all, recompute
from tightfit.schemas.actions import Compute
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, GraphValue, Op, write_graph
from tightfit.schemas.package_manifest import module_file_digests, read_manifest
from tightfit.schemas.plan import BaselineBytes, Plan, PlanCost, plan_digest, write_plan
from tightfit.schemas.schedule import ScheduleStep, write_schedule
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate import command
from tightfit.stages.generate.backends import BACKENDS
from tightfit.stages.generate.naming import UniqueNames, comment_text, to_identifier
from tightfit.stages.generate.operator_calls import OperatorBindings, op_statements
from tightfit.stages.generate.package import (
    add_lineage_file,
    build_package,
    write_directory,
    zero_time_costs,
)
from tightfit.stages.generate.step_writer import SourceProgram, write_program
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.validate.load import (
    load_offloaded_module,
    load_planned_module,
    package_files,
)
from tightfit.util.errors import ArtifactError, ConfigError, ScheduleError

HELPERS = {
    "recompute_batch_norm",
    "combine_gradients",
    "use_random_state",
    "get_random_state",
    "torch.device",
    "tangents.clear",
    "float",
    "complex",
}
EVIL = 'x"""\n\r\u2028\x0c__import__("os").abort()\n# coding: utf-7\n\\'


def steps_of(graph: Graph, seed: int | None = 1) -> list[ScheduleStep]:
    executions = keep_all(graph) if seed is None else recompute(graph, seed, 1.0)
    costs = zero_time_costs(graph)
    return simulate(graph, costs, lower_to_schedule(graph, costs, executions, True)).steps


def audit(text: str) -> ast.Module:
    """Asserts that a step's text is nothing but calls of operators; returns its syntax tree."""
    tree = ast.parse(text)
    bound = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            assert ast.unparse(node.value).startswith(("torch.ops.aten.", "torch.ops.prims."))
            bound.add(ast.unparse(node.targets[0]))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 and node.module in {
                f"runtime.{name}" for name in ("output_gradients", "operators", "autograd_chain")
            }
        elif isinstance(node, ast.Import):
            assert [name.name for name in node.names] == ["torch"]
        elif isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant)
        else:
            assert isinstance(node, ast.FunctionDef) and node.name == "step"
            kinds = {type(line) for line in node.body}
            assert kinds <= {ast.Assign, ast.Expr, ast.Delete, ast.With}
    for part in ast.walk(tree):
        assert not isinstance(part, ast.Lambda | ast.For | ast.While | ast.If | ast.Try)
        if isinstance(part, ast.Call):
            assert ast.unparse(part.func) in bound | HELPERS
    return tree


def shape_of(text: str) -> str:
    """The syntax tree without names and constants' texts."""
    tree = audit(text)
    return " ".join(type(node).__name__ for node in ast.walk(tree))


def test_the_text_is_straight_and_says_where_it_is(small: Planned) -> None:
    text = (small.directory / "step.py").read_text()
    audit(text)
    assert "# norm" in text and "# first, again" in text and "---- backward ----" in text
    assert all(line.rstrip() == line and len(line) <= 120 for line in text.splitlines())
    live = [line for line in text.splitlines() if line.endswith(" MB")]
    assert len({line.index("# ") for line in live if len(line) == len(live[0])}) == 1
    assert len(live) > 30


def test_the_text_is_the_same_every_time(small: Planned) -> None:
    steps = steps_of(small.graph)
    assert build_package(small.graph, steps, PLAN) == build_package(small.graph, steps, PLAN)


def test_the_package_imports_only_pytorch(small: Planned) -> None:
    allowed = {"torch", "__future__"} | set(sys.stdlib_module_names)
    files = sorted(small.directory.rglob("*.py"))
    assert {"__init__.py", "step.py", "planned_module.py"} <= {file.name for file in files}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {name.name.split(".")[0] for name in node.names} <= allowed
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module is not None and node.module.split(".")[0] in allowed


def with_op(graph: Graph, which: str, /, **fields: Any) -> Graph:
    """The graph with fields of its first op of a target replaced."""
    return with_op_at(graph, next(op.id for op in graph.ops if op.target == which), **fields)


def with_op_at(graph: Graph, index: int, **fields: Any) -> Graph:
    ops: list[Op] = list(graph.ops)
    ops[index] = replace(ops[index], **fields)
    return replace(graph, ops=ops)


def with_value(graph: Graph, kind: str, **fields: Any) -> Graph:
    values: list[GraphValue] = list(graph.values)
    index = next(value.id for value in values if value.kind == kind)
    values[index] = replace(values[index], **fields)
    return replace(graph, values=values)


def op_of(graph: Graph, target: str) -> Op:
    return next(op for op in graph.ops if op.target == target)


def with_argument(graph: Graph, target: str, position: int, argument: Any) -> Graph:
    call = json.loads(op_of(graph, target).arguments)
    call["args"][position] = argument
    return with_op(graph, target, arguments=json.dumps(call))


def with_keyword(graph: Graph, target: str, name: str, argument: Any) -> Graph:
    call = json.loads(op_of(graph, target).arguments)
    call["kwargs"][name] = argument
    return with_op(graph, target, arguments=json.dumps(call))


TREE = '[1, {"type": "%s", "context": %s, "children_spec": []}]'
RELU, DROPOUT, ADDMM = "aten.relu.default", "aten.native_dropout.default", "aten.addmm.default"
DOCTORED: dict[str, Callable[[Graph], Graph]] = {
    "unknown operator": lambda g: with_op(g, RELU, target="aten.reluu.default"),
    "other namespace": lambda g: with_op(g, RELU, target="os.system.default"),
    "code as operator": lambda g: with_op(g, RELU, target=f"aten.relu.default({EVIL})"),
    "mutating operator": lambda g: with_op(g, RELU, target="aten.relu_.default"),
    "file operator": lambda g: with_op(g, RELU, target="aten.from_file.default"),
    "copy into a weight": lambda g: with_op(
        g,
        RELU,
        target="aten.copy_.default",
        arguments='{"args":[{"value":0},{"value":1}],"kwargs":{}}',
    ),
    "in-place operator": lambda g: with_op(g, "aten.mul.Tensor", target="aten.mul_.Tensor"),
    "wrong type": lambda g: with_argument(g, DROPOUT, 1, "0.25"),
    "code as argument": lambda g: with_argument(g, DROPOUT, 1, {"code": EVIL}),
    "device as argument": lambda g: with_argument(g, DROPOUT, 1, {"device": "cpu"}),
    "strange device": lambda g: with_argument(g, DROPOUT, 1, {"device": EVIL}),
    "tensor as number": lambda g: with_argument(g, DROPOUT, 1, {"value": 0}),
    "another value": lambda g: with_argument(g, ADDMM, 0, {"value": 10**6}),
    "unknown keyword": lambda g: with_keyword(g, DROPOUT, EVIL, 1),
    "keyword twice": lambda g: with_keyword(g, DROPOUT, "p", 0.5),
    "too many": lambda g: with_op(g, RELU, arguments='{"args":[{"value":0},1],"kwargs":{}}'),
    "too few": lambda g: with_op(g, RELU, arguments='{"args":[],"kwargs":{}}'),
    "outputs": lambda g: with_op(g, RELU, outputs=[*op_of(g, RELU).outputs, -1]),
    "path with a newline": lambda g: with_value(g, "parameter", path="a.b\nimport os"),
    "empty path": lambda g: with_value(g, "parameter", path=""),
    "path of two": lambda g: with_value(g, "parameter", path="last.bias"),
    "alias": lambda g: with_value(g, "parameter", aliases=["a..b"]),
    "device": lambda g: replace(g, device="tpu"),
    "guards": lambda g: replace(g, guards='{"eval_modules": 1, "autocast": {}}'),
    "guards are no JSON": lambda g: replace(g, guards="import os"),
    "constant": lambda g: replace(g, input_constants=["", '{"code": "os"}']),
    "tree imports": lambda g: replace(
        g, input_tree=TREE % ("collections.defaultdict", '{"default_factory_module": "this"}')
    ),
    "tree names an enumeration": lambda g: replace(
        g,
        output_tree=TREE % ("builtins.dict", '"[{\\"__enum__\\": true, \\"fqn\\": \\"this:x\\"}]"'),
    ),
    "tree of other size": lambda g: replace(g, output_tree=TREE % ("builtins.dict", '"[]"')),
    "tree is no JSON": lambda g: replace(g, input_tree="print()"),
    "gradient of a constant": lambda g: with_value(g, "parameter", requires_grad=False),
    "gradient is an output": lambda g: replace(
        g, gradients=[replace(g.gradients[0], gradient=g.outputs[0].value), *g.gradients[1:]]
    ),
    "tangent": lambda g: replace(g, outputs=[replace(g.outputs[0], tangent=0), *g.outputs[1:]]),
}


def test_tensors_that_flash_attention_does_not_make_are_none_to_its_backward() -> None:
    """Its schema takes the lengths of nested sequences as tensors, and CUDA leaves them out."""
    target = "aten._scaled_dot_product_flash_attention_backward.default"
    tensors = [{"value": value} for value in range(6)]
    arguments = [*tensors, None, None, 8, 8, 0.1, True, {"value": 6}, {"value": 7}]
    call = json.dumps({"args": arguments, "kwargs": {}})
    op = Op(0, target, "backward", call, list(range(8)), [8, 9, 10], [], [], False, True, "", "")
    names = [f"v{value}" for value in range(11)]
    [made] = op_statements(
        Graph.__new__(Graph), op, NO_VALUE, names, OperatorBindings(UniqueNames(), [target])
    )
    assert made.arguments[5:9] == ["v5", "None", "None", "8"]


@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_graph_writes_nothing(small: Planned, name: str, tmp_path: Path) -> None:
    doctored = DOCTORED[name](small.graph)
    assert doctored != small.graph
    with pytest.raises(ArtifactError) as caught:
        write_directory(tmp_path / "module", build_package(doctored, steps_of(small.graph), PLAN))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["module", "source"])
def test_comments_cannot_be_broken(small: Planned, field: str) -> None:
    graph = small.graph
    for op in graph.ops:
        graph = with_op_at(graph, op.id, **{field: EVIL})
    graph = replace(graph, model=EVIL)
    files = build_package(graph, steps_of(graph), PLAN | {"budget": EVIL, "message": EVIL})
    assert shape_of(files["step.py"].decode()) == shape_of(
        build_package(small.graph, steps_of(small.graph), PLAN)["step.py"].decode()
    )
    initial = ast.parse(files["__init__.py"])
    kinds = [type(node).__name__ for node in initial.body]
    assert kinds == ["Expr", *["ImportFrom"] * 4, *["Assign"] * 10, "FunctionDef"]
    assert "abort" not in ast.unparse(initial.body[-1])
    ast.parse(files["interface.py"])


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=30))
def test_any_path_gives_a_name_or_an_error(small: Planned, text: str) -> None:
    graph = with_value(small.graph, "parameter", path=text)
    try:
        files = build_package(graph, steps_of(small.graph, None), PLAN)
    except ArtifactError:
        return
    expected = build_package(small.graph, steps_of(small.graph, None), PLAN)["step.py"].decode()
    assert shape_of(files["step.py"].decode()) == shape_of(expected)
    for data in files.values():
        ast.parse(data)


@given(text=st.text())
def test_names_and_comments_are_safe(text: str) -> None:
    assert to_identifier(text).isidentifier() and to_identifier(text).isascii()
    shown = comment_text(text)
    assert ast.dump(ast.parse(f"x = 1  # {shown}\ny = 2")) == ast.dump(ast.parse("x = 1\ny = 2"))
    [documentation] = ast.parse(f'"""{shown}."""').body
    assert isinstance(documentation, ast.Expr)


def test_names_hide_nothing() -> None:
    names = UniqueNames()
    assert names.reserve("del") == "del_2"
    assert names.reserve("sum") == "sum_2"
    assert [names.reserve("a"), names.reserve("a")] == ["a", "a_2"]


def test_a_schedule_that_the_referee_refuses_is_not_written(small: Planned) -> None:
    steps = steps_of(small.graph)
    position = next(index for index, step in enumerate(steps) if isinstance(step.action, Compute))
    with pytest.raises(ScheduleError, match="not live"):
        build_package(small.graph, steps[:position] + steps[position + 1 :], PLAN)


@pytest.mark.parametrize("change", [{"peak": "big"}, {"time": float("nan")}, {"status": None}])
def test_a_plan_of_other_form_is_refused(small: Planned, change: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match=rf"plan\.json: {next(iter(change))!r}"):
        build_package(small.graph, steps_of(small.graph), {**PLAN, **change})


REAL = Plan(
    strategy="keep_all",
    budget="none",
    budget_total=None,
    budget_bytes=None,
    status="feasible",
    message="a baseline",
    time=0.5,
    peak=1000,
    lower_bound=0.5,
    gap=0.0,
    optimal_in="",
    smallest_budget=None,
    before_local_search=None,
    keep_all=PlanCost(0.5, 1000),
    baseline=BaselineBytes(1, 1, 0, 1, 1),
    recomputed=0,
    recomputed_time=0.0,
    solver="",
)


def options(folder: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    texts = ["--graph", "graph.arrow", "--schedule", "schedule.arrow", "--plan", "plan.json"]
    parts = [part if part.startswith("--") else str(folder / part) for part in texts]
    return parser.parse_args([*parts, "--out", str(folder / "out" / "module"), *more])


def test_the_command_writes_the_package(small: Planned, tmp_path: Path) -> None:
    digest = write_graph(tmp_path / "graph.arrow", small.graph)
    scheduled = write_schedule(tmp_path / "schedule.arrow", steps_of(small.graph), digest)
    write_plan(tmp_path / "plan.json", REAL)
    (tmp_path / "out" / "module").mkdir(parents=True)
    (tmp_path / "out" / "module" / "old.py").touch()
    command.run(options(tmp_path))
    written = package_files(tmp_path / "out" / "module")
    files = build_package(small.graph, steps_of(small.graph), asdict(REAL))
    made_from = read_manifest(tmp_path / "out" / "module")
    assert written == add_lineage_file(
        files, digest, scheduled, plan_digest(tmp_path / "plan.json")
    )
    assert (made_from.graph, made_from.schedule) == (digest, scheduled)
    assert made_from.files == module_file_digests(tmp_path / "out" / "module")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["module"]
    write_schedule(tmp_path / "schedule.arrow", steps_of(small.graph), "0" * 64)
    with pytest.raises(ArtifactError, match="the schedule of another graph"):
        command.run(options(tmp_path))


def test_a_backend_from_outside(
    small: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signed_by(graph: Graph, steps: Sequence[ScheduleStep], title: str) -> SourceProgram:
        return write_program(graph, steps, f"{title} By another hand.")

    monkeypatch.setitem(BACKENDS, "other", signed_by)
    digest = write_graph(tmp_path / "graph.arrow", small.graph)
    write_schedule(tmp_path / "schedule.arrow", steps_of(small.graph), digest)
    write_plan(tmp_path / "plan.json", REAL)
    command.run(options(tmp_path, "--backend", "other"))
    assert "By another hand." in (tmp_path / "out" / "module" / "step.py").read_text()
    with pytest.raises(ConfigError, match="backend 'none' is not known, expected one of aten, oth"):
        command.run(options(tmp_path, "--backend", "none"))


def test_the_command_writes_an_infeasible_plan(
    small: Planned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    impossible = replace(REAL, status="infeasible", time=None, peak=None)
    digest = write_graph(tmp_path / "graph.arrow", small.graph)
    write_schedule(tmp_path / "schedule.arrow", [], digest)
    write_plan(tmp_path / "plan.json", impossible)
    command.run(options(tmp_path))
    module = tmp_path / "out" / "module"
    assert sorted(file.name for file in module.iterdir()) == ["__init__.py", "made_from.json"]
    said = f"infeasible: {module} has no step, and load raises: {impossible.message}\n"
    assert capsys.readouterr().out == said
    for load in (load_planned_module, partial(load_offloaded_module, optimizer=None, folder=None)):
        with pytest.raises(ArtifactError) as caught:
            load(module, torch.nn.Linear(1, 1))
        assert str(caught.value) == f"{module}: this folder has no plan: {impossible.message}"


def test_names_are_deleted_right_behind_what_uses_one_of_them_last(small: Planned) -> None:
    text = build_package(small.graph, steps_of(small.graph), PLAN)["step.py"].decode()
    [step] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    last: dict[str, int] = {}
    deleted: dict[int, list[str]] = {}
    place = -1
    for line in step.body:
        names = [node.id for node in ast.walk(line) if isinstance(node, ast.Name)]
        if isinstance(line, ast.Delete):
            deleted.setdefault(place, []).extend(names)
            continue
        place += 1
        last.update(dict.fromkeys(names, place))
    assert len(deleted) > 3
    for place, names in deleted.items():
        assert max(last[name] for name in names) >= place, names
