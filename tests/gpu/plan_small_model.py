"""Plans a small model in one call, `tightfit.plan`, which also checks it: `python -m
tests.gpu.plan_small_model`."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import tightfit
from tests.gpu.models import made_on
from tightfit.stages.torch_utils.model_factory import BuiltModel, move_built_model


def main() -> None:
    """Writes the sentence of the plan and how long it took."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.plan_small_model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    model, sample = made_on(asked.device, "llama", asked.size)
    built = move_built_model(BuiltModel(model, [sample]), asked.device)
    args, kwargs = built.samples[0]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as store:
        _, made = tightfit.plan(built.model, tuple(args), kwargs, budget="min", store=store)
    seconds = time.perf_counter() - started
    asked.out.write_text(
        json.dumps({"told": f"{made.message} ({seconds:.0f} s)", "seconds": seconds})
    )


if __name__ == "__main__":
    main()
