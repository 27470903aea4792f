"""What of a configuration a rule's job depends on is a parameter that Snakemake compares."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.workflow.conftest import ROOT

FUNCTION = re.compile(r"^def (\w+)\(([^)]*)\):\n((?:(?:    .*)?\n)+)", re.MULTILINE)
DOCSTRING = re.compile(r'^\s*"""(?:.|\n)*?"""')
READS_CONFIGURATION = re.compile(r"\bSETTINGS\b")
LAMBDA = re.compile(
    r"lambda wildcards, (?:input|output|threads)[^:]*:((?:.*\n)(?:(?: {12,}.*| {8}[\])}].*)\n)*)"
)
FILE_PARAMETERS = {"input", "output", "threads"}
COMPARED_OTHERWISE = {"machine_with_link": "link_digest", "linked_machine": "described_link"}
"""Functions of files that read the configuration, and those of parameters that tell its changes."""


@cache
def workflow_functions() -> dict[str, tuple[frozenset[str], str]]:
    """The parameters and the body, without its docstring, of each function of the rules' files."""
    return {
        name: (
            frozenset(each.strip() for each in arguments.split(",")),
            DOCSTRING.sub("", body),
        )
        for path in sorted((ROOT / "workflow/rules").glob("*.smk"))
        for name, arguments, body in FUNCTION.findall(path.read_text())
    }


def functions_of_files() -> list[str]:
    """The functions that take files of a job, which Snakemake does not compare."""
    return sorted(
        name for name, (arguments, _) in workflow_functions().items() if FILE_PARAMETERS & arguments
    )


def named_functions(text: str) -> list[str]:
    """The functions of the rules' files that a text calls or names."""
    return sorted(set(re.findall(r"\b[a-z_]+\b", text)) & workflow_functions().keys())


def called_functions(name: str) -> set[str]:
    """A function with all that it calls or names, and what these call, in the rules' files."""
    found, waiting = set[str](), [name]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += named_functions(workflow_functions()[each][1])
    return found


def readers_of_configuration(name: str) -> list[str]:
    """Which of these read the configuration."""
    return sorted(
        each
        for each in called_functions(name)
        if READS_CONFIGURATION.search(workflow_functions()[each][1])
    )


def test_functions_of_files_are_found() -> None:
    assert {"given_samples", "given_updates", "machine_with_link"} <= {*functions_of_files()}


def test_what_a_function_calls_is_followed() -> None:
    """`linked_machine` asks for a machine, which asks for the model of the configuration."""
    assert {"machine_with_link", "model_of"} <= called_functions("linked_machine")
    assert "model_of" in readers_of_configuration("linked_machine")


@pytest.mark.parametrize("name", sorted({*functions_of_files()} - {*COMPARED_OTHERWISE}))
def test_a_function_of_files_reads_no_configuration(name: str) -> None:
    """What changes there would leave what was made before as it is."""
    assert readers_of_configuration(name) == []


def lambdas_of_files() -> list[str]:
    """The bodies of functions without a name that take files of a job."""
    return [
        body
        for path in sorted((ROOT / "workflow/rules").glob("*.smk"))
        for body in LAMBDA.findall(path.read_text())
    ]


def test_functions_without_a_name_read_no_configuration_either() -> None:
    bodies = lambdas_of_files()
    assert len(bodies) > 5 and any("--workers" in body for body in bodies)
    for body in bodies:
        assert not READS_CONFIGURATION.search(body), body
        assert not [
            each for name in named_functions(body) for each in readers_of_configuration(name)
        ]


@pytest.mark.parametrize("name", COMPARED_OTHERWISE)
def test_where_one_does_so_each_rule_compares_it(name: str) -> None:
    words = COMPARED_OTHERWISE[name]
    for path in sorted((ROOT / "workflow/rules").glob("*.smk")):
        for rule in re.split(r"\n(?=rule |use rule )", path.read_text()):
            if f"={name}," in rule:
                assert f"={words}," in rule, rule
