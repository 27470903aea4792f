"""The models of zoo.yaml, in the uses that everybody has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.battery.case import Case
from tightfit.stages.torch_utils.model_factory import Sample, load_factory
from tightfit.stages.validate.training_step import randomize_sample

ROOT = Path(__file__).parents[2]

ZOO_STRATEGIES = ("recompute",)

ZOO_USES = (
    "plain_training",
    "accumulation",
    "other_contents",
    "adamw_inside_backward",
    "two_forwards_then_their_backwards",
    "clipping",
    "moving_average_by_deepcopy",
    "state_saved_and_loaded_in_the_middle",
    "evaluation_between_steps",
    "gradients_kept_by_output_hooks",
    "a_given_gradient_stays_as_it_was",
    "first_output_only",
    "root_forward_hooks",
    "autocast_around",
)


def _case(name: str, entry: dict[str, Any]) -> Case:
    made: list[Any] = []

    def factory() -> tuple[Any, ...]:
        return load_factory(entry["factory"])(**entry.get("arguments", {}))

    def sample(number: int) -> Sample:
        if not made:
            samples = factory()[1]
            made.append(samples[0] if isinstance(samples, list) else samples)
        return randomize_sample(made[0], number)

    return Case(name, lambda: factory()[0], sample)


def _cases() -> tuple[Case, ...]:
    read = yaml.safe_load((ROOT / "zoo.yaml").read_text())
    return tuple(_case(name, entry) for name, entry in read["models"].items())


ZOO = _cases()
