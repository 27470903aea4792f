"""Models with an optimizer in the configuration: what is declared, and every error at once."""

from __future__ import annotations

import errno
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.test_config import problems
from tightfit.schemas.config import parse_config, require_disks
from tightfit.schemas.config_optimizer_step import select_sample
from tightfit.schemas.machine import MACHINES
from tightfit.util.errors import ConfigError

ADAMW = {"name": "adamw"}


def document(model: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"models": {"step": {"factory": "a:b", **model}}, **changes}


def test_a_step_has_what_is_declared() -> None:
    config = parse_config(
        document(
            {
                "arguments": {"width": 3},
                "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1},
                "parameters": "offload",
                "microbatches": 2,
                "offload": {"disk": "scratch", "second_disk": "slow", "limit": "20GB"},
                "budgets": ["1GiB", "min"],
            }
        )
    )
    model = config.models["step"]
    step = model.optimizer_step
    assert step is not None and model.arguments == {"width": 3}
    assert (step.optimizer, step.settings_json) == ("adamw", '{"lr": 0.001, "weight_decay": 0.1}')
    assert (step.microbatches, step.samples) == ((2,), {"": {"width": 3}})
    assert (step.disk, step.second_disk, step.limit) == ("scratch", "slow", "20GB")
    assert step.parameters == "offload"
    requests = [
        (asked.strategy, asked.budget, asked.directory) for asked in config.requests("step")
    ]
    assert requests == [
        ("optimizer_offload", "1GiB", "1GiB"),
        ("optimizer_offload", "min", "min"),
    ]
    assert config.budget("step", "min") == "min"


def test_samples_of_a_step_are_planned_together() -> None:
    model = {"optimizer": ADAMW, "arguments": {"batch": 1, "width": 3}, "microbatches": [1, 2]}
    config = parse_config(document({**model, "samples": [{"batch": 4}, {"batch": 2}]}))
    assert list(config.models) == ["step"]
    own = config.models["step"]
    assert own.arguments == {"batch": 4, "width": 3}
    assert own.optimizer_step is not None and own.optimizer_step.microbatches == (1, 2)
    assert select_sample(own, "sample_2").arguments == {"batch": 2, "width": 3}
    assert select_sample(own, "eager") is own


@pytest.mark.parametrize("samples", [{}, {"samples": [{"batch": 2}]}])
def test_one_sample_can_have_several_numbers_of_microbatches(samples: dict[str, Any]) -> None:
    model = {"optimizer": ADAMW, "microbatches": [1, 2, 4], **samples}
    step = parse_config(document(model)).models["step"].optimizer_step
    assert step is not None and step.microbatches == (1, 2, 4) and list(step.samples) == [""]


