"""The chains of a configuration: what is planned of them, and every error at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.chain.test_command import layers
from tightfit.schemas.block_options import write_block_options
from tightfit.schemas.chain import write_chain
from tightfit.schemas.config import Config, parse_config
from tightfit.util.errors import ConfigError

HOST = {
    "artifact": "tightfit.machine/1",
    "name": "one",
    "devices": [{"name": "cuda:0", "memory": 10**6}],
    "memories": [{"name": "host", "memory": 10**9}],
    "links": [{"between": ["cuda:0", "host"], "bandwidth": 1e6}],
}
PAIR = {
    "artifact": "tightfit.machine/1",
    "name": "pair",
    "devices": [{"name": "cpu:0", "memory": 10**6}, {"name": "cpu:1", "memory": 10**6}],
    "links": [{"between": ["cpu:0", "cpu:1"], "bandwidth": 1e9}],
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_chain(f"{name}.arrow", layers(3))
    own = layers(3)
    other = replace(own.positions[-1], o_b=352)
    write_chain("other.arrow", replace(own, positions=[*own.positions[:-1], other]))
    write_block_options("options.arrow", {})
    for name, machine in (("host", HOST), ("pair", PAIR)):
        Path(f"{name}.json").write_text(json.dumps(machine))


def configured(**chain: Any) -> Config:
    given = {"files": ["a.arrow"], "strategies": ["rotor"], **chain}
    return parse_config({"chains": {"c": given}, "budgets": ["30%"]})


def problems(models: dict[str, Any] | None = None, **chain: Any) -> list[str]:
    given = {key: value for key, value in chain.items() if value is not None}
    document: dict[str, Any] = {"chains": {"c": given}}
    with pytest.raises(ConfigError) as caught:
        parse_config({**document, **({"models": models} if models else {})})
    first, *rest = str(caught.value).splitlines()
    lines = [line.strip() for line in rest] or [first.removeprefix("config.yaml: ")]
    return [line.removeprefix("chains.c.") for line in lines]


def test_a_configuration_may_have_chains_alone() -> None:
    config = configured()
    assert config.models == {}
    [asked] = config.chains["c"].requests()
    assert (asked.strategy, asked.budget) == ("rotor", "30%")
    assert asked.folder == "chains/c/rotor/30pct"
    options = config.chains["c"].command_options(asked)
    assert options == ["--strategy", "rotor", "--budget", "30%", "--slots", "500"]


def test_each_strategy_is_given_what_it_takes() -> None:
    keys = {"machine": "pair.json", "period": 0.5, "k": 2, "buffers": True, "weight_copies": 2}
    config = configured(
        strategies=["rotor", "k_periodic", "madpipe"], slots=100, budgets=["1GiB", 900],
        engine="cbc", stage_recompute="rotor", **keys,
    )  # fmt: skip
    chain = config.chains["c"]
    asked = chain.requests()
    assert [(each.strategy, each.directory) for each in asked] == [
        ("rotor", "1GiB"), ("rotor", "900B"), ("k_periodic", "none"), ("madpipe", "none")
    ]  # fmt: skip
    common = "--period 0.5 --weight-copies 2 --buffers --stage-recompute rotor"
    assert [" ".join(chain.command_options(each)) for each in asked[1:]] == [
        "--strategy rotor --budget 900 --slots 100",
        f"--strategy k_periodic --machine pair.json {common} --k 2",
        f"--strategy madpipe --machine pair.json --solver cbc {common}",
    ]


def test_a_described_machine_may_be_named() -> None:
    with pytest.raises(ConfigError, match=r"chains.c.machine: .*/h100.json: names no memory"):
        configured(strategies=["pofo"], machine="h100")


def test_the_blocks_of_a_model_are_a_chain() -> None:
    models = {"gpt2": {"factory": "a:b", "samples": [{"n": 1}, {"n": 2}]}}
    chains = {"c": {"model": "gpt2.2", "strategies": ["rockmate"]}}
    chain = parse_config({"models": models, "chains": chains}).chains["c"]
    assert (chain.model, chain.files) == ("gpt2.2", []) and chain.needs_options("rockmate")
    assert problems(models, model="gpt2", strategies=["rotor"]) == [
        "model: gpt2 is no model of this configuration, expected one of gpt2.1, gpt2.2"
    ]


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ({"files": None}, "chains.c: names nothing to plan, expected either files: [PATH.arrow]"),
        ({"model": "m"}, "chains.c: has both files and a model, expected either files:"),
        ({"files": ["gone.arrow"]}, "files[0]: gone.arrow does not exist, expected a file of"),
        ({"files": ["a.arrow", "pair.json"]}, "files[1]: pair.json: is not a complete Arrow"),
        ({"files": ["options.arrow"]}, "files[0]: options.arrow is a tightfit.options, "),
        ({"files": []}, "files: [] was found, expected a list of files of chains (.arrow)"),
        ({"strategies": None}, "strategies: is missing, expected a list of strategies for chains"),
        ({"strategies": ["auto"]}, 'strategies[0]: "auto" was found, expected rotor, '),
        ({"strategies": ["join"]}, "strategies[0]: join plans the branches of a join, expected "),
        (
            {"files": ["a.arrow", "b.arrow"], "strategies": ["join", "early_free"]},
            "strategies[1]: early_free plans one chain, expected one file, or for a join rotor, ",
        ),
        (
            {"files": ["a.arrow", "other.arrow"], "strategies": ["join"]},
            "files[1]: other.arrow: its loss has o_b = 352, that of a.arrow has 0; the ",
        ),
        ({"strategies": ["pofo"]}, "machine: is missing, expected the description of a machine"),
        ({"strategies": ["pofo"], "machine": "gone.json"}, "machine: gone.json: "),
        (
            {"strategies": ["pofo", "autocapper"], "machine": "pair.json"},
            "machine: pair.json: describes 2 devices, and one is offloaded from (pofo needs it)",
        ),
        (
            {"machine": "pair.json"},
            "machine: rotor takes no machine, expected no such key, or a strategy that does (off",
        ),
        (
            {"strategies": ["madpipe"], "machine": "pair.json", "budgets": ["50%"]},
            "budgets: madpipe takes no budgets, expected no such key, or a strategy that does",
        ),
        ({"budgets": ["110%"]}, "budgets[0]: '110%' is above 100%"),
        (
            {"period": 1.0},
            "period: rotor takes no period, expected no such key, or a strategy that",
        ),
        (
            {"k": 2},
            "k: rotor takes no k, expected no such key, or a strategy that does (k_periodic)",
        ),
        ({"stage_recompute": "rotor"}, "stage_recompute: rotor takes no stage_recompute, expec"),
        ({"engine": "cbc"}, "engine: rotor takes no engine, expected no such key, or a strategy"),
        ({"strategies": ["early_free"], "slots": 9}, "slots: early_free takes no slots, expect"),
        ({"slots": 0}, "slots: 0 was found, expected a whole number from 1 to 65536"),
        ({"buffer": True}, "buffer: is no known key, did you mean buffers"),
        ({"strategies": ["rockmate"]}, "options: is missing, expected the options of the blocks"),
        (
            {"strategies": ["rockmate"], "options": "a.arrow"},
            "options: a.arrow is a tightfit.chain, expected a file of the kind tightfit.options",
        ),
        (
            {"options": "options.arrow"},
            "options: none of the strategies takes it, expected no such",
        ),
    ],
)
def test_one_error_is_one_line(chain: dict[str, Any], said: str) -> None:
    models = {"m": {"factory": "a:b"}} if "model" in chain else None
    found = problems(models, **{"files": ["a.arrow"], "strategies": ["rotor"], **chain})
    assert len(found) == 1 and found[0].startswith(said), found


def test_a_link_that_one_strategy_lacks_is_told_with_its_name() -> None:
    third = {"name": "cpu:2", "memory": 10**6}
    last = {"between": ["cpu:1", "cpu:2"], "bandwidth": 1e9}
    row = {**PAIR, "devices": [*PAIR["devices"], third], "links": [*PAIR["links"], last]}
    Path("row.json").write_text(json.dumps(row))
    names = ["one_f_one_b", "madpipe"]
    assert problems(files=["a.arrow"], machine="row.json", strategies=names) == [
        "machine: row.json: has no link between cpu:0 and cpu:2 (madpipe needs it)"
    ]


def test_all_errors_are_told_at_once() -> None:
    chains = {"c": {"files": ["x", "y"], "strategies": ["pofo"], "k": 0}, "d": 3, "bad name": {}}
    with pytest.raises(ConfigError) as caught:
        parse_config({"chains": chains, "models": {"chains": {"factory": "a:b"}}})
    paths = [line.strip().partition(": ")[0] for line in str(caught.value).splitlines()[1:]]
    assert sorted(set(paths)) == [
        "chains.bad name", "chains.bad name.strategies", "chains.c.files[0]", "chains.c.files[1]",
        "chains.c.k", "chains.c.machine", "chains.c.strategies[0]", "chains.d", "models.chains",
    ]  # fmt: skip
