"""A value knows its memory: steps of a GPU with values on the host, captured without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tightfit.schemas.costs import op_cost_key
from tightfit.schemas.graph.training_graph import Graph, check_graph, read_graph, write_graph
from tightfit.stages.profile.operands import fill_normal, make_tensor
from tightfit.stages.torch_utils import fake_kernel_fixes
from tightfit.stages.torch_utils.graph_check import check_graph_program
from tightfit.stages.torch_utils.operators import encode_plain_argument
from tightfit.stages.trace.canonicalize import layout
from tightfit.stages.trace.canonicalize.layout import propagate_layouts
from tightfit.stages.trace.emit import Emitter
from tightfit.stages.trace.forward import CapturedLeaf
from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable
from tightfit.util.errors import ArtifactError, ModelError

aten = torch.ops.aten

TREE = '{"type": "leaf"}'
HOST, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def no_gpu_to_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators are laid out as their fake versions say."""
    monkeypatch.setattr(layout, "_probe", lambda call: None)


def attending(target: Any, seeds: tuple[int, int]) -> CapturedProgram:
    """A step that attends with dropout, and its backward by the memory-efficient kernel."""
    with FakeTensorMode(), torch.no_grad():
        inputs = {
            number: Variable("input", torch.empty(2, 4, 64, 32, device=GPU, dtype=torch.bfloat16))
            for number in range(3)
        }
        query, key, value = inputs.values()
        extra = (None, True, 0.1, True) if len(seeds) and seeds[0] == 2 else (0.1, True, False)
        args = (query, key, value, *extra)
        results = target(*(v.fake if isinstance(v, Variable) else v for v in args))
        made = [
            Variable("intermediate", result) if isinstance(result, torch.Tensor) else None
            for result in results
        ]
        tangent = Variable("tangent", torch.empty_like(results[0]))
    out, forward = made[0], OperatorCall(target, args, {}, made)
    assert out is not None
    gradients: list[Variable] = []
    calls = [forward]
    if seeds[0] == 2:
        gradients = [Variable("intermediate", v.fake) for v in inputs.values()]
        given = (tangent, query, key, value, None, out, made[1], made[2], made[3], 0.1)
        backward = aten._scaled_dot_product_efficient_attention_backward.default
        outputs: list[Variable | None] = [*gradients, None]
        calls.append(OperatorCall(backward, (*given, [True, True, True, False], True), {}, outputs))
    together = dict(zip(inputs.values(), ([one] for one in gradients), strict=False))
    return CapturedProgram([], inputs, {0: tangent}, calls, [out], [], together, forward=1)


def emitted(program: CapturedProgram) -> Graph:
    propagate_layouts(program, lambda outputs: [torch.empty_like(output) for output in outputs])
    sample: Any = (tuple(variable.fake for variable in program.inputs.values()), {})
    return Emitter(program, "cuda").graph(
        [CapturedLeaf(0, True)],
        sample,
        set(),
        model="m",
        has_loss=False,
        output_tree=TREE,
        guards="{}",
    )


