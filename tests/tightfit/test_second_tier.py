"""Plans with states on a disk behind the one that parameters live on: trained as without, in the
bytes predicted of all three memories, or refused."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.tightfit import test_parameter_offload as away
from tests.tightfit.optimizer_steps import alike, check_three_steps, loss
from tests.tightfit.test_host_updates import train_parts
from tests.tightfit.test_parameter_offload import SETTINGS, adamw, deep
from tightfit import GradientOptions, ParameterOffloadOptions
from tightfit.api.plan_arguments import group_samples
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.stages.validate.load import load_offloaded_module, load_package
from tightfit.stages.validate.offloaded_parameters import check_offloaded_step

pytestmark = pytest.mark.usefixtures("traced_once")

ROOM = 45_000
"""Bytes of the second memory: parameters take some 21 kB, their states 36."""


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the second offload tier, beside that of the second one."""
    found = tmp_path_factory.mktemp("far")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIGHTFIT_DISK", str(tmp_path_factory.mktemp("disk")))
        patch.setattr("tightfit.stages.profile.link_cache.CACHED_LINK_BYTES", 4 << 20)
        patch.setattr("tightfit.api.parameter_offload.MIN_OFFLOAD_BYTES", 1 << 10)
        patch.setattr("tightfit.stages.runtime.offload.backward_optimizer.PIECE_BYTES", 512)
        yield found


def made_of(model: Any, args: Any, folder: Path, store: Path, **more: Any) -> Any:
    offload = {"limit": ROOM, "second_path": folder, **more.pop("offload", {})}
    given = {"budget": 200_000, "check": False, **SETTINGS}
    given["offload"] = ParameterOffloadOptions(**offload)
    optimizer = more.pop("optimizer", None) or adamw(model)
    return tightfit.plan(
        model, args, loss=loss, optimizer=optimizer, store=store, **{**given, **more}
    )


@pytest.fixture(scope="module")
def made(folder: Path, store: Path) -> Any:
    """A plan, of which three steps were compared."""
    model, args = deep()
    _, found = made_of(model, args, folder, store, check=True)
    found.optimizer.close()
    return found


@pytest.fixture(scope="module")
def package(made: Any) -> Path:
    """The folder of its package."""
    return Path(made.package)


def test_three_steps_are_those_of_torch_in_the_bytes_predicted(made: Any, folder: Path) -> None:
    plain, args = deep()
    with memory_session("cpu"):
        model = copy.deepcopy(plain)
    expected, whole = adamw(plain), made.optimizer_step
    assert whole.total <= 200_000 and 0 < whole.slow <= ROOM
    assert whole.far > 0 and whole.far_memory == "far-disk"
    assert f"and {whole.far:,} in far-disk/memory" in made.message
    assert "far-disk, pieces of them in the disk" in whole.places["optimizer states"]
    fitted, optimizer = tightfit.load_whole(
        made.package, model, adamw(model), second_offload_path=folder
    )
    own: Any = optimizer
    check_three_steps(fitted, own, plain, expected, args, whole)
    far = own._updates.far.behind.disk.file.fileno()
    near = own._updates.parameter_store.memory.memory.file.fileno()
    assert (os.fstat(near).st_size, os.fstat(far).st_size) == (whole.slow, whole.far)
    assert own.far_bytes == whole.far
    with own.gathered():
        assert all(map(torch.equal, model.parameters(), plain.parameters()))
    own.close()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    assert not list(folder.iterdir())


def test_what_has_room_stays_on_the_first_disk(folder: Path, store: Path) -> None:
    model, args = deep()
    _, roomy = made_of(model, args, folder, store, offload={"limit": 10**9})
    assert roomy.optimizer_step.far == 0 and "second-disk" not in roomy.message
    roomy.optimizer.close()


@pytest.mark.parametrize(
    "use",
    [
        away.test_what_asks_for_values_elsewhere_is_refused_or_right,
        away.test_gradients_of_microbatches_add_up_and_are_clipped,
        away.test_a_forward_without_its_backward_changes_nothing,
        away.test_a_backward_that_is_interrupted_leaves_whole_parameters,
    ],
)
def test_parameters_with_states_there_are_used_as_others(
    use: Any, package: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tightfit, "load_whole", partial(tightfit.load_whole, second_offload_path=folder)
    )
    use(package)


def test_state_dicts_are_those_of_torch(
    package: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tightfit, "load_whole", partial(tightfit.load_whole, second_offload_path=folder)
    )
    away.test_state_dicts_are_those_of_torch(package, tmp_path)


@pytest.mark.long
def test_gradients_of_microbatches_add_up_beside_it(folder: Path, store: Path) -> None:
    model, args = deep()
    plain = copy.deepcopy(model)
    expected = adamw(plain)
    fitted, made = made_of(model, args, folder, store, offload={"limit": 70_000, "microbatches": 2})
    whole = made.optimizer_step
    assert whole.far > 0 and whole.slow <= 70_000 and whole.microbatches == 2
    counts = (2, 3, 1)
    mine = train_parts(fitted, made.optimizer, counts)
    other = train_parts(plain, expected, counts)
    assert all(map(torch.equal, mine, other))
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    assert alike(made.optimizer.state_dict(), expected.state_dict())
    assert made.optimizer.slow_bytes == made.optimizer_step.slow
    made.optimizer.close()


def test_what_cannot_be_is_told(folder: Path, store: Path, package: Path) -> None:
    model, args = deep()

    def refused(words: str, gradients: GradientOptions | None = None, **offload: Any) -> None:
        more = {} if gradients is None else {"gradients": gradients}
        with pytest.raises(tightfit.ConfigError, match=words):
            made_of(model, args, folder, store, offload=offload, **more)

    refused(r"second_path is 7, expected the path of a folder", second_path=7)
    refused(r"GradientOptions all are updated on the device", GradientOptions(accumulate=True))
    refused(r"limit is '50%', expected bytes or a size such as '20GB'", limit="50%")
    refused(r"limit: 'much' is no size", limit="much")
    refused("second_path is '/nowhere', which is no folder: make it", second_path="/nowhere")
    refused("parameters and optimizer states take .* which has 45,000", second_path=None)
    refused("parameters.* take .* in disk/memory, which has 20,000", limit=20_000)
    with pytest.raises(tightfit.ArtifactError, match="name its folder, second_disk"):
        tightfit.load_whole(package, model, adamw(model))
    assert loss(model(*args)).isfinite()


def test_the_check_compares_states_there(folder: Path, store: Path, package: Path) -> None:
    model, args = deep()
    [built], _ = group_samples(model, [(args, {})], loss, None)
    [graph] = store.rglob("graph.arrow")

    def load(twin: Any, own: Any) -> Any:
        return load_offloaded_module(package, twin, own, None, str(folder))

    assert check_offloaded_step(read_graph(graph), built, load, adamw(model)) == ""
    name = f"{load_package(package).__name__}.runtime.offload.second_tier.SecondTier._send"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name, lambda *given: None)
        said = check_offloaded_step(read_graph(graph), built, load, adamw(model))
    assert re.fullmatch(r"In 3 steps of AdamW, .* differs\.", said)