def test_a_model_without_an_optimizer_has_no_step() -> None:
    own = parse_config(document({})).models["step"]
    assert own.optimizer_step is None and select_sample(own, "sample_2") is own


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        (
            {"optimizer": {"lr": 1}},
            {},
            "optimizer.name: is missing, expected sgd, adam or adamw",
        ),
        (
            {"optimizer": {"name": "lamb"}},
            {},
            'optimizer.name: "lamb" was found, expected sgd, adam or adamw',
        ),
        (
            {"optimizer": {"name": ["sgd"]}},
            {},
            'optimizer.name: ["sgd"] was found, expected sgd, adam or adamw',
        ),
        (
            {"optimizer": {"name": "adam", "lr": "1e-3"}},
            {},
            'optimizer.lr: "1e-3" was found, expected a number from 0, such as 1.0e-3 (YAML takes '
            "1e-3 for text)",
        ),
        (
            {"optimizer": {"name": "sgd", "eps": 1.0}},
            {},
            "optimizer.eps: is no setting of sgd, expected one of lr, weight_decay, maximize, "
            "foreach, fused, momentum, dampening, nesterov",
        ),
        (
            {"optimizer": {"name": "sgd", "nesterov": True}},
            {},
            "optimizer.nesterov: true was found, expected momentum above 0 and no dampening beside "
            "it",
        ),
        (
            {"optimizer": {"name": "adam", "betas": [0.9, 1]}},
            {},
            "optimizer.betas[1]: 1 was found, expected a number from 0 to below 1",
        ),
        (
            {"microbatches": 2},
            {},
            "microbatches: is said of a step with its optimizer, expected optimizer beside it, "
            "such as {name: adamw}",
        ),
        (
            {"optimizer": ADAMW, "strategies": ["auto"]},
            {},
            "strategies: are those of models without an optimizer, expected none: one search plans "
            "the whole step",
        ),
        (
            {"optimizer": ADAMW},
            {"kernels": "fused"},
            'kernels: "fused" was found, expected eager beside an optimizer',
        ),
        (
            {"optimizer": ADAMW, "microbatches": []},
            {},
            "microbatches: [] was found, expected a whole number from 1, or a list of them: one "
            "for each of the samples, or any to choose from for one sample",
        ),
        (
            {"optimizer": ADAMW, "samples": [{}, {"batch": 1}]},
            {},
            "microbatches: expected a list with a number for each of the 2 samples beside an "
            "optimizer: so many of each make a step",
        ),
        (
            {"optimizer": ADAMW, "samples": [{}, {"batch": 1}], "microbatches": [1]},
            {},
            "microbatches: [1] was found, expected a number for each of the 2 samples",
        ),
        (
            {"optimizer": ADAMW, "offload": {"limit": "50%"}},
            {},
            "offload.limit: '50%' is a share, expected a size such as 20GB",
        ),
        (
            {"optimizer": ADAMW, "offload": {"disks": "x"}},
            {},
            "offload.disks: is no known key, did you mean disk",
        ),
        (
            {"optimizer": ADAMW, "offload": {"disk": "x"}},
            {"device": "cuda"},
            "offload.disk: expected none on a GPU, whose parameters and states wait in the host's "
            "memory; second_disk is the folder of a disk behind it",
        ),
        (
            {"optimizer": ADAMW, "offload": {"second_disk": "x"}},
            {"device": "cuda:1"},
            "offload.limit: is missing, expected a size such as 20GB of the host's memory beside "
            "second_disk",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_path(
    model: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    assert problems(document(model, **changes)) == [f"models.step.{said}"]


def test_all_that_is_wrong_is_told_at_once() -> None:
    model = {"optimizer": {"name": "sgd", "amsgrad": 1}, "parameters": "gpu", "microbatches": 0}
    found = problems(document({**model, "offload": {"disc": ""}, "kernels": "fused"}))
    assert [line.split(": ")[0] for line in found] == [
        "models.step.kernels",
        "models.step.microbatches",
        "models.step.offload.disc",
        "models.step.optimizer.amsgrad",
        "models.step.optimizer.amsgrad",
        "models.step.parameters",
    ]


def test_the_folders_of_disks_are_there_before_a_run(tmp_path: Path) -> None:
    offload = {"disk": str(tmp_path), "second_disk": str(tmp_path / "slow"), "limit": "1GB"}
    config = parse_config(document({"optimizer": ADAMW, "offload": offload}))
    with pytest.raises(ConfigError) as caught:
        require_disks(config)
    assert str(caught.value) == (
        f"config.yaml: models.step.offload.second_disk: {tmp_path / 'slow'} is no folder, expected "
        "one on the disk: make it first"
    )
    (tmp_path / "slow").mkdir()
    require_disks(config)


def test_the_folders_of_disks_take_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(dir: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    config = parse_config({**document({"optimizer": ADAMW}), "disk": str(tmp_path)})
    require_disks(config)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ConfigError) as caught:
        require_disks(config)
    assert str(caught.value) == (
        f"config.yaml: disk: {tmp_path} takes no files (Read-only file system), expected a folder "
        "to write to"
    )


def test_a_number_of_microbatches_is_named_once() -> None:
    [said] = problems(document({"optimizer": ADAMW, "microbatches": [2, 1, 2]}))
    assert said.startswith("models.step.microbatches: [2, 1, 2] was found, expected each")


def test_a_described_device_needs_its_link(tmp_path: Path) -> None:
    step = {"optimizer": ADAMW}
    [said] = problems(document(step, device="h100"))
    assert said.startswith("device: ") and "names no memory 'host' to offload to" in said
    machine = json.loads((MACHINES / "h100.json").read_text())
    machine["memories"] = [{"name": "host", "memory": 10**12}]
    machine["links"] = [{"between": ["cuda:0", "host"], "bandwidth": 5e10}]
    path = tmp_path / "own.json"
    path.write_text(json.dumps(machine))
    assert parse_config(document(step, device="h100", machine=str(path))).link_machine == path
    assert parse_config(document(step, device=str(path))).link_machine == path
    [said] = problems(document({**step, "offload": {"disk": "x"}}, device=str(path)))
    assert said == (
        "models.step.offload.disk: is measured, expected none where the device is described: its "
        "machine has the memories and links"
    )
    [said] = problems(document(step, machine="none.json"))
    assert said == "machine: none.json: cannot be read (No such file or directory)"
