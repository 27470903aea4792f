"""Families of timm's and torchvision's models: the smallest model of each, made from nothing."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.battery.case import Case
from tests.conformance.suite import Group, Suite, copy_inputs, seed_everything

BATCH, CLASSES, IMAGE_SIZE, FRAMES = 2, 10, 64, 16
IMAGE_SIZES = {"inception_v3": 96, "raft_small": 128, "mvit_v2_s": 224, "maxvit_t": 224}
"""Other sizes of images, for models of torchvision that need them."""
LARGEST = 200_000_000
"""Parameters; a family without a model so small raises."""

Maker = Callable[[], nn.Module]


def smallest_model(makers: dict[str, Maker]) -> str:
    """The name of the model with the fewest parameters; raises ValueError if these are many."""
    counts: dict[str, int] = {}
    for name, make in makers.items():
        with torch.device("meta"):
            counts[name] = sum(parameter.numel() for parameter in make().parameters())
    name = min(counts, key=counts.__getitem__)
    if counts[name] > LARGEST:
        raise ValueError(f"its smallest model, {name}, has {counts[name]:,} parameters")
    return name


def _case(
    name: str,
    make: Maker,
    *args: Any,
    loss: Callable[[Any], Tensor] | None = None,
    **kwargs: Any,
) -> Case:
    return Case(name, lambda: make().train(), lambda _: copy_inputs((args, kwargs)), loss)


def timm_cases(family: str, seed: int) -> list[Case]:
    """The case of one of timm's families: small images if the model takes them, else its own."""
    import timm

    names = timm.list_models(module=family)
    makers: dict[str, Maker] = {
        name: partial(timm.create_model, name, num_classes=CLASSES) for name in names
    }
    name = smallest_model(makers)
    make: Any = makers[name]
    with torch.device("meta"):
        model: Any = make()
    channels, *size = model.default_cfg["input_size"]
    if not model.default_cfg.get("fixed_input_size"):
        size = [IMAGE_SIZE, IMAGE_SIZE]
    elif "img_size" in inspect.signature(type(model).__init__).parameters:
        make, size = partial(make, img_size=IMAGE_SIZE), [IMAGE_SIZE, IMAGE_SIZE]
    seed_everything(seed)
    return [_case(name, make, torch.randn(BATCH, channels, *size))]


def _timm_groups() -> list[Group]:
    import timm

    families = [name for name in timm.list_modules() if timm.list_models(module=name)]
    return [Group(family, partial(timm_cases, family), ("timm",)) for family in families]


def _make_torchvision(name: str) -> nn.Module:
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    settings = {key: None for key in inspect.signature(builder).parameters if "weights" in key}
    return builder(**settings)


def torchvision_cases(names: Sequence[str], kind: str, seed: int) -> list[Case]:
    """The case of one of torchvision's families; `kind` is the package that it is in."""
    name = smallest_model({name: partial(_make_torchvision, name) for name in names})
    make = partial(_make_torchvision, name)
    size = IMAGE_SIZES.get(name, IMAGE_SIZE)
    seed_everything(seed)
    image = torch.rand(BATCH, 3, size, size)
    if kind == "detection":
        box = {"boxes": torch.tensor([[4.0, 4.0, 40.0, 50.0]]), "labels": torch.tensor([1])}
        box["keypoints"] = torch.ones(1, 17, 3)
        box["masks"] = torch.ones(1, size, size, dtype=torch.uint8)
        targets = [dict(box) for _ in range(BATCH)]
        return [_case(name, make, list(image), targets, loss=lambda losses: sum(losses.values()))]
    if kind == "optical_flow":
        return [_case(name, make, image, image.flip(-1), num_flow_updates=2)]
    if kind == "video":
        image = image[:, :, None].expand(-1, -1, FRAMES, -1, -1).contiguous()
    return [_case(name, make, image)]


def _torchvision_groups() -> list[Group]:
    import torchvision

    families: dict[str, list[str]] = {}
    for name in torchvision.models.list_models():
        family = torchvision.models.get_model_builder(name).__module__
        families.setdefault(family.removeprefix("torchvision.models."), []).append(name)
    return [
        Group(family, partial(torchvision_cases, names, family.rpartition(".")[0]))
        for family, names in families.items()
        if not family.startswith("quantization")  # which train as those without it
    ]


def _missing(package: str) -> str:
    return "" if importlib.util.find_spec(package) else f"{package} is not installed"


VISION_SUITES = (
    Suite("timm", _timm_groups, partial(_missing, "timm")),
    Suite("torchvision", _torchvision_groups, partial(_missing, "torchvision")),
)
