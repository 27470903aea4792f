"""What is told of a configuration before its keys are looked at, and of names and keys that people
mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.schemas.test_config import minimal, problems
from tightfit.schemas.config import parse_config, read_config
from tightfit.util.errors import ConfigError


def told(tmp_path: Path, text: str) -> list[str]:
    """The errors of a file of such text."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    first, *rest = str(caught.value).splitlines()
    return [line.strip() for line in rest] or [first.removeprefix(f"{path}: ")]


def test_a_key_that_is_there_twice_is_named_with_its_lines(tmp_path: Path) -> None:
    text = (
        "models:\n  a: {factory: 'm:f'}\n  a: {factory: 'm:g', ones: true, ones: false}\npair: 1\n"
    )
    assert told(tmp_path, text) == [
        "models.a.ones: is there twice, in lines 3 and 3, expected it once",
        "models.a: is there twice, in lines 2 and 3, expected it once",
        "pair: is no known key, did you mean pairs",
    ]


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    assert told(tmp_path, f"models: {'[' * 3000}")[0] == "is nested too deeply"


def test_an_unprintable_name_stays_on_its_line(tmp_path: Path) -> None:
    [said] = problems({"models": {"a\nb": {"factory": "m:f"}}})
    assert said.startswith("models.a\\nb: is no name to use")


def test_a_value_within_itself_is_refused(tmp_path: Path) -> None:
    found = told(tmp_path, "models: &m\n  a: *m\n")
    assert "models.a: is a value that contains itself, expected none" in found


def test_a_merged_mapping_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "models:\n  a: &a {factory: 'm:f', ones: true}\n  b: {<<: *a, factory: 'm:g'}\n"
    )
    config = read_config(path)
    assert (config.models["b"].factory, config.models["b"].ones) == ("m:g", True)


def test_a_tab_and_a_key_that_yaml_takes_for_false_are_told(tmp_path: Path) -> None:
    assert told(tmp_path, "models:\n\ta: 1\n")[0].endswith("; indent with spaces, not tabs)")
    text = "models: {a: {factory: 'm:f'}}\nchains: {off: {}}\n"
    said = "chains.False: the key False is no text, expected a name; write it in quotes, such as"
    assert any(line.startswith(said) for line in told(tmp_path, text))


def test_a_text_with_a_nul_is_refused(tmp_path: Path) -> None:
    text = "models: {a: {factory: 'm:f'}}\nresults: \"a\\0b\"\n"
    assert told(tmp_path, text) == ["results: has the character NUL, expected none"]


@pytest.mark.parametrize(
    "name", ["chains", "lineage", "logs", "index.html", "index.done", "machine_cpu.json"]
)
def test_a_model_is_named_as_nothing_of_the_results(name: str) -> None:
    assert problems({"models": {name: {"factory": "a:b"}}}) == [
        f"models.{name}: is a name of the results themselves, expected another one"
    ]


def test_faults_of_one_matrix_are_told_beside_another_of_a_wrong_type() -> None:
    twice = {"factory": "a:b", "arguments": {"x": 1}, "matrix": {"x": [1, 2]}}
    wrong = {"factory": "a:b", "matrix": {"x": 1}}
    said = problems({"models": {"twice": twice, "wrong": wrong}})
    assert any("is also in arguments" in each for each in said), said
    assert any(each.startswith("models.wrong.matrix.x: 1 was found") for each in said), said


def test_a_name_of_a_matrix_may_be_too_long() -> None:
    model = {"factory": "a:b", "matrix": {"text": ["x" * 300]}}
    [said] = problems({"models": {"m": model}})
    assert said.endswith("has 307 characters, expected at most 120")


def test_a_chain_has_a_short_name_and_none_of_the_results() -> None:
    model = {"m": {"factory": "a:b"}}
    chain = {"model": "m", "strategies": ["rotor"]}
    [said] = problems({"models": model, "chains": {"lineage": chain}})
    assert said.startswith("chains.lineage: is a name of the results themselves")
    [said] = problems({"models": model, "chains": {"x" * 300: chain}})
    assert said.endswith("has 300 characters, expected at most 120")


@pytest.mark.parametrize("name", ["a" * 20, "x" + "ab-" * 25])
def test_a_name_that_repeats_itself_is_refused_before_snakemake_does(name: str) -> None:
    from snakemake.io import PeriodicityDetector

    detector = PeriodicityDetector()
    part = detector.is_periodic(name)
    [said] = problems({"models": {name: {"factory": "a:b"}}})
    assert f"ends in 20 times {part!r} or more, expected at most 19" in said
    shorter = name.removesuffix("a") if set(name) == {"a"} else name.removesuffix("ab-" * 6)
    assert detector.is_periodic(shorter) is None
    assert parse_config({"models": {shorter: {"factory": "a:b"}}}).models


def test_errors_beyond_the_schema_are_told_beside_those_of_it() -> None:
    document = minimal(kernels="fused", device="h100", hierarchy={"clusters": 20})
    document["models"]["small"] |= {"pairs": 0, "matrix": {"x": [1]}, "arguments": {"x": 2}}
    document["models"]["small"]["budgets"] = ["8GiB", True]
    found = problems(document)
    for start in (
        "hierarchy.top: 12 was found",
        'models.small.kernels: "fused" was found',
        "models.small.matrix.x: is also in arguments",
        "models.small.pairs: 0 was found",
        "models.small.budgets[1]: true was found",
    ):
        assert any(line.startswith(start) for line in found), (start, found)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"strategies": ["rotr"]}, "(did you mean rotor?)"),
        (
            {"optimizer": {"name": "AdamW"}, "samples": [{}, {}], "microbatches": [1, 1]},
            "(did you mean adamw?)",
        ),
        ({"frontier": True}, "expected it at the top of the file, where it is said of all models"),
        (
            {"optimizer": {"name": "sgd"}, "samples": [{}], "microbatches": [1], "joint": True},
            "joint: true was found, expected none beside an optimizer, whose step is one of the "
            "samples",
        ),
    ],
)
def test_what_may_have_been_meant_is_said(keys: dict[str, Any], said: str) -> None:
    found = problems({"models": {"m": {"factory": "a:b", **keys}}})
    assert any(line.endswith(said) for line in found), found


def test_a_machine_of_an_unknown_name_has_the_names_that_are() -> None:
    model = {"factory": "a:b", "strategies": ["offload"], "machine": "H100"}
    [line] = problems({"models": {"m": model}})
    assert "expected a100, h100, " in line or "expected the path" in line
