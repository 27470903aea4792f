"""Models whose data decide what runs: where their graphs break, and the path that fit takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.tightfit.test_fit import write_card
from tightfit.__main__ import main
from tightfit.api.fit_graphs import FactoryModel, StepGraphs, trace_step
from tightfit.stages.combine.card_batches import doubles_sizes
from tightfit.stages.trace import assumed_data
from tightfit.util.errors import ModelError


class _Break(nn.Module):
    """A layer whose graph breaks, in one of several `ways`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(8, 8), way
        self.scale = torch.ones(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.layer(x)) * self.scale
        if self.way == "condition" and x.sum() > 0:
            return y.exp() + x
        if self.way == "check" and y.isnan().any():
            raise ValueError("not a number")
        while self.way == "loop" and y.norm() > 1:
            y = y / 2
        if self.way == "number":
            return y * float(x.max())
        if self.way == "mask":
            mask = x[:, 0] > 0
            chosen = self.layer(x[mask]) + torch.nonzero(mask)
            y = y.index_put((mask,), chosen) + torch.masked_select(x, x > 0).sum()
        if self.way == "unique":
            y = y + torch.unique(x).sum()
        return x + y


def build_breaking(
    batch: int, way: str
) -> tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]:
    model = nn.Sequential(*(_Break(way) for _ in range(2)), nn.Linear(8, 1))
    return model, ((torch.randn(batch, 8),), {})


def trace_breaking(way: str, **given: int) -> StepGraphs:
    return trace_step(FactoryModel(f"{__name__}:build_breaking", {"way": way, **given}), 4, 1)


@pytest.mark.parametrize(
    ("way", "line", "assumed"),
    [
        ("condition", "x.sum() > 0", "a condition is taken as True"),
        ("check", "y.isnan().any()", "a condition is taken as False"),
        ("loop", "y.norm() > 1", "a condition is taken as False"),
        ("number", "float(x.max())", "a number is taken as 1"),
        ("mask", "x[mask]", "a mask selects all"),
    ],
)
def test_a_graph_that_breaks_is_told_where(
    way: str, line: str, assumed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is that of one path, with all rows where a mask selects some."""
    monkeypatch.setattr(assumed_data, "MAX_ANSWERS", 3)
    found = trace_breaking(way, **({} if way == "mask" else {"batch": 4}))
    lines = Path(__file__).read_text().splitlines()
    asked = {lines[int(place.rpartition(":")[2]) - 1]: said
             for place, said in found.assumptions.items()}  # fmt: skip
    assert [said for text, said in asked.items() if line in text] == [assumed]
    targets = [op.target for op in found.graph.ops]
    assert ("aten.exp.default" in targets) == (way == "condition")
    if way == "mask":
        assert found.pair is not None and doubles_sizes(*found.pair)
        chosen = next(op for op in found.graph.ops if op.target == "aten.index.Tensor")
        assert found.graph.values[chosen.outputs[0]].shape == [4, 8]


def test_a_break_that_nothing_can_be_assumed_for_is_refused_with_its_line() -> None:
    with pytest.raises(
        ModelError, match=r"test_fit_graph_breaks\.py:\d+: the shape of what aten\._unique2"
    ):
        trace_breaking("unique", batch=4)


def test_the_page_of_a_graph_that_breaks_tells_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card, page = write_card(tmp_path / "card.json", 10**6), tmp_path / "fit.html"
    words = ["fit", "--factory", f"{__name__}:build_breaking", "--arguments", '{"way": "number"}']
    assert main([*words, "--devices", str(card), "--jobs", "1", "--html", str(page)]) == 0
    said = "a number is taken as 1"
    assert said in " ".join(capsys.readouterr().out.split()) and said in page.read_text()
