"""The key `pipeline` of a model: defaults, options of commands, every error at once."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tightfit.schemas.config import parse_config
from tightfit.schemas.config_pipeline import PipelineConfig
from tightfit.schemas.machine import MACHINES
from tightfit.schemas.plan_folders import PlanFolder, plan_folders
from tightfit.util.errors import ConfigError


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """The path of a description of three equal devices."""
    return str(describe(tmp_path / "three.json"))


def describe(path: Path, kind: str = "cpu", **changes: Any) -> Path:
    devices = [{"name": f"{kind}:{number}", "memory": 1000} for number in range(3)]
    pairs = combinations([device["name"] for device in devices], 2)
    links = [{"between": list(pair), "bandwidth": 1e9} for pair in pairs]
    document = {"artifact": "tightfit.machine/1", "name": path.stem}
    path.write_text(json.dumps({**document, "devices": devices, "links": links, **changes}))
    return path


def document(pipeline: Any, **changes: Any) -> dict[str, Any]:
    return {"models": {"gpt2": {"factory": "a.b:c", "pipeline": pipeline, **changes}}}


def pipeline_of(**given: Any) -> PipelineConfig:
    pipeline = parse_config(document(given)).models["gpt2"].pipeline
    assert pipeline is not None
    return pipeline


def problems(written: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(written)
    first, *rest = str(caught.value).splitlines()
    return [line.strip() for line in rest] or [first.removeprefix("config.yaml: ")]


def test_a_pipeline_needs_a_machine_alone(machine: str) -> None:
    found = pipeline_of(machine=machine)
    expected = PipelineConfig(Path(machine), ("madpipe",), 4, 2, False, machine_name="three")
    assert found == expected
    assert found.on_cpus


def test_a_pipeline_has_no_joint_budget(machine: str) -> None:
    given = document({"machine": machine}, samples=[{}], joint=True)
    [said] = problems(given)
    assert said.startswith(
        "models.gpt2.joint: true was found, expected budgets or strategies beside it"
    )
    given["models"]["gpt2"]["strategies"] = ["rotor"]
    assert parse_config(given).models["gpt2.1"].joint == ("gpt2.1",)


def test_a_pipeline_on_other_devices_does_not_run_here(tmp_path: Path) -> None:
    assert not pipeline_of(machine=str(describe(tmp_path / "gpus.json", "cuda"))).on_cpus


def test_a_model_with_a_pipeline_has_plans_for_one_device_where_it_asks_for_them(
    machine: str,
) -> None:
    def requests(**changes: Any) -> list[tuple[str, str]]:
        config = parse_config(document({"machine": machine}, **changes))
        [folder] = plan_folders(config)
        assert folder == PlanFolder("gpt2", "pipeline", "madpipe") and folder.target == "three"
        return [(asked.strategy, asked.budget) for asked in config.requests("gpt2")]

    assert requests() == []
    assert requests(strategies=["keep_all"]) == [("keep_all", "none")]
    assert ("auto", "1GiB") in requests(budgets=["1GiB"])


def test_each_allocator_is_given_the_settings_that_it_takes(machine: str) -> None:
    strategies = ["pipedream", "k_periodic", "madpipe"]
    pipeline = pipeline_of(
        machine=machine, strategies=strategies, stage_recompute="rotor", k=2, period=0.25,
        buffers=True, weight_copies=3,
    )  # fmt: skip
    common = ["--weight-copies", "3", "--buffers", "--period", "0.25", "--microbatches", "4"]
    recompute = ["--stage-recompute", "rotor"]
    assert {name: pipeline.plan_options(name, "cbc") for name in strategies} == {
        "pipedream": common,
        "k_periodic": [*common, "--k", "2", *recompute],
        "madpipe": [*common, "--solver", "cbc", *recompute],
    }


def test_all_errors_are_told_at_once() -> None:
    given = {
        "machine": "none.json", "strategies": ["pipedream", "dualpipe"], "microbatches": 0,
        "stage_recompute": "rockmate", "k": 3, "period": 0, "weight_copys": 1,
    }  # fmt: skip
    written = {**document(given), "device": "cuda", "kernels": "fused"}
    assert problems(written) == [
        'models.gpt2.kernels: "fused" was found, expected eager beside a pipeline',
        "models.gpt2.pipeline.k: 3 was found, which pipedream cannot take: expected k_periodic "
        "among the strategies",
        "models.gpt2.pipeline.machine: none.json: cannot be read (No such file or directory)",
        "models.gpt2.pipeline.microbatches: 0 was found, expected a whole number from 1 to 4096",
        "models.gpt2.pipeline.period: 0 was found, expected a number of seconds above 0",
        'models.gpt2.pipeline.stage_recompute: "rockmate" was found, which pipedream cannot take: '
        "expected one_f_one_b or k_periodic or madpipe among the strategies",
        'models.gpt2.pipeline.strategies[1]: "dualpipe" was found, expected pipedream, gpipe, '
        "one_f_one_b, k_periodic, pipeline_ilp or madpipe",
        "models.gpt2.pipeline.weight_copys: is no known key, did you mean weight_copies",
        "models.gpt2.pipeline: is asked for on cuda, where no pipeline runs yet: expected the "
        "device cpu or a described one",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "pipeline.machine: is missing, expected the path of a description of a machine"),
        (3, "pipeline: 3 was found, expected a mapping with the key machine"),
        ({"machine": "h100"}, 'machine: "h100" was found, expected the path of a description'),
        ({"machine": 7, "strategies": "madpipe"}, "strategies: "),
    ],
)
def test_what_is_no_pipeline_is_told(given: Any, said: str) -> None:
    assert any(f"models.gpt2.{said}" in line or said in line for line in problems(document(given)))


def test_a_machine_without_devices_for_a_pipeline_is_told(tmp_path: Path) -> None:
    alone = MACHINES / "h100.json"
    link = {"between": ["cpu:0", "cpu:1"], "bandwidth": 1e9}
    unlinked = describe(tmp_path / "unlinked.json", links=[link])
    for path, said in (
        (alone, f"{alone}: describes one device, expected several equal ones with equal links"),
        (unlinked, f"{unlinked}: has no link between cpu:0 and cpu:2"),
    ):
        [found] = problems(document({"machine": str(path)}))
        assert found.startswith(f"models.gpt2.pipeline.machine: {said}")


def test_a_row_of_devices_is_enough_for_contiguous_stages(tmp_path: Path) -> None:
    pairs = (["cpu:0", "cpu:1"], ["cpu:1", "cpu:2"])
    links = [{"between": pair, "bandwidth": 1e9} for pair in pairs]
    row = str(describe(tmp_path / "row.json", links=links))
    assert pipeline_of(machine=row, strategies=["one_f_one_b"]).on_cpus
    assert "has no link between" in problems(document({"machine": row}))[0]


def test_folders_of_plans_are_known_by_the_paths_of_their_plans() -> None:
    folder = PlanFolder("gpt2", "pipeline", "madpipe")
    assert PlanFolder.of_plan(folder.path("results") / "plan/plan.json") == folder
    for path in ("results/gpt2/rotor/8GiB/plan.json", "results/pipeline/rotor/8GiB/plan.json"):
        assert PlanFolder.of_plan(Path(path)) is None
