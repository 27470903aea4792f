"""Which keys of a configuration changed, from the parameters of jobs before and now."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/progress"))

from snakemake_logger_plugin_tightfit.changed_settings import (
    describe_changed_settings,
    find_changed_settings,
)


def source(**arguments: Any) -> list[str]:
    return ["--factory", "m:f", "--arguments", json.dumps(arguments, sort_keys=True)]


@pytest.mark.parametrize(
    ("before", "name", "now", "expected"),
    [
        (15, "pairs", 20, "pairs changed from 15 to 20"),
        ("highs", "engine", "cbc", "solver changed from highs to cbc"),
        (
            ["--microbatches", 1],
            "microbatches",
            ["--microbatches", 1, "--microbatches", 2],
            "microbatches changed from 1 to 1, 2",
        ),
        (
            ["--parameters", "offload", "--limit", "2GB"],
            "placement",
            ["--parameters", "offload"],
            "offload.limit is no longer set",
        ),
        ([], "placement", ["--limit", "3GB"], "offload.limit = 3GB"),
        (source(batch=2, layers=4), "source", source(batch=8, layers=4), "arguments.batch "),
        (["a" * 80], "disks", ["--second-disk", "b" * 80], "second_disk changed"),
        ("a" * 80, "text", "b" * 80, "text changed"),
    ],
)
def test_a_changed_key_is_named_with_its_values(
    before: Any, name: str, now: Any, expected: str
) -> None:
    [said] = describe_changed_settings([repr(before)], {name: repr(now)})
    assert said.startswith(expected)


def test_several_changes_are_told_apart() -> None:
    before = [repr(["--limit", "1GB"]), "15", "'cpu'"]
    now = {"placement": repr(["--limit", "2GB"]), "pairs": "20", "device": "'cuda'"}
    assert describe_changed_settings(before, now) == [
        "offload.limit changed from 1GB to 2GB",
        "pairs = 20",
        "device = cuda",
    ]


def test_lists_without_options_are_of_no_key() -> None:
    assert describe_changed_settings([repr(["rotor/50pct"])], {"points": "[]"}) == []


def test_the_parameters_of_a_job_are_compared_by_their_names() -> None:
    change = SimpleNamespace(only_old={"15"}, only_new={"20"})
    persistence = SimpleNamespace(_serialize_param=repr)
    dag = SimpleNamespace(
        reason=lambda _: SimpleNamespace(params_changed=change),
        workflow=SimpleNamespace(persistence=persistence),
    )
    job = SimpleNamespace(dag=dag, params={"device": "cpu", "pairs": 20})
    assert find_changed_settings(job) == ["pairs changed from 15 to 20"]
