"""What of a configuration a rule's job depends on is a parameter that Snakemake compares."""

from __future__ import annotations

import re

import pytest

from tests.workflow.conftest import ROOT

FUNCTION = re.compile(r"^def (\w+)\(([^)]*)\):\n((?:(?:    .*)?\n)+)", re.MULTILINE)
READS_CONFIGURATION = re.compile(r"SETTINGS\.|\b(?:carries|\w+_of)\(")
COMPARED_OTHERWISE = {"machine_with_link": "link_digest"}
"""Functions of files that read the configuration, and those of parameters that tell its changes."""


def functions_of_files() -> dict[str, str]:
    """The body of each function that takes files of a job, which Snakemake does not compare."""
    return {
        name: body
        for path in sorted((ROOT / "workflow/rules").glob("*.smk"))
        for name, arguments, body in FUNCTION.findall(path.read_text())
        if {"input", "output", "threads"} & {each.strip() for each in arguments.split(",")}
    }


def test_functions_of_files_are_found() -> None:
    assert {"given_samples", "given_updates", "machine_with_link"} <= set(functions_of_files())


@pytest.mark.parametrize("name", sorted({*functions_of_files()} - {*COMPARED_OTHERWISE}))
def test_a_function_of_files_reads_no_configuration(name: str) -> None:
    """What changes there would leave what was made before as it is."""
    body = functions_of_files()[name]
    assert not READS_CONFIGURATION.search(body), body


@pytest.mark.parametrize("name", COMPARED_OTHERWISE)
def test_where_one_does_so_each_rule_compares_it(name: str) -> None:
    words = COMPARED_OTHERWISE[name]
    for path in sorted((ROOT / "workflow/rules").glob("*.smk")):
        for rule in re.split(r"\n(?=rule |use rule )", path.read_text()):
            if f"={name}," in rule:
                assert f"={words}," in rule, rule
