"""What a profile on CUDA depends on, and what is refused there; told on doubles of torch.cuda."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.stages.torch_utils.fake_gpus import Gpus, stand_in
from tightfit.stages.simulate.allocator_settings import MIB, AllocatorSettings, settings_from_build
from tightfit.stages.torch_utils import cuda_settings
from tightfit.stages.torch_utils.devices import describe_device, require_device
from tightfit.util.errors import ConfigError


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    made = stand_in(monkeypatch)
    precision = torch.backends.cuda.matmul.fp32_precision
    yield made
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.use_deterministic_algorithms(False)


def changes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Changes one setting."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if name == "precision":
        matmul.fp32_precision = "tf32"
    elif name == "bf16":
        matmul.allow_bf16_reduced_precision_reduction = False
    elif name == "deterministic":
        torch.use_deterministic_algorithms(True)
    elif name == "warning":
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif name == "cudnn":
        monkeypatch.setattr(cudnn, "deterministic", True)
    else:
        monkeypatch.setenv(*name.split("=", 1))


@pytest.mark.parametrize(
    "name",
    [
        *("precision", "bf16", "deterministic", "warning", "cudnn"),
        "CUBLAS_WORKSPACE_CONFIG=:4096:8",
        "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4",
        "PYTORCH_ALLOC_CONF=max_split_size_mb:64",
        "TORCH_CUBLAS_WORKSPACE_CACHE=1",
    ],
)
def test_a_setting_makes_another_profile(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = describe_device("cuda:1")
    changes(monkeypatch, name)
    assert describe_device("cuda:1").build != before.build
    assert before.name == "GPU 1"


def test_another_driver_makes_another_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    monkeypatch.setattr(cuda_settings, "_DRIVER", version)
    assert "driver 570.86.15" in describe_device("cuda").build


def test_a_precision_of_the_new_kind_is_told_without_asking_the_old_one() -> None:
    """Asking `allow_tf32` then raises."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert cuda_settings.float32_precisions()[0].startswith("float32 tf32")


def test_settings_under_which_memory_cannot_be_foretold_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_device("cuda:1")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with pytest.raises(ConfigError, match=r"torch.backends.cudnn.benchmark is True.* to False"):
        require_device("cuda")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(ConfigError, match="allocator on CUDA is cudaMallocAsync"):
        require_device("cuda")
    require_device("cpu")
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with pytest.raises(ConfigError, match="PYTORCH_NO_CUDA_MEMORY_CACHING is set"):
        require_device("cuda")


def test_settings_of_the_allocator_that_the_prediction_does_not_follow_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8")
    with pytest.raises(ConfigError, match=r"have garbage_collection_threshold:0\.8, which the"):
        require_device("cuda")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    require_device("cuda")


def test_the_settings_that_costs_name_are_those_that_the_allocator_has(
    monkeypatch: pytest.MonkeyPatch, gpus: Gpus
) -> None:
    """The newer variable counts before the older one, what a program set before both."""

    def found() -> AllocatorSettings:
        return settings_from_build(describe_device("cuda").build)

    assert found() == AllocatorSettings()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, large_segment_size_mb:40")
    assert found() == AllocatorSettings(max_split=64 * MIB, large_segment=40 * MIB)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:4]")
    assert found().divisions[15] == 4 and found().max_split is None
    gpus.settings = "expandable_segments:True"
    gpus.expandable = True
    assert found() == AllocatorSettings(expandable=True)
    gpus.settings = "max_split_size_mb:64"
    assert found() == AllocatorSettings(expandable=True, max_split=64 * MIB), "it outlasts them"
    gpus.settings, gpus.expandable = "expandable_segments:False", False
    assert found() == AllocatorSettings()
