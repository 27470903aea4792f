from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.schemas import store
from tightfit.schemas.hierarchy import (
    HIERARCHY,
    Hierarchy,
    HierarchyLevel,
    read_hierarchy,
    write_hierarchy,
)
from tightfit.util.errors import ArtifactError

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
LOWEST = HierarchyLevel([2, 2, 1], [A, A, B])
UPPER = HierarchyLevel([2, 1], [C, D])
WHOLE = Hierarchy(
    model="model",
    prelude=[0],
    forward=[3, 1, 4, 2, 9],
    backward=[12, 11, 15],
    places=[4, 4, 0],
    nodes=2,
    clusters=2,
    top=4,
    alpha=0.5,
    digest="0" * 64,
    levels=[LOWEST, UPPER],
)


def test_a_hierarchy_comes_back_as_it_was(tmp_path: Path) -> None:
    write_hierarchy(tmp_path / "hierarchy", WHOLE, {"graph": "digest"})
    assert read_hierarchy(tmp_path / "hierarchy") == WHOLE


def test_one_without_clusters_comes_back(tmp_path: Path) -> None:
    plain = replace(WHOLE, forward=[5, 6], places=[1, 1, 0], levels=[])
    write_hierarchy(tmp_path / "hierarchy", plain)
    assert read_hierarchy(tmp_path / "hierarchy") == plain


def test_spans_are_places_in_the_forward() -> None:
    assert WHOLE.spans(0) == [range(0, 2), range(2, 4), range(4, 5)]
    assert WHOLE.spans(1) == [range(0, 4), range(4, 5)]


@pytest.mark.parametrize(
    ("hierarchy", "words"),
    [
        (replace(WHOLE, forward=[3, 1, 4, 2, 0]), "an op is in two places"),
        (replace(WHOLE, forward=[3, 1, 4, 2, -9]), "an op of negative id"),
        (replace(WHOLE, backward=[12, 11, 4]), "an op is in two places"),
        (replace(WHOLE, places=[4, 4]), "not one place for each op"),
        (replace(WHOLE, places=[5, 4, 0]), "belongs to no place of the forward"),
        (replace(WHOLE, places=[4, 4, -1]), "belongs to no place of the forward"),
        (replace(WHOLE, nodes=1), "limits of less than two members"),
        (replace(WHOLE, alpha=-0.5), "exponent of the score is -0.5"),
        (replace(WHOLE, alpha=float("nan")), "exponent of the score is nan"),
        (replace(WHOLE, digest="0" * 63), "the hierarchy's digest is none"),
        (
            replace(WHOLE, forward=[3, 1], places=[1, 1, 0]),
            "level 0 of the hierarchy does not hold all",
        ),
        (replace(WHOLE, levels=[LOWEST, HierarchyLevel([2], [C])]), "level 1 .* does not hold all"),
        (
            replace(WHOLE, levels=[HierarchyLevel([3, 1, 1], [A, B, B])]),
            "a cluster of less than one",
        ),
        (
            replace(WHOLE, levels=[HierarchyLevel([2, 2, 1, 0], [A, A, B, D])]),
            "a cluster of less than one",
        ),
        (
            replace(WHOLE, levels=[LOWEST, HierarchyLevel([3], [C])]),
            "less than one member or more than 2",
        ),
        (
            replace(WHOLE, levels=[HierarchyLevel([2, 2, 1], [A, A])]),
            "not one digest for each cluster",
        ),
        (
            replace(WHOLE, levels=[HierarchyLevel([2, 2, 1], [A, A, "B" * 64])]),
            "a digest that is none",
        ),
        (
            replace(WHOLE, levels=[HierarchyLevel([2, 2, 1], [A, A, A])]),
            "one digest for different clusters",
        ),
        (
            replace(WHOLE, levels=[LOWEST, HierarchyLevel([1, 2], [C, C])]),
            "one digest for different",
        ),
        (replace(WHOLE, top=2, levels=[LOWEST]), "top of the hierarchy has 3 members, too many"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, hierarchy: Hierarchy, words: str
) -> None:
    with pytest.raises(ArtifactError, match=words):
        write_hierarchy(tmp_path / "hierarchy", hierarchy)
    assert not (tmp_path / "hierarchy").exists()


def test_a_file_is_checked_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hierarchy"
    row = {**vars(WHOLE), "levels": [vars(LOWEST), vars(UPPER)]}
    store.write(path, HIERARCHY, [{**row, "top": 0}])
    with pytest.raises(ArtifactError, match="limits of less than two members"):
        read_hierarchy(path)
    store.write(path, HIERARCHY, [row, row])
    with pytest.raises(ArtifactError, match="holds 2 hierarchies instead of one"):
        read_hierarchy(path)
    store.write(path, replace(HIERARCHY, version=3), [row])
    with pytest.raises(ArtifactError, match="has version 3 of tightfit"):
        read_hierarchy(path)
