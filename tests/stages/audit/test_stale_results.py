"""What a configuration does not ask for any more is told, and removed if a run made all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from tests.stages.audit.towers import BUDGETS, MODEL, POINT
from tightfit.__main__ import main
from tightfit.schemas.config import read_config
from tightfit.stages.audit.stale_results import RESULT_FILES, find_stale_results

OTHER = f"{MODEL}/rockmate/{BUDGETS['1kB']}"


def configure(model: str = "tower", strategy: str = "rockmate", *budgets: str) -> None:
    """Writes a configuration that asks for plans of one model and strategy."""
    document = {
        "models": {model: {"factory": "towers:tower"}},
        "strategies": [strategy],
        "budgets": list(budgets or BUDGETS),
    }
    Path("config.yaml").write_text(yaml.safe_dump(document))


def listed(folder: str = ".") -> set[str]:
    return {str(path) for path in Path(folder).rglob("*") if "__pycache__" not in path.parts}


def test_nothing_is_left_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    before = listed()
    capsys.readouterr()
    assert main(["prune"]) == 0
    assert capsys.readouterr().out == "results: nothing is left over\n"
    assert listed() == before


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        (("tower", "rockmate", "80%"), OTHER),
        (("tower", "rotor"), f"{MODEL}/rockmate"),
        (("house",), MODEL),
    ],
    ids=["budget", "strategy", "model"],
)
def test_what_left_the_configuration_is_removed(
    run: Path, asked: tuple[str, ...], gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(*asked)
    before = listed()
    capsys.readouterr()
    assert main(["prune", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{gone}: is left over\n"
    assert listed() == before
    assert main(["prune"]) == 0
    assert capsys.readouterr().out == f"{gone}: removed\n"
    expected = {path for path in before if not (path == gone or path.startswith(f"{gone}/"))}
    assert listed() == expected


@pytest.mark.parametrize("place", ["", "module/", "lineage/", "logs/"])
def test_what_no_run_wrote_stays_with_its_folder(
    run: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("tower", "rockmate", "80%")
    notes = Path(OTHER, place, "notes")
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("mine")
    before = listed()
    capsys.readouterr()
    assert main(["prune"]) == 1
    said = capsys.readouterr().err
    assert said == f"tightfit prune: {OTHER}: is kept, since {notes} is not of a run\n"
    assert listed() == before


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_links_are_not_followed(
    run: Path, whole: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("tower", "rockmate", "80%")
    elsewhere = tmp_path / "elsewhere"
    if whole:
        Path(OTHER).rename(elsewhere)
        Path(OTHER).symlink_to(elsewhere)
    else:
        elsewhere.mkdir()
        (elsewhere / "graph.arrow").touch()
        Path(OTHER, "logs").symlink_to(elsewhere)
    before = listed(str(elsewhere))
    assert main(["prune"]) == (0 if whole else 1)
    assert listed(str(elsewhere)) == before and elsewhere.exists()


def test_folders_of_others_are_not_left_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    Path("results/pictures").mkdir()
    Path("results/pictures/one.png").touch()
    Path(f"{MODEL}/thoughts").mkdir()
    capsys.readouterr()
    assert main(["prune"]) == 0
    assert capsys.readouterr().out == "results: nothing is left over\n"


def test_an_audit_tells_what_is_left_over_and_does_not_judge_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("tower", "rockmate", "80%")
    plan = Path(OTHER, "plan.json")
    plan.write_text(plan.read_text().replace("rockmate", "rotor"))
    capsys.readouterr()
    assert main(["audit", "results"]) == 1
    capsys.readouterr()
    assert main(["audit", "results", "--configuration", "config.yaml"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"{OTHER}: is left over, the configuration does not ask for it"
    assert "1 plan," in last
    plan = Path(POINT, "plan.json")
    plan.write_text(plan.read_text().replace("rockmate", "rotor"))
    assert main(["audit", "results", "--configuration", "config.yaml"]) == 1


def test_all_that_the_rules_write_is_known() -> None:
    rules = (Path(__file__).parents[3] / "workflow" / "rules").glob("*.smk")
    written = re.findall(r"(?:MODEL|STRATEGY|POINT|PIPELINE)\}/([a-z.]+\.[a-z]+)", _text(rules))
    assert "hierarchy.arrow" in written and "measurement.arrow" in written
    assert set(written) <= RESULT_FILES


def _text(paths: Iterable[Path]) -> str:
    return "\n".join(path.read_text() for path in paths)


def test_a_bad_configuration_removes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = listed()
    assert main(["prune"]) == 1
    assert "config.yaml: cannot be read" in capsys.readouterr().err
    Path("config.yaml").write_text("models: {}")
    assert main(["prune"]) == 1
    assert {*listed()} == {*before, "config.yaml"}


def test_what_was_planned_beside_fused_kernels_is_left_over_with_them(run: Path) -> None:
    beside = Path(MODEL, "eager")
    for place in ("rockmate/80pct", "rockmate/7pct", "rotor/80pct"):
        (beside / place).mkdir(parents=True)
        (beside / place / "plan.json").touch()
    (beside / "graph.arrow").touch()
    configure("tower", "rockmate", "80%")
    assert set(find_stale_results(read_config("config.yaml"))) == {beside, Path(OTHER)}
    text = Path("config.yaml").read_text()
    Path("config.yaml").write_text(f"{text}kernels: fused\n")
    assert set(find_stale_results(read_config("config.yaml"))) == {
        Path(OTHER), beside / "rockmate/7pct", beside / "rotor"
    }  # fmt: skip
