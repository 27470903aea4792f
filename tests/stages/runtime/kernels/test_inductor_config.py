"""Settings of inductor that bits depend on are those of kernels, whatever a process has set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config

from tightfit.stages.runtime.kernels import inductor_config as device_pins
from tightfit.stages.runtime.kernels.compile import (
    check_compiler,
    compile_function,
    pin_inductor_config,
)
from tightfit.stages.runtime.kernels.inductor_config import current_setting, pinned_settings

CPU = torch.device("cpu")


def another(value: Any) -> Any:
    """A value that a setting does not have."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    return {"other": {}} if isinstance(value, dict) else "another"


def test_settings_of_the_process_are_not_those_of_kernels() -> None:
    for device in ("cpu", "cuda"):
        wanted = pinned_settings(config, device)
        assert wanted["deterministic"] == (device == "cuda")
        theirs = {name: another(value) for name, value in wanted.items()}
        with config.patch(theirs):
            assert all(current_setting(config, name) == theirs[name] for name in wanted)
            with pin_inductor_config(torch.device(device)):
                assert {name: current_setting(config, name) for name in wanted} == wanted
            assert all(current_setting(config, name) == theirs[name] for name in wanted)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="names are those of 2.13")
def test_this_build_knows_all_pinned_settings() -> None:
    assert set(device_pins._BUILD_DEFAULTS) | set(device_pins._ENVIRONMENT_DEFAULTS) == set(
        pinned_settings(config, "cpu")
    )


def test_a_setting_that_the_environment_forces_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vars(config)["_config"]["disabled_passes"], "env_value_force", "all")
    for refused in (
        lambda: compile_function("it", lambda: [], [], [], CPU),
        lambda: check_compiler(CPU),
    ):
        with pytest.raises(
            RuntimeError, match=r"sets disabled_passes of .* to 'all', .*: unset it"
        ):
            refused()


def test_no_setting_that_is_read_from_the_environment_is_taken_from_there() -> None:
    """What a build comes with is taken for settings that nothing in the environment changes."""
    text = Path(config.__file__).read_text()
    read = {
        name
        for part in ast.parse(text).body
        for name, value in _assigned(part)
        if re.search("environ|getenv|_env|env_name", ast.unparse(value))
    }
    assert {"max_autotune", "cpp.min_chunk_size", "triton.multi_kernel"} <= read
    assert not read & set(device_pins._BUILD_DEFAULTS)


def _assigned(part: ast.stmt, prefix: str = "") -> Iterator[tuple[str, ast.expr]]:
    """The settings that a statement of inductor's configuration gives values."""
    if isinstance(part, ast.ClassDef):
        for inner in part.body:
            yield from _assigned(inner, f"{part.name}.")
    elif isinstance(part, ast.AnnAssign | ast.Assign) and part.value is not None:
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        yield from ((prefix + ast.unparse(target), part.value) for target in targets)
