from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightfit.schemas import store
from tightfit.schemas.costs import (
    COSTS,
    RANDOM_STATE_TARGET,
    Costs,
    OpAllocations,
    OpCost,
    ProfileDevice,
    op_cost_key,
    read_costs,
    write_costs,
)
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.training_graph import (
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    GraphOutput,
    GraphValue,
    Op,
    Phase,
)
from tightfit.util.errors import ArtifactError

DEVICE = ProfileDevice("cpu", "a processor", "2.0", 2, "measured")


def value(
    index: int, shape: list[int], dtype: str = "float32", transposed: bool = False
) -> GraphValue:
    strides = [1, shape[0]] if transposed else [shape[1], 1]
    return GraphValue(index, "intermediate", shape, strides, 0, dtype, index)


def op(
    index: int, args: list[Any], outputs: list[int], target: str = "aten.add.Tensor", **kwargs: Any
) -> Op:
    inputs = [argument["value"] for argument in args if isinstance(argument, dict)]
    phase: Phase = "loss" if target == LOSS_TARGET else "forward"
    return Op(
        index,
        target,
        phase,
        encode_arguments(args, kwargs),
        list(dict.fromkeys(inputs)),
        outputs,
        [],
        [],
        False,
        True,
        "layer",
        "file.py:1",
    )


def graph(
    values: list[GraphValue], ops: list[Op], model: str = "m", has_loss: bool = False
) -> Graph:
    sizes = [4 * one.shape[0] * one.shape[1] for one in values]
    outputs = [GraphOutput(0, 1, "")]
    return Graph(
        model, "cpu", "2.0", has_loss, ops, values, sizes, [], [], outputs, [], "", "", "{}"
    )


def tensor(index: int) -> dict[str, int]:
    return {"value": index}


VALUES = [
    value(0, [2, 3]),
    value(1, [2, 3]),
    value(2, [2, 3], transposed=True),
    value(3, [2, 3], "float64"),
    value(4, [3, 2]),
]


def key(args: list[Any], in_place: int = NO_VALUE, **kwargs: Any) -> str:
    made = graph(VALUES, [op(0, args, [], **kwargs)])
    return op_cost_key(made, made.ops[0], in_place)


def test_equal_calls_have_equal_keys_wherever_they_stand() -> None:
    assert key([tensor(0), tensor(1)]) == key([tensor(1), tensor(0)])
    assert key([tensor(0), tensor(1)], alpha=2) == key([tensor(1), tensor(0)], alpha=2)
    assert len(key([tensor(0)])) == 64
    one = graph(VALUES, [op(0, [tensor(0), tensor(1)], [])])
    other = replace(one, ops=[replace(one.ops[0], module="elsewhere", source="other.py:7")])
    assert op_cost_key(one, one.ops[0]) == op_cost_key(other, other.ops[0])


@pytest.mark.parametrize(
    "other",
    [
        [tensor(0), tensor(2)],
        [tensor(0), tensor(3)],
        [tensor(0), tensor(4)],
        [tensor(0), tensor(0)],
        [tensor(0), tensor(1), 1],
        [tensor(0)],
    ],
    ids=["strides", "dtype", "shape", "repeated", "scalar", "fewer"],
)
def test_unequal_calls_have_unequal_keys(other: list[Any]) -> None:
    assert key(other) != key([tensor(0), tensor(1)])


def test_target_keywords_and_in_place_form_belong_to_the_key() -> None:
    args = [tensor(0), tensor(1)]
    keys = [key(args), key(args, 0), key(args, 1), key(args, alpha=2), key(args, target="aten.x.y")]
    assert len(set(keys)) == len(keys)


def test_the_loss_belongs_to_its_model() -> None:
    loss = op(0, [tensor(0)], [1], LOSS_TARGET)
    one, other = graph(VALUES, [loss], "one"), graph(VALUES, [loss], "other")
    assert op_cost_key(one, loss) != op_cost_key(other, loss)


def test_a_loss_that_was_not_traced_is_free_and_makes_its_tangents() -> None:
    loss = op(0, [tensor(0)], [1], LOSS_TARGET)
    cost = Costs([], DEVICE).of(graph(VALUES, [loss]), loss)
    assert (cost.seconds, cost.peak, cost.net) == (0.0, 24, 24)
    with pytest.raises(ArtifactError, match="lack op 0"):
        Costs([], DEVICE).of(graph(VALUES, [loss], has_loss=True), loss)


def test_an_op_that_was_not_profiled_is_named() -> None:
    made = graph(VALUES, [op(0, [tensor(0)], [1])], "some model")
    with pytest.raises(ArtifactError, match=r"op 0 \(aten.add.Tensor\) of some model"):
        Costs([], DEVICE).of(made, made.ops[0])


