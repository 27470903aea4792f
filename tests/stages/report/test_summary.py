"""The table of plans, of which some are not there yet."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from schemas.running import held
from stages.__main__ import UNENDED, main


def test_a_folder_without_plans_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path} has no plans yet\n"


def test_a_plan_that_a_stage_works_on_is_running_and_has_not_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    model = {"factory": "nowhere:model", "strategies": ["rotor"], "budgets": ["50%"]}
    config.write_text(yaml.safe_dump({"models": {"a": model}, "results": str(tmp_path)}))
    log = tmp_path / "a/rotor/logs/given.txt"
    log.parent.mkdir(parents=True)
    log.write_text(f"combine: {UNENDED}\n")

    def table() -> str:
        assert main(["summary", "--configuration", str(config)]) == 0
        return capsys.readouterr().out

    with held(log):
        said = table()
    assert "running" in said and "failed" not in said and UNENDED not in said
    killed = table()
    assert "failed" in killed and UNENDED in killed and "running" not in killed
