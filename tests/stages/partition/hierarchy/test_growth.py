"""The benchmark's table, short."""

from __future__ import annotations

from tests.benchmarks.hierarchy_partition import HEAD, rows_of_hierarchies
from tests.stages.partition.hierarchy.flows import FAMILIES


def test_the_table_has_a_row_for_each_family_and_length() -> None:
    rows = list(rows_of_hierarchies((300, 3000)))
    assert len(rows) == 2 * len(FAMILIES)
    assert {row.count("|") for row in rows} == {HEAD.splitlines()[0].count("|")}