def test_costs_come_back_in_the_order_of_keys(tmp_path: Path) -> None:
    rows = [
        OpCost("b", "aten.mm.default", NO_VALUE, 0.25, 0.1, 30, 20),
        OpCost("a", RANDOM_STATE_TARGET, NO_VALUE, 1e-6, 0.0, 5056, 5056),
    ]
    first = write_costs(tmp_path / "one.arrow", Costs(rows, DEVICE))
    assert first == write_costs(tmp_path / "two.arrow", Costs(rows[::-1], DEVICE))
    costs = read_costs(tmp_path / "one.arrow")
    assert list(costs.rows) == ["a", "b"]
    assert costs.rows["b"] == rows[0] and costs.device == DEVICE
    assert costs.random_state().net == 5056
    assert Costs([], DEVICE).random_state().net == 0


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": -1.0},
        {"peak": 10},
        {"net": -1},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": 1e300},
        {"peak": 2**62},
    ],
)
def test_impossible_costs_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    row = OpCost("b", "aten.mm.default", NO_VALUE, 0.25, 0.1, 30, 20)
    write_costs(tmp_path / "c.arrow", Costs([replace(row, **change)], DEVICE))
    with pytest.raises(ArtifactError, match=r"c\.arrow: the cost of aten.mm.default"):
        read_costs(tmp_path / "c.arrow")


def test_costs_without_a_device_are_refused(tmp_path: Path) -> None:
    store.write(tmp_path / "c.arrow", COSTS, [], {"device_type": "cpu"})
    with pytest.raises(ArtifactError, match="does not name a device"):
        read_costs(tmp_path / "c.arrow")


def test_allocations_come_back_and_take_no_place_where_there_are_none(tmp_path: Path) -> None:
    plain = OpCost("b", "aten.mm.default", NO_VALUE, 0.25, 0.1, 30, 20)
    known = replace(plain, key="a", allocations=OpAllocations([20, 10, -2], [512]))
    write_costs(tmp_path / "c.arrow", Costs([plain, known], DEVICE))
    found = read_costs(tmp_path / "c.arrow")
    assert found.rows == {"a": known, "b": plain} and found.device == DEVICE
    write_costs(tmp_path / "c.arrow", Costs([plain], DEVICE))
    assert "allocations" not in store.read(tmp_path / "c.arrow", COSTS).metadata


def test_what_other_work_took_comes_back_and_is_told_of_the_step(tmp_path: Path) -> None:
    made = graph(VALUES, [op(0, [tensor(0)], [1]), op(1, [tensor(1)], [0], "aten.relu.default")])
    long, short = (
        OpCost(op_cost_key(made, each), each.target, NO_VALUE, 0.75, 0, 30, 20) for each in made.ops
    )
    short = replace(short, seconds=0.25)
    assert Costs([long, short], DEVICE).lost(made) == Costs([], DEVICE).lost(graph(VALUES, [])) == 0
    rows = [replace(long, lost=0.5), short]
    write_costs(tmp_path / "c.arrow", Costs(rows, DEVICE))
    found = read_costs(tmp_path / "c.arrow")
    assert found.rows == {row.key: row for row in rows} and found.lost(made) == 0.75


@pytest.mark.parametrize(
    "said", ["[]", '{"b": 2.0}', '{"b": 0.0}', '{"b": true}', '{"b": NaN}', "{"]
)
def test_what_other_work_took_is_a_part(tmp_path: Path, said: str) -> None:
    row = OpCost("b", "aten.mm.default", NO_VALUE, 0.25, 0.1, 30, 20, lost=0.5)
    write_costs(tmp_path / "c.arrow", Costs([row], DEVICE))
    found = store.read(tmp_path / "c.arrow", COSTS)
    store.write(tmp_path / "c.arrow", COSTS, found.rows, {**found.metadata, "lost": said})
    with pytest.raises(ArtifactError, match="does not say what other work took"):
        read_costs(tmp_path / "c.arrow")


@pytest.mark.parametrize("moves", [[-1], [8, -2], [8, -1, -1], [0]])
def test_what_was_not_taken_is_not_given_back(moves: list[int]) -> None:
    with pytest.raises(ArtifactError, match="give back what they do not hold"):
        OpAllocations(moves, [])


def test_what_moves_leave_is_named_by_the_order_in_which_it_was_taken() -> None:
    assert OpAllocations([8, 9, -1, 10], []).staying() == {2: 9, 3: 10}
    with pytest.raises(ArtifactError, match="no sizes of lasting"):
        OpAllocations([], [0])


@pytest.mark.parametrize("text", ["[]", "no JSON", '{"a": {"moves": [1]}}', '{"b": {"moves": 1}}'])
def test_damaged_allocations_are_refused(tmp_path: Path, text: str) -> None:
    about = {f"device_{key}": "0" for key in ("type", "name", "build", "threads", "source")}
    store.write(tmp_path / "c.arrow", COSTS, [], {**about, "allocations": text})
    with pytest.raises(ArtifactError, match="does not hold allocations"):
        read_costs(tmp_path / "c.arrow")
