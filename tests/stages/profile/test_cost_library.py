"""The library of costs in a store that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.schemas.costs import OpCost
from tightfit.stages.profile.cost_library import CostLibrary
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.util.errors import ArtifactError


def test_a_store_that_takes_no_costs_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    library = CostLibrary(tmp_path / "costs.arrow", describe_device("cpu"))
    library.add([])
    with pytest.raises(ArtifactError) as caught:
        library.add([OpCost("0" * 64, "aten.add.Tensor", -1, 1.0, 0.0, 8, 8)])
    assert str(caught.value) == (
        f"{tmp_path}: cannot be written (Is a directory), and lacks costs that were measured: name "
        "a store to write to"
    )
