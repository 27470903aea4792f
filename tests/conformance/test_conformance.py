"""A few cases of each suite, and what the runner makes of cases that fail, crash and hang."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.battery.case import Case
from tests.conformance.judge import EQUAL, RAW, SKIPPED, UNSUPPORTED, Judgment, judge_case
from tests.conformance.suite import Group, Selection, copy_inputs
from tests.conformance.summary import (
    describe_run,
    sentence_key,
    suite_table,
    unequal_groups,
    write_results,
)
from tests.conformance.transformers_suite import TRANSFORMERS_SUITES
from tests.conformance.vision_suites import smallest_model
from tests.conformance.workers import CaseResult, Job, WorkerPool

ROOT = Path(__file__).parents[2]


def only_case(name: str, forward: Callable[[Tensor], Any]) -> Case:
    class Module(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return forward(x)

    return Case(name, Module, lambda _: ((torch.ones(4, requires_grad=True),), {}))


def test_an_operator_and_a_layer_are_equal(tmp_path: Path) -> None:
    """In a process of its own: PyTorch's databases change settings of PyTorch."""
    only = "^hypot float32|nn.Tanh training|^NumpyMulCustomOp float32"
    suites = ["opinfo", "moduleinfo", "custom_op_db"]
    command = [sys.executable, "-m", "tests.conformance", *suites, "--only", only]
    command += ["--sample", "1", "--jobs", "1", "--output", str(tmp_path / "found.json")]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())["results"]
    kinds = {each["suite"]: each["judgment"]["kind"] for each in found}
    assert kinds == dict.fromkeys(suites, EQUAL), ended.stdout
    assert all(set(each["judgment"]["peaks"]) >= {"min", "keep all"} for each in found)


def test_a_family_is_its_smallest_model(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: dict[str, Callable[[], nn.Module]] = {
        "wide": lambda: nn.Linear(1 << 16, 1 << 16),
        "narrow": lambda: nn.Linear(8, 8),
    }
    assert smallest_model(makers) == "narrow"
    monkeypatch.setattr("tests.conformance.vision_suites.LARGEST", 71)
    with pytest.raises(ValueError, match="its smallest model, narrow, has 72 parameters"):
        smallest_model(makers)


def test_a_branch_by_data_is_unsupported(tmp_path: Path) -> None:
    case = only_case("branch", lambda x: x if x.sum() > 0 else -x)
    found = judge_case(case, tmp_path)
    assert found.kind == UNSUPPORTED and "ModelError" in found.detail


def test_what_says_nothing_is_skipped(tmp_path: Path) -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError("no")

    calls = itertools.count(1)
    cases = [
        only_case("error", fail),
        only_case("integers", lambda x: x.argmax()),
        only_case("calls", lambda x: x * next(calls)),
    ]
    found = [judge_case(case, tmp_path) for case in cases]
    assert [each.kind for each in found] == [SKIPPED] * 3
    assert [each.detail.split(":")[0] for each in found] == [
        "eager raises ValueError",
        "nothing that it returns has a gradient",
        "eager differs from itself",
    ]


def test_a_crash_and_a_hang_end_one_case(tmp_path: Path) -> None:
    def die(_: Tensor) -> Tensor:
        os._exit(7)

    def hang(_: Tensor) -> Tensor:
        time.sleep(600)
        raise AssertionError

    def cases(seed: int) -> Sequence[Case]:
        forwards: list[tuple[str, Any]] = [
            ("crash", die),
            ("hang", hang),
            ("integers", Tensor.argmax),
        ]
        return [only_case(name, forward) for name, forward in forwards]

    jobs = [Job("suite", Group("group", cases), Selection())]
    results = list(WorkerPool(jobs, tmp_path / "store", 1, limit=10.0).results())
    found = [(each.case, each.judgment.kind, each.judgment.detail) for each in results]
    assert found == [
        ("crash", RAW, "its process ended with code 7"),
        ("hang", RAW, "took longer than 10 s"),
        ("integers", SKIPPED, "nothing that it returns has a gradient"),
    ]


def test_shares_have_all_cases_once() -> None:
    shares = [Selection(share, 3).numbers("add float32", 10) for share in range(3)]
    assert sorted(itertools.chain(*shares)) == list(range(10))
    sample = Selection(sample=4, seed=1).numbers("add float32", 10)
    assert len(sample) == 4 and sample == Selection(sample=4, seed=1).numbers("add float32", 10)
    assert sample != Selection(sample=4, seed=2).numbers("add float32", 10)


def test_copies_keep_strides_and_identity() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    given = ([base.t(), base[:1].expand(3, 4)], base[:, ::2].requires_grad_())
    (turned, wide), strided = copies = copy_inputs((*given,))
    for copy, original in zip((turned, wide, strided), (*given[0], given[1]), strict=True):
        assert torch.equal(copy, original) and copy.stride() == original.stride()
        assert copy.untyped_storage()._cdata != original.untyped_storage()._cdata
        assert copy.is_leaf and copy.requires_grad == original.requires_grad
    assert len(copies) == 2
    first, second = copy_inputs((base, base))
    assert first is second


def test_the_table_counts_kinds(tmp_path: Path) -> None:
    said = "min: ModelError: M: 'x' at a.py:3 takes 12 bytes"
    kinds = [
        (EQUAL, ""),
        (UNSUPPORTED, said),
        (UNSUPPORTED, said.replace("12", "7")),
        (SKIPPED, "no"),
    ]
    results = [
        CaseResult("opinfo", "add", str(number), 1.0, Judgment(*each))
        for number, each in enumerate(kinds)
    ]
    assert suite_table(results).splitlines()[-1] == "| opinfo | 1 | 2 | 0 | 0 | 1 | 33.3% |"
    assert f"    2  {said}" in describe_run(results)
    assert sentence_key(said) == "ModelError: M: '...' at FILE takes # bytes"
    write_results(tmp_path / "out" / "found.json", results, {"seed": 0})
    read = json.loads((tmp_path / "out" / "found.json").read_text())
    assert [each["judgment"]["kind"] for each in read["results"]] == [kind for kind, _ in kinds]
    assert unequal_groups(tmp_path / "out" / "found.json") == {("opinfo", "add")}


def test_architectures_are_found_and_made() -> None:
    (suite,) = TRANSFORMERS_SUITES
    groups = {group.name: group for group in suite.groups()}
    assert len(groups) > 100
    (case,) = groups["causal gpt2"].cases(0)
    first, second = case.sample(0), case.sample(0)
    assert torch.equal(first[1]["input_ids"], second[1]["input_ids"])
    assert torch.isfinite(case.loss(case.make()(*first[0], **first[1])))  # type: ignore[misc]
