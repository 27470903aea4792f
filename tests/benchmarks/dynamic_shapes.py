"""`python -m tests.benchmarks.dynamic_shapes`: plans with dynamic dimensions beside plans of one
shape.

Planning takes CPU seconds of a process of its own and its children, on an empty store. A plan is
compared with eager at random sizes: bits of loss, gradients and buffers, and its peak with that of
the simulator. Steps at the largest sizes are those of either plan in processes of their own, in
turns: CPU milliseconds, the median of the medians of processes. Calls are forwards of `layers` at
its largest sizes by both modules that keep everything, in turns. Models of scale `narrow` have the
sizes of `full` and few channels, but for T5 and images of ResNet and ViT. `trainer` trains
DistilBERT on batches padded to their longest row, with a smaller last one, and compares losses and
weights with those of the model on its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.own_process import run_in_own_process
from tests.benchmarks.padded_batches import describe_trainer_run, distilbert

Axes = dict[str, dict[int, Any]]
"""By the name of an argument, its axes with their dimensions or texts."""
HEAD = (
    "| model | ops | planning, s | of one shape | sizes | other bits | peaks | not as predicted | "
    "above the largest | step, ms | of one shape |\n|---|---|---|---|---|---|---|---|---|---|---|"
)

_run = partial(run_in_own_process, "dynamic_shapes")


@dataclass(frozen=True)
class DynamicCase:
    """A model with its keyword arguments at the largest sizes, and their dynamic axes."""

    model: Any
    inputs: dict[str, Any]
    axes: Axes
    budget: str = "50%"


def _scaled(scale: str, small: Any, narrow: Any, full: Any) -> Any:
    """What a scale has of three."""
    return {"small": small, "narrow": narrow, "full": full}[scale]


def _texts(batch: int, tokens: int) -> tuple[Any, dict[int, Any]]:
    """Random ids of a vocabulary of 100, and their axes."""
    import torch
    from torch.export import Dim

    axes = {0: Dim("batch", max=batch), 1: Dim("tokens", min=17, max=tokens)}
    return torch.randint(100, (batch, tokens)), axes


def _gpt2(scale: str) -> DynamicCase:
    from data.models import gpt2

    ids, axes = _texts(*_scaled(scale, (4, 64), (8, 1024), (8, 1024)))
    layers, width = _scaled(scale, (2, 64), (6, 32), (6, 384))
    model, _ = gpt2(layers, width, 2, 100, tokens=ids.shape[1])
    return DynamicCase(
        model, {"input_ids": ids, "labels": ids}, {"input_ids": axes, "labels": axes}
    )


def _llama(scale: str) -> DynamicCase:
    from data.models import llama

    ids, axes = _texts(*_scaled(scale, (4, 64), (8, 1024), (8, 1024)))
    layers, width = _scaled(scale, (2, 64), (2, 32), (6, 384))
    model, _ = llama(layers, width, 4, 100, tokens=ids.shape[1])
    return DynamicCase(
        model, {"input_ids": ids, "labels": ids}, {"input_ids": axes, "labels": axes}
    )


def _distilbert(scale: str) -> DynamicCase:
    """Beside a mask that masks something."""
    import torch

    ids, axes = _texts(*_scaled(scale, (4, 64), (8, 512), (8, 512)))
    model = distilbert(*_scaled(scale, (1, 32), (2, 32), (6, 384)))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 3}
    texts = {"input_ids": axes, "attention_mask": axes, "labels": {0: axes[0]}}
    return DynamicCase(model, inputs, texts)


def _images(batch: int, size: int, channels: int = 3) -> tuple[Any, dict[int, Any]]:
    import torch
    from torch.export import Dim

    return torch.randn(batch, channels, size, size), {0: Dim("batch", max=batch)}


def _vit(scale: str) -> DynamicCase:
    from data.zoo_vision import vit

    pixels, axes = _images(*_scaled(scale, (8, 64), (32, 64), (32, 224)))
    sizes = _scaled(scale, {}, {"width": 32}, {"layers": 12, "width": 384})
    model, _ = vit(**sizes, size=pixels.shape[2])
    return DynamicCase(model, {"pixel_values": pixels}, {"pixel_values": axes})


def _resnet(scale: str) -> DynamicCase:
    from data.models import resnet

    pixels, axes = _images(*_scaled(scale, (6, 64), (32, 32), (32, 224)))
    model, _ = resnet(_scaled(scale, "resnet10", "resnet50", "resnet50"), size=pixels.shape[2])
    return DynamicCase(model, {"x": pixels}, {"x": axes}, _scaled(scale, "80%", "50%", "50%"))


def _t5(scale: str) -> DynamicCase:
    from torch.export import Dim

    from data.zoo_text import t5

    ids, axes = _texts(*_scaled(scale, (4, 64), (8, 256), (8, 512)))
    labels, _ = _texts(ids.shape[0], ids.shape[1] // 2)
    layers, width = _scaled(scale, (2, 64), (2, 32), (6, 256))
    model, *_ = t5(layers, width, 100)
    targets = {0: axes[0], 1: Dim("targets", min=4, max=labels.shape[1])}
    return DynamicCase(
        model, {"input_ids": ids, "labels": labels}, {"input_ids": axes, "labels": targets}
    )


def _unet(scale: str) -> DynamicCase:
    from torch.export import Dim

    from data.zoo_graphs import unet

    image, axes = _images(*_scaled(scale, (4, 64, 1), (4, 256, 1), (8, 256, 1)))
    most = image.shape[2] // 32
    axes = axes | {2: 32 * Dim("height", max=most), 3: 32 * Dim("width", max=most)}
    model, _ = unet(2, *_scaled(scale, (16, 3), (4, 4), (16, 4)))
    return DynamicCase(model, {"image": image}, {"image": axes})


def _layers(scale: str) -> DynamicCase:
    """A few layers, whose calls are short."""
    import torch
    from torch.export import Dim

    width = _scaled(scale, 16, 64, 256)
    layers = [torch.nn.Linear(16, width), torch.nn.Tanh(), torch.nn.Linear(width, 16)]
    model, axes = torch.nn.Sequential(*layers), {0: Dim("rows", max=64)}
    return DynamicCase(model, {"input": torch.randn(64, 16)}, {"input": axes}, "80%")


CASES: dict[str, Callable[[str], DynamicCase]] = {
    "layers": _layers,
    "gpt2": _gpt2,
    "llama": _llama,
    "distilbert": _distilbert,
    "vit": _vit,
    "resnet": _resnet,
    "t5": _t5,
    "unet": _unet,
}


def output_loss(output: Any) -> Any:
    """The loss that a model returns, or the mean square of its logits."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    return getattr(output, "logits", output).square().mean()


