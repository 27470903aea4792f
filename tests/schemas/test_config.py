"""The configuration: defaults, keys of a model, every error at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tightfit.schemas.config import SCHEMA_PATH, parse_config, read_config, require_folders
from tightfit.schemas.machine import MACHINES
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import BLOCK_SOLVERS

ROOT = Path(__file__).parents[2]


def minimal(**changes: Any) -> dict[str, Any]:
    return {"models": {"small": {"factory": "data.models:gpt2"}}, **changes}


def problems(document: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(document)
    first, *rest = str(caught.value).splitlines()
    return [line.strip() for line in rest] or [first.removeprefix("config.yaml: ")]


def test_the_smallest_configuration_gets_every_default() -> None:
    config = parse_config(minimal())
    assert (config.device, config.engine, config.pairs) == ("cpu", "highs", 15)
    assert (config.fail_on, config.budgets_shown) == (("failed",), 12)
    assert (config.results, config.store, config.search_path) == ("results", "store", ["."])
    assert config.models["small"].arguments == {}
    assert [(request.strategy, request.budget) for request in config.requests("small")] == [
        ("keep_all", "none"),
        ("checkpoint_all", "none"),
        ("auto", "50%"),
    ]


def test_the_engine_solves_programs_of_steps_whether_or_not_it_solves_those_of_blocks() -> None:
    found = {
        engine: parse_config(minimal(solver={"engine": engine})).step_engine
        for engine in BLOCK_SOLVERS
    }
    assert found == {"highs": "highs", "cbc": "cbc", "none": "highs"}


def test_limits_of_hierarchies_and_slots_are_keys() -> None:
    config = parse_config(minimal(hierarchy={"nodes": 20}, solver={"slots": 40}))
    assert config.hierarchy == {"nodes": 20, "clusters": 6, "top": 12} and config.slots == 40
    assert parse_config(minimal()).slots == 500
    assert problems(minimal(hierarchy={"top": 5})) == [
        "hierarchy.top: 5 was found, expected at least hierarchy.clusters, which is 6"
    ]


def test_a_model_may_have_its_own_budgets_and_strategies() -> None:
    document = minimal(budgets=["1GiB"])
    document["models"]["own"] = {
        "factory": "a.b:c",
        "strategies": ["rockmate"],
        "budgets": ["40%", "150 MB", 700],
        "arguments": {"width": 3, "names": ["x"]},
    }
    config = parse_config(document)
    assert config.models["small"].budgets == ["1GiB"]
    assert [(request.budget, request.directory) for request in config.requests("own")] == [
        ("40%", "40pct"),
        ("150MB", "150MB"),
        ("700", "700B"),
    ]
    assert config.budget("own", "40pct") == "40%"
    assert config.models["own"].arguments_json == '{"names": ["x"], "width": 3}'


def test_a_model_may_have_its_own_device_solver_and_pairs() -> None:
    document = minimal(device="cpu", solver={"engine": "cbc", "peaks": 2}, pairs=3)
    document["models"]["own"] = {
        "factory": "a.b:c",
        "device": "h100",
        "solver": {"peaks": 7},
        "pairs": 1,
    }
    config = parse_config(document)
    shared, own = config.models["small"], config.models["own"]
    assert (shared.device, shared.machine, shared.here) == ("cpu", None, "cpu")
    assert (shared.engine, shared.peaks, shared.saves, shared.pairs) == ("cbc", 2, 6, 3)
    assert own.machine == MACHINES / "h100.json" == own.link_machine and own.here == "cpu"
    assert (own.engine, own.peaks, own.saves, own.pairs) == ("cbc", 7, 6, 1)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"device": "gpu"}, 'models.own.device: "gpu" was found, expected cpu, cuda'),
        ({"joint": True}, "models.own.joint: true was found, expected samples beside it"),
        (
            {"joint": True, "samples": [{}], "budgets": ["min"]},
            "models.own.budgets: min was found, expected others beside joint: true",
        ),
        ({"pairs": 0}, "models.own.pairs: 0 was found, expected a whole number from 1 to 1000"),
        ({"solver": {"peaks": 0}}, "models.own.solver.peaks: 0 was found, expected a whole"),
        ({"solver": {"peak": 1}}, "models.own.solver.peak: is no known key, did you mean peaks"),
        ({"machine": "none.json"}, "models.own.machine: none.json: cannot be read"),
        (
            {"device": "h100", "kernels": "fused"},
            'models.own.kernels: "fused" was found, expected eager where the device is described',
        ),
    ],
)
def test_the_own_keys_of_a_model_are_checked(keys: dict[str, Any], said: str) -> None:
    document = minimal()
    document["models"]["own"] = {"factory": "a.b:c", **keys}
    [problem] = problems(document)
    assert problem.startswith(said)


def test_the_smallest_budget_is_one_to_ask_for() -> None:
    config = parse_config(minimal(budgets=["min", "50%"], strategies=["rotor"]))
    assert [(asked.budget, asked.directory) for asked in config.requests("small")] == [
        ("min", "min"),
        ("50%", "50pct"),
    ]
    [said] = problems(minimal(budgets=["max"]))
    assert said == (
        "budgets[0]: 'max' is no size, expected a size such as '8GiB' or '145MB', a percentage "
        "such as '50%', or a number of bytes, or 'min'"
    )


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    machine = json.loads((MACHINES / "h100.json").read_text())
    machine["memories"] = [{"name": "host", "memory": 1 << 30}]
    machine["links"] = [{"between": [machine["devices"][0]["name"], "host"], "bandwidth": 1e9}]
    (folder / "mine.json").write_text(json.dumps(machine))
    document = minimal(device="mine.json", machine="mine.json", disk="scratch", store="/store")
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    config = read_config(folder / "config.yaml")
    assert (config.results, config.store) == (str(folder / "results"), "/store")
    assert (config.search_path, config.disk) == ([str(folder)], str(folder / "scratch"))
    assert (config.machine, config.link_machine) == 2 * (folder / "mine.json",)
    (folder / "config.yaml").write_text(yaml.safe_dump(minimal(device="h100")))
    config = read_config(folder / "config.yaml")
    assert (config.machine, config.disk) == (MACHINES / "h100.json", "")


def test_paths_of_a_file_in_the_working_directory_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(yaml.safe_dump(minimal(search_path=["./a"])))
    config = read_config("config.yaml")
    assert (config.results, config.search_path) == ("results", ["./a"])


def test_defaults_are_not_shared_between_configurations() -> None:
    parse_config(minimal()).search_path.append("elsewhere")
    assert parse_config(minimal()).search_path == ["."]


def test_all_errors_are_told_at_once_with_path_and_expectation() -> None:
    found = problems(
        {
            "models": {
                "good": {"factory": "data.models"},
                "bad name": {"factory": "a:b"},
                "none": {"budgets": ["8 gigs", "120%", True, "0%"]},
            },
            "solver": {"engine": "gurobi", "peaks": 0, "enigne": "cbc"},
            "device": "gpu",
            "pairs": "many",
            "stroe": "x",
            "frontier": "fine",
            "fail_on": ["never"],
            "strategies": ["magic"],
        }
    )
    expected = [
        'models.good.factory: "data.models" was found, expected text of the form',
        "models.bad name: is no name to use, expected a name made of letters",
        "models.none.factory: is missing, expected text of the form package.module:function",
        "models.none.budgets[0]: '8 gigs' has the unknown unit 'gigs', expected one of B, kB",
        "models.none.budgets[1]: '120%' is above 100%",
        "models.none.budgets[2]: true was found, expected a size such as 8GiB",
        "models.none.budgets[3]: '0%' has no room for an activation, expected more than 0",
        'solver.engine: "gurobi" was found, expected highs, cbc or none',
        "solver.peaks: 0 was found, expected a whole number from 1 to 50",
        "solver.enigne: is no known key, did you mean engine",
        'device: "gpu" was found, expected cpu, cuda, cuda:NUMBER, a described device (a100, ',
        'pairs: "many" was found, expected a whole number from 1 to 1000',
        "stroe: is no known key, did you mean store",
        'frontier: "fine" was found, expected auto, true or false',
        'fail_on[0]: "never" was found, expected failed or infeasible',
        'strategies[0]: "magic" was found, expected keep_all, checkpoint_all, auto, '
        "rotor, rockmate, early_free, floating_persistence, sequential, revolve, join, checkmate, "
        "tw_remat, hiremate, offload or offmate",
    ]
    assert len(found) == len(expected), found
    for sentence in expected:
        assert any(line.startswith(sentence) for line in found), (sentence, found)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (None, "the configuration: nothing was found, expected a mapping with the key models"),
        ([1], "the configuration: [1] was found, expected a mapping with the key models"),
        ({}, "models: is missing, expected a mapping from names to models, or chains beside it"),
        ({"models": {}}, "models: {} was found, expected a mapping from names to models"),
        ({"models": {"a": None}}, "models.a: nothing was found, expected a mapping with the key"),
        ({"models": {3: {"factory": "a:b"}}}, "models.3: the key 3 is no text"),
        (
            {"models": {"a": {"factory": "b:c", "samples": []}}},
            "models.a.samples: [] was found, expected a list of mappings from argument names",
        ),
        (
            {"models": {"a": {"factory": "b:c", "samples": [3]}}},
            "models.a.samples[0]: 3 was found, expected a mapping from argument names to plain",
        ),
        (
            minimal(operators=["m"]),
            'operators: ["m"] was found, expected a mapping from namespaces',
        ),
        (minimal(operators={"a.b": "c"}), "operators.a.b: is no name to use, expected the name of"),
        (minimal(operators={"a": "c d"}), 'operators.a: "c d" was found, expected the module that'),
        (minimal(budgets=[]), "budgets: [] was found, expected a list of budgets"),
        (minimal(budgets=["50%", "50 %"]), "budgets[1]: '50 %' repeats '50%'"),
        (minimal(budgets=["50%", "50%"]), 'budgets: ["50%", "50%"] was found, expected a list'),
        (minimal(budgets=["-1MB"]), "budgets[0]: '-1MB' is no size, expected a size such as"),
        (minimal(budgets=["50"]), "budgets[0]: 50 is 50 bytes, write '50%' or '50MB'"),
        (minimal(budgets=[0.5]), "budgets[0]: 0.5 was found, expected a size such as 8GiB"),
    ],
)
def test_one_error_is_one_line(document: Any, sentence: str) -> None:
    found = problems(document)
    assert len(found) == 1
    assert found[0].startswith(sentence)


def test_a_value_that_json_has_not_is_refused() -> None:
    document = yaml.safe_load("models: {a: {factory: 'a:b', arguments: {day: 2026-01-02}}}")
    assert problems(document) == [
        "models.a.arguments.day: datetime.date(2026, 1, 2) is a date, "
        "expected a number, a text, a list or a mapping"
    ]
    document = yaml.safe_load("models: {a: {factory: 'a:b', arguments: {rate: .inf}}}")
    assert problems(document)[0].startswith("models.a.arguments.rate: inf is a float")


def test_reading_a_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.yaml: cannot be read \(No such file"):
        read_config(tmp_path / "absent.yaml")
    path = tmp_path / "broken.yaml"
    path.write_text("models: [")
    with pytest.raises(ConfigError, match=r"broken.yaml: is not YAML"):
        read_config(path)
    path.write_text("models: {a: {factory: f}}")
    with pytest.raises(ConfigError, match=r"broken.yaml: models.a.factory: \"f\" was found"):
        read_config(path)


def test_folders_that_cannot_be_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_folders(parse_config(minimal()))
    Path("notes.txt").touch()
    config = parse_config(minimal(results="notes.txt", store=str(tmp_path / "notes.txt/a/b")))
    with pytest.raises(ConfigError) as caught:
        require_folders(config)
    assert str(caught.value).splitlines() == [
        "config.yaml has 2 errors:",
        "  results: notes.txt is a file, expected a folder",
        "  store: notes.txt is a file, expected a folder",
    ]
    Path("link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="results: link is a link that leads nowhere"):
        require_folders(parse_config(minimal(results="link/results")))


def test_results_are_written_and_a_store_may_be_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    config = parse_config(minimal(results=str(tmp_path / "made"), store=str(tmp_path)))
    with pytest.raises(ConfigError) as caught:
        require_folders(config)
    sentence = f"results: {tmp_path} is read-only, expected a folder to write to"
    assert str(caught.value) == f"config.yaml: {sentence}"
    require_folders(config, writable_results=False)  # for a dry run


def test_the_shipped_configuration_is_valid_and_plans_the_three_models() -> None:
    config = read_config(ROOT / "config.yaml")
    assert {"gpt2", "gpt2-dropout", "resnet50"} <= set(config.models)
    for model in config.models:
        strategies = {request.strategy for request in config.requests(model)}
        assert strategies == {"keep_all", "checkpoint_all", "auto"}


def test_the_schema_describes_every_key_and_says_what_it_expects() -> None:
    def visit(node: Any, path: str) -> None:
        if not isinstance(node, dict):
            return
        for key, inner in node.get("properties", {}).items():
            assert "description" in inner, f"{path}.{key}"
            assert "expected" in inner, f"{path}.{key}"
            visit(inner, f"{path}.{key}")
        visit(node.get("additionalProperties"), f"{path}.*")

    visit(json.loads(SCHEMA_PATH.read_text()), "")