def leaving(monkeypatch: pytest.MonkeyPatch, seed: torch.Tensor, offset: torch.Tensor) -> None:
    """Lets attention leave these seeds when it is really run."""

    def run(call: Any, args: Any, kwargs: Any) -> Any:
        numbers = fake_kernel_fixes.SEED_OUTPUTS[call._schema.name]
        return {numbers[0]: seed, numbers[1]: offset}

    monkeypatch.setattr(fake_kernel_fixes, "run_small_attention", run)


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Memory-efficient attention, whose seeds are on the host."""
    number = torch.zeros((), dtype=torch.int64)
    leaving(monkeypatch, number, number)
    target = aten._scaled_dot_product_efficient_attention.default
    return emitted(attending(target, (2, 3)))


def test_seeds_on_the_host_take_no_memory_of_the_device(graph: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.arrow", graph)
    read = read_graph(tmp_path / "graph.arrow")
    assert read == graph
    forward = read.ops[0]
    for number, output in enumerate(forward.outputs):
        value = read.values[output]
        on_host = number in (2, 3)
        assert value.device == ("cpu" if on_host else "")
        assert bool(read.storages[value.storage]) != on_host
    check_graph_program(read, "graph")


def test_seeds_of_flash_attention_are_unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        seed = torch.empty(2, dtype=torch.uint64, device=GPU)
    offset = torch.zeros((), dtype=torch.uint64)
    leaving(monkeypatch, seed, offset)
    target = aten._scaled_dot_product_flash_attention.default
    graph = emitted(attending(target, (6, 7)))
    seeds = [graph.values[graph.ops[0].outputs[number]] for number in (6, 7)]
    assert [(v.dtype, v.shape, v.device) for v in seeds] == [
        ("uint64", [2], ""),
        ("uint64", [], "cpu"),
    ]
    assert [graph.storages[value.storage] for value in seeds] == [16, 0]
    check_graph_program(graph, "graph")


def test_seeds_are_learnt_from_one_sequence_and_one_head() -> None:
    like = torch.empty(3, 16, 5, 24)[..., :20].transpose(0, 1)
    made = fake_kernel_fixes.shrink_operand(like)
    assert made.shape == (1, 1, 5, 20) and made.stride() == like.stride()
    assert made.untyped_storage().nbytes() < like.untyped_storage().nbytes()
    assert fake_kernel_fixes.shrink_operand(0.1) == 0.1


def test_operands_are_made_where_the_values_lie(graph: Graph) -> None:
    seed, query = graph.values[graph.ops[0].outputs[2]], graph.values[graph.ops[0].inputs[0]]
    meta = torch.device("meta")
    assert make_tensor(seed, fill_normal, meta).device == HOST
    assert make_tensor(query, lambda base: None, meta).device == meta


def test_costs_tell_memories_apart(graph: Graph) -> None:
    backward = graph.ops[-1]
    moved = [replace(value, device="") for value in graph.values]
    assert op_cost_key(graph, backward) != op_cost_key(replace(graph, values=moved), backward)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"device": "disk"}, "of kind intermediate cannot lie on 'disk'"),
        ({"device": "cpu", "kind": "input"}, "of kind input cannot lie on 'cpu'"),
    ],
)
def test_a_value_elsewhere_is_an_intermediate_one(
    graph: Graph, change: dict[str, Any], sentence: str
) -> None:
    seed = graph.ops[0].outputs[2]
    values = [replace(v, **change) if v.id == seed else v for v in graph.values]
    with pytest.raises(ArtifactError, match=sentence):
        check_graph(replace(graph, values=values), "graph")


def test_a_value_elsewhere_takes_no_bytes(graph: Graph) -> None:
    storages = [size or 8 for size in graph.storages]
    with pytest.raises(ArtifactError, match="lies elsewhere and takes bytes of cuda"):
        check_graph(replace(graph, storages=storages), "graph")


def test_only_seeds_may_lie_elsewhere_than_their_kernel_says(graph: Graph) -> None:
    out = graph.ops[-1].outputs[0]
    storages = list(graph.storages)
    storages[graph.values[out].storage] = 0
    values = [replace(v, device="cpu") if v.id == out else v for v in graph.values]
    with pytest.raises(ArtifactError, match="makes no tensor on cpu"):
        check_graph_program(replace(graph, values=values, storages=storages), "graph")


def step_with(operand: torch.Tensor, kind: Any, dtype: torch.dtype) -> CapturedProgram:
    """A product of an input on the first GPU and something else."""
    with operand.fake_mode:  # type: ignore[attr-defined]
        x = Variable("input", torch.empty(4, device=GPU, dtype=dtype))
    other = Variable(kind, operand)
    made, tangent = Variable("intermediate", x.fake), Variable("tangent", x.fake)
    calls = [OperatorCall(aten.mul.Tensor, (x, other), {}, [made], source="model.py:3")]
    fixed = [other] if kind == "constant" else []
    inputs = {0: x} if fixed else {0: x, 1: other}
    return CapturedProgram(fixed, inputs, {0: tangent}, calls, [made], [], {}, forward=1)


def test_a_step_on_two_devices_is_refused_by_name() -> None:
    with FakeTensorMode():
        operand = torch.empty((), device=HOST)
    with pytest.raises(
        ModelError, match=r"a tensor on cpu and others on cuda:0; a plan is for one"
    ):
        emitted(step_with(operand, "input", torch.float32))


def test_a_constant_of_the_host_is_kept_where_the_plan_runs() -> None:
    with FakeTensorMode():
        operand = torch.empty(4)
    graph = emitted(step_with(operand, "constant", torch.bfloat16))
    assert {value.device for value in graph.values} == {""}


def test_a_number_of_the_host_that_a_plan_would_round_is_refused() -> None:
    with FakeTensorMode():
        operand = torch.empty(())
    with pytest.raises(ModelError, match=r"model.py:3: aten.mul.Tensor takes a number from a tens"):
        emitted(step_with(operand, "constant", torch.bfloat16))
    with FakeTensorMode():
        operand = torch.empty(())
    emitted(step_with(operand, "constant", torch.float32))


def test_arguments_name_kinds_of_devices() -> None:
    assert encode_plain_argument(torch.device("cuda:1")) == {"device": "cuda"}
