"""Factories: what they may return, and one sentence for what they may not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tightfit.stages.torch_utils.model_factory import build_from_factory, load_factory
from tightfit.util.errors import ModelError

HERE = "tests.stages.torch_utils.test_model_factory"
X = torch.ones(2, 3)


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_without_text() -> object:
    raise WordlessError


def good(width: int = 3) -> object:
    return nn.Linear(3, width), ((X,), {})


def several() -> object:
    return nn.Linear(3, 3), [((X,), {}), ([X + 1], {})], lambda output: output.sum()


def converted() -> object:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3), nn.BatchNorm1d(3))
    model[1].weight = nn.Parameter(torch.ones(3, 4))
    twin = nn.Linear(3, 3, bias=False)
    twin.weight = nn.Parameter(torch.ones(3, 3))
    model.add_module("twin", twin)
    model.add_module("tied", nn.Linear(3, 3, bias=False))
    model.tied.weight = twin.weight  # type: ignore[union-attr]
    return model.double().to(torch.bfloat16).requires_grad_(), ((X.bfloat16(),), {})


def insists_on_data() -> object:
    width = int(torch.tensor([1, 2, 3]).sum().item()) + int(torch.ones(3).sum().item())
    return nn.Linear(3, width), ((X,), {})


def raises() -> object:
    raise ValueError("no luck\nsecond line")


def exits() -> object:
    sys.exit(0)


def changes_folder() -> object:
    os.chdir("/")
    return good()


def returns_none() -> object:
    return None


def no_module() -> object:
    return 3, ((X,), {})


def bad_samples() -> object:
    return nn.Linear(3, 3), (X, {})


def no_samples() -> object:
    return nn.Linear(3, 3), []


def other_shapes() -> object:
    return nn.Linear(3, 3), [((X,), {}), ((X[:1],), {})]


def other_structure() -> object:
    return nn.Linear(3, 3), [((X,), {}), ((), {"input": X})]


def bad_loss() -> object:
    return nn.Linear(3, 3), ((X,), {}), 5


def frozen() -> object:
    return nn.Linear(3, 3).requires_grad_(False), ((X,), {})


def without_values() -> object:
    return nn.Linear(3, 3, device="meta"), ((X,), {})


number = 5


def test_a_factory_is_called_with_its_arguments() -> None:
    built = build_from_factory(f"{HERE}:good", {"width": 5})
    assert isinstance(built.model, nn.Linear) and built.model.out_features == 5
    assert built.fake_mode is None and built.loss is None
    [(args, kwargs)] = built.samples
    assert args[0] is X and kwargs == {}


def test_several_samples_and_a_loss() -> None:
    built = build_from_factory(f"{HERE}:several", {})
    assert len(built.samples) == 2 and isinstance(built.samples[1][0], tuple)
    assert built.loss is not None


def test_without_memory() -> None:
    built = build_from_factory(f"{HERE}:good", {}, fake=True)
    assert built.fake_mode is not None
    assert all(isinstance(parameter, FakeTensor) for parameter in built.model.parameters())


def test_copies_of_layers_are_of_the_same_mode() -> None:
    built = build_from_factory("data.zoo_graphs:transformer", {"layers": 2, "width": 8}, fake=True)
    modes = {id(getattr(weight, "fake_mode", None)) for weight in built.model.parameters()}
    assert modes == {id(built.fake_mode)}


def test_conversions_work_without_memory_and_keep_ties() -> None:
    before = nn.Module._apply
    built = build_from_factory(f"{HERE}:converted", {}, fake=True)
    assert built.fake_mode is not None
    assert {parameter.dtype for parameter in built.model.parameters()} == {torch.bfloat16}
    assert built.model.twin.weight is built.model.tied.weight  # type: ignore[union-attr]
    assert isinstance(built.model.twin.weight, nn.Parameter)  # type: ignore[union-attr]
    assert nn.Module._apply is before


def test_a_factory_that_needs_data_is_called_for_real() -> None:
    built = build_from_factory(f"{HERE}:insists_on_data", {}, fake=True)
    assert built.fake_mode is None
    assert built.model.out_features == 9


def test_the_search_path_is_searched(tmp_path: Path) -> None:
    (tmp_path / "my_models_of_test.py").write_text("def make():\n    return 1\n")
    assert load_factory("my_models_of_test:make", [tmp_path])() == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{HERE}:absent", "has no 'absent'"),
        (f"{HERE}:number", "is no function"),
        ("no_such_package.models:make", "there is no module 'no_such_package'"),
        ("no colon", "not of the form 'package.module:function'"),
        (f"{HERE}:raises", "raises ValueError: no luck"),
        (f"{HERE}:raises_without_text", "raises WordlessError: an exception without a text ("),
        (f"{HERE}:exits", "raises SystemExit: 0 (tests/stages/torch_utils/test_model_factory.py, "),
        (f"{HERE}:returns_none", "returns a NoneType instead of"),
        (f"{HERE}:no_module", "returns an int as its model"),
        (f"{HERE}:bad_samples", "samples that are not"),
        (f"{HERE}:no_samples", "no samples"),
        (f"{HERE}:other_shapes", "sample 1 has a float32 tensor [1, 3]"),
        (f"{HERE}:other_structure", "sample 1 has another structure"),
        (f"{HERE}:bad_loss", "returns an int as its loss"),
        (f"{HERE}:frozen", "requires a gradient"),
        (f"{HERE}:without_values", "on the device 'meta' have no values"),
    ],
)
@pytest.mark.parametrize("fake", [False, True])
def test_one_sentence_for_what_is_wrong(name: str, words: str, fake: bool) -> None:
    with pytest.raises(ModelError) as caught:
        build_from_factory(name, {}, fake=fake)
    text = str(caught.value)
    assert words in text and "\n" not in text and name.split(":")[0] in text


@pytest.mark.parametrize("fake", [False, True])
def test_the_working_directory_stays(fake: bool, tmp_path: Path) -> None:
    before = Path.cwd()
    build_from_factory(f"{HERE}:changes_folder", {}, fake=fake)
    assert Path.cwd() == before
    code = "import os; os.chdir('/'); make = lambda: 1"
    (tmp_path / "module_that_changes_folder.py").write_text(code)
    load_factory("module_that_changes_folder:make", [tmp_path])
    assert Path.cwd() == before


def test_unexpected_arguments_and_devices() -> None:
    with pytest.raises(ModelError, match="raises TypeError"):
        build_from_factory(f"{HERE}:good", {"height": 3})
    with pytest.raises(ModelError, match="is no device"):
        build_from_factory(f"{HERE}:good", {}, device="toaster")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here() -> None:
    with pytest.raises(ModelError, match="not on this machine"):
        build_from_factory(f"{HERE}:good", {}, device="cuda")