def build_case(name: str, scale: str) -> DynamicCase:
    """A case with random weights, in a process of one thread."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return CASES[name](scale)


def plan_case(name: str, scale: str, dynamic: bool, store: Path) -> dict[str, Any]:
    """Plans a case on an empty store."""
    import tightfit

    case = build_case(name, scale)
    before = _cpu_seconds()
    options: dict[str, Any] = {"loss": output_loss, "store": store, "progress": False}
    options["dynamic_shapes"] = case.axes if dynamic else None
    _, plan = tightfit.plan(case.model, (), case.inputs, budget=case.budget, **options)
    return {"seconds": _cpu_seconds() - before, "package": str(plan.package)}


def _cpu_seconds() -> float:
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def check_case(
    name: str, scale: str, package: Path, count: int, peaks: int, seed: int
) -> dict[str, Any]:
    """Compares a plan with eager at random sizes; the first `peaks` of them with its simulation."""
    import torch

    import tightfit
    from tightfit.schemas.graph.dynamic_shapes import graph_dynamic_inputs
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.plan import read_plan
    from tightfit.stages.torch_utils.model_factory import BuiltModel
    from tightfit.stages.torch_utils.sample_sizes import resize_samples

    case = build_case(name, scale)
    path = next(each / "graph.arrow" for each in package.parents if (each / "graph.arrow").exists())
    graph, most = read_graph(path), read_plan(package.with_name("plan.json")).peak
    assert graph.dynamic is not None and most is not None
    inputs = graph_dynamic_inputs(graph)
    built = BuiltModel(case.model, [((), case.inputs)], output_loss, dynamic=inputs)
    planned, chance = tightfit.load(package, copy.deepcopy(case.model)), random.Random(seed)
    wrong, unpredicted, above = [], [], []
    for number in range(count):
        sizes = {one.name: chance.randint(one.smallest, one.largest) for one in inputs.dimensions}
        resized = resize_samples(built, sizes)
        found = [_step(module, resized.samples[0]) for module in (planned, case.model)]
        if not all(map(torch.equal, *found)):
            wrong.append(sizes)
        if number < peaks:
            foretold, taken = _peaks(graph, resized, planned, package, sizes)
            unpredicted += [] if taken == foretold else [(sizes, taken, foretold)]
            above += [] if taken <= most else [(sizes, taken, most)]
    faults = {"wrong": wrong, "unpredicted": unpredicted, "above": above}
    return {"ops": len(graph.ops), **faults}


def _step(module: Any, sample: Any) -> list[Any]:
    """The loss of a step, the gradients of all parameters, and the buffers after it."""
    import torch

    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = output_loss(module(*sample[0], **sample[1]))
    loss.backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [loss.detach(), *gradients, *module.buffers()]


def time_steps(name: str, scale: str, package: Path, count: int) -> float:
    """The CPU milliseconds of a step of a plan at the largest sizes: the median of so many."""
    import tightfit

    case, taken = build_case(name, scale), []
    module = tightfit.load(package, case.model)
    for _ in range(count):
        begin = time.thread_time()
        _step(module, ((), case.inputs))
        taken.append(time.thread_time() - begin)
    return 1e3 * statistics.median(taken[count // 5 :])


def _peaks(
    graph: Any, built: Any, planned: Any, package: Path, sizes: dict[str, int]
) -> tuple[int, int]:
    """The bytes of a step at some sizes as the simulator says, and as measured."""
    import torch

    from tightfit.schemas.costs import Costs
    from tightfit.schemas.graph.dynamic_shapes import graph_at
    from tightfit.schemas.schedule import read_schedule
    from tightfit.stages.profile.measure import measure_random_state
    from tightfit.stages.profile.memory_at_sizes import measure_memory_rows
    from tightfit.stages.simulate.simulate import simulate
    from tightfit.stages.torch_utils.devices import describe_device
    from tightfit.stages.validate.dynamic_sizes import measure_size_peak

    own = graph_at(graph, sizes)
    rows = [*measure_memory_rows(own, output_loss, torch.device("cpu"))]
    rows.append(measure_random_state(torch.device("cpu")))
    costs = Costs(rows, describe_device("cpu"))
    foretold = simulate(own, costs, read_schedule(package.with_name("schedule.arrow"))).peak
    return foretold, measure_size_peak(own, built, planned)


def time_calls(name: str, rounds: int, checks: bool = False) -> float:
    """By how many microseconds a forward of a small model is slower with dynamic dimensions, or
    what checks a call alone: both modules keep everything, so that they run the same operators."""
    import tightfit

    case, modules = build_case(name, "small"), []
    options: dict[str, Any] = {"strategy": "keep_all", "check": False, "progress": False}
    with tempfile.TemporaryDirectory() as store:
        for axes in (case.axes, None):
            model = copy.deepcopy(case.model)
            own = {"loss": output_loss, "dynamic_shapes": axes, "store": store, **options}
            modules.append(tightfit.plan(model, (), case.inputs, **own)[0])
        calls = [
            partial(module_guards(module).gather, module, (), case.inputs)
            if checks
            else partial(module, **case.inputs)
            for module in modules
        ]
        return _paired_difference(calls, rounds)


def module_guards(module: Any) -> Any:
    """What checks the calls of a planned module and gathers its tensors."""
    cells = [cell.cell_contents for cell in type(module).forward.__closure__]
    return next(cell for cell in cells if type(cell).__name__ == "Guards")


def _paired_difference(calls: Sequence[Callable[[], Any]], rounds: int) -> float:
    """By how many microseconds of CPU the first of two calls takes longer: the median of rounds in
    which both run, first one and then the other."""
    import torch

    taken: list[list[float]] = [[], []]
    for number in range(rounds):
        for place in (0, 1) if number % 2 else (1, 0):
            torch.manual_seed(1)
            begin = time.thread_time()
            output = calls[place]()
            taken[place].append(time.thread_time() - begin)
            del output
    differences = [one - other for one, other in zip(*taken, strict=True)]
    return 1e6 * statistics.median(differences[len(differences) // 10 :])


def table_row(name: str, words: list[str], sizes: int, peaks: int, count: int) -> None:
    """Prints the row of a case, for which so many steps are timed, and its faults below."""
    with tempfile.TemporaryDirectory() as folder:
        made = [
            _run("--plan", name, kind, f"{folder}/{kind}", *words) for kind in ("dynamic", "static")
        ]
        wanted = ("--sizes", str(sizes), "--peaks", str(peaks))
        found = _run("--check", name, made[0]["package"], *wanted, *words)
        steps: list[list[float]] = [[], []]
        for place in (0, 1, 1, 0, 0, 1):
            own = ("--time", name, made[place]["package"])
            steps[place].append(_run(*own, "--steps", str(count), *words))
    dynamic, static = (each["seconds"] for each in made)
    faults = [len(found[key]) for key in ("wrong", "unpredicted", "above")]
    planning = f"{dynamic:.1f} | {static:.1f} ({dynamic / static:.2f}x)"
    counts = f"{sizes} | {faults[0]} | {min(peaks, sizes)} | {faults[1]} | {faults[2]}"
    step, other = map(statistics.median, steps)
    times = f"{step:.1f} | {other:.1f} ({step / other:.3f}x)"
    print(f"| {name} | {found['ops']} | {planning} | {counts} | {times} |", flush=True)
    for key in ("wrong", "unpredicted", "above"):
        for fault in found[key][:3]:
            print(f"  {name}, {key}: {fault}", flush=True)


def main() -> None:
    """Prints the table, or what one process of it finds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*CASES, "trainer"]
    parser.add_argument("--models", nargs="*", default=names, choices=names)
    parser.add_argument("--scale", default="full", choices=("small", "narrow", "full"))
    parser.add_argument("--sizes", type=int, default=200, help="random sizes to compare bits at")
    parser.add_argument(
        "--peaks", type=int, default=200, help="of these, sizes to compare peaks at"
    )
    parser.add_argument("--rounds", type=int, default=20000, help="timed calls of each plan")
    parser.add_argument("--seed", type=int, default=0, help="of the random sizes")
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each process")
    parser.add_argument("--plan", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--check", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--time", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--calls", help=argparse.SUPPRESS)
    parser.add_argument("--checks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = options.scale
    if options.plan:
        name, kind, store = options.plan
        print(json.dumps(plan_case(name, scale, kind == "dynamic", Path(store))))
    elif options.check:
        name, package = options.check
        counts = (options.sizes, options.peaks, options.seed)
        found = check_case(name, scale, Path(package), *counts)
        print(json.dumps(found))
    elif options.time:
        name, package = options.time
        print(json.dumps(time_steps(name, scale, Path(package), options.steps)))
    elif options.calls:
        print(json.dumps(time_calls(options.calls, options.rounds, options.checks)))
    else:
        print(HEAD, flush=True)
        for name in (each for each in options.models if each in CASES):
            words = ["--scale", scale, "--seed", str(options.seed)]
            table_row(name, words, options.sizes, options.peaks, options.steps)
        if "layers" in options.models:
            timed = ("--calls", "layers", "--rounds", str(options.rounds))
            more, checks = _run(*timed), _run(*timed, "--checks")
            print(f"a call of layers takes {more:.1f} us more, what checks it {checks:.1f} us")
        if "trainer" in options.models:
            print(describe_trainer_run(scale), flush=True)


if __name__ == "__main__":
    main()
