"""What `tests/gpu/run.sh` does, step by step, the most telling first."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARES = {"half": "50%", "third": "33%", "fifth": "20%"}
"""Budgets by how much of the activations they keep."""

COMPILER = (0.5, 0.2)
"""Values of the compiler's `activation_memory_budget`."""

STAGES = ("numpy", "pyarrow")
PLANNING = (*STAGES, "numba", "pulp", "highspy")
TESTS = (*PLANNING, "pytest", "hypothesis")

NAMES = ("gpt2", "resnet", "llama")

FUSED = "-fused"
"""What the names of models end with whose plans run fused kernels."""
PLANNED = {"plan": "", "graphs": " as CUDA graphs", "linked": " with the link"}
"""Ways to train that run a plan, with what their steps are called beside its budget."""

TIGHT = ("third", "fifth")
"""Budgets at which activations are also sent to the host."""


@dataclass(frozen=True)
class Step:
    """Commands to run, one after the other unless `together`, within `limit` seconds in all.

    `needs` are packages, `after` the steps whose success it builds on, `reads` files that it waits
    for, `result` a JSON file that it leaves.
    """

    name: str
    commands: Sequence[Sequence[str]]
    limit: float
    needs: Sequence[str] = STAGES
    after: Sequence[str] = ()
    result: Path | None = None
    together: bool = False
    reads: Sequence[Path] = ()


@dataclass(frozen=True)
class Asked:
    """What the steps are for: a folder, a device, models of a size ("full" or "tiny")."""

    out: Path
    device: str
    size: str
    strategy: str = "rockmate"


def steps(asked: Asked) -> list[Step]:
    """All steps in their order."""
    found = _tests(asked)
    for name in names(asked):
        found += _model(asked, name)
    found += [_plans(asked), _battery(asked)]
    for name in names(asked):
        found += _budgets(asked, name)
    found += _linked(asked)
    for name in NAMES:
        found += _whole(asked, name)
    if asked.device.startswith("cuda"):
        found += [
            _measured(asked, name, "graphs", share, after=[f"{name}: plan at a {share}"])
            for share in SHARES
            for name in names(asked)
        ]
    return found


def names(asked: Asked) -> list[str]:
    """Of the models, those with fused kernels last; tiny ones are not worth compilers."""
    return [*NAMES, *([f"{name}{FUSED}" for name in NAMES] if asked.size == "full" else [])]


def _python(*words: object) -> list[str]:
    return [sys.executable, "-m", *map(str, words)]


def _tests(asked: Asked) -> list[Step]:
    """The files with tests for CUDA, each a step; their other tests run elsewhere."""
    files = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.cuda" in path.read_text() and path.parent != Path(__file__).parent
    )
    own = "tests/gpu/test_on_gpu.py"
    marks = ["-m", "cuda", "-p", "no:cacheprovider"]
    return [
        Step(f"tests {file}", [_python("pytest", file, *marks)], 240, TESTS)
        for file in [own, *files]
    ]


def _battery(asked: Asked) -> Step:
    """Uses of planned modules beside their originals, in parts at a time."""
    words = ["tests.battery", "--no-zoo", "--strategies", "recompute", "--device", asked.device]
    if asked.size == "tiny":
        return Step(
            "battery", [_python(*words, "--models", "mlp", "--uses", "outputs")], 240, TESTS
        )
    parts = [_python(*words, "--fast", "--part", f"{part}/8") for part in range(8)]
    return Step("battery", parts, 240, TESTS, together=True)


def _model(asked: Asked, name: str) -> list[Step]:
    """One model of the benchmark: planned, and measured beside its rivals."""
    folder = asked.out / name
    graph, costs = folder / "graph.arrow", folder / "costs.arrow"
    blocks, options = folder / "blocks.arrow", folder / "options.arrow"
    files = ("--graph", graph, "--costs", costs)
    fused = name.endswith(FUSED)
    model = name.removesuffix(FUSED)
    factory = ("--factory", f"tests.gpu.models:{model}", "--search-path", ROOT)
    arguments = ("--arguments", json.dumps({"size": asked.size}))
    on = ("--device", asked.device)
    traced = folder / "eager.arrow" if fused else graph
    tracing = ["trace", *factory, *arguments, *on, "--name", name, "--out", traced]
    fusing = ("fuse", "--graph", traced, *on, "--jobs", _jobs(asked), "--out", graph)
    captured = [_python("stages", *tracing)]
    if fused:
        captured = [_python("stages", *tracing, "--channels-last"), _python("stages", *fusing)]
    profiling = ("profile", "--graph", graph, "--library", asked.out / "store", *on, "--out", costs)
    grid = ("--engine", "highs", "--peaks", 4, "--saves", 6, "--jobs", _jobs(asked))
    planning = [
        ("partition", *files, "--out", blocks),
        ("solve", "--blocks", blocks, "--store", asked.out / "store", *grid, "--out", options),
    ]
    rivals = [] if fused else [_measured(asked, name, way) for way in ("eager", "checkpoint")]
    return [
        *rivals,
        Step(f"{name}: trace", captured, 300 if fused else 180),
        Step(f"{name}: profile", [_python("stages", *profiling)], 240, after=[f"{name}: trace"]),
        Step(
            f"{name}: solve",
            [_python("stages", *words) for words in planning],
            240,
            PLANNING,
            [f"{name}: profile"],
        ),
    ]


def _plans(asked: Asked) -> Step:
    """The frontiers of all models at a time: that of a large one takes minutes of one core. What is
    there is not made again."""
    commands = []
    for name in names(asked):
        folder = asked.out / name
        made = folder / "frontier.arrow"
        words: list[object] = ["combine", "--graph", folder / "graph.arrow", "--out", made]
        for kind in ("costs", "blocks", "options"):
            words += [f"--{kind}", folder / f"{kind}.arrow"]
        words += ["--strategy", asked.strategy, "--workers", _jobs(asked)]
        guarded = 'test -e "$0" || { test -e "$1" && shift && exec "$@"; }'
        options = str(folder / "options.arrow")
        commands.append(["bash", "-c", guarded, str(made), options, *_python("stages", *words)])
    return Step("plans", commands, 560, PLANNING, together=True)


def _budgets(asked: Asked, name: str) -> list[Step]:
    """The plans of a model, measured, and the compiler's beside them."""
    folder = asked.out / name
    frontier = folder / "frontier.arrow"
    found: list[Step] = []
    for share, budget in SHARES.items():
        place = folder / share
        commands = _chosen(folder, frontier, budget, place)
        chosen = f"{name}: plan at a {share}"
        result = place / "plan.json"
        found.append(Step(chosen, commands, 120, PLANNING, (), result, reads=[frontier]))
        found.append(_measured(asked, name, "plan", share, after=[chosen]))
    if name.endswith(FUSED):
        return found
    budgets = COMPILER[:1] if asked.size == "tiny" else COMPILER
    found += [_measured(asked, name, "compile", str(budget)) for budget in budgets]
    return found


def _chosen(folder: Path, frontier: Path, budget: str, place: Path) -> list[list[str]]:
    """Takes the plan for a budget from a frontier, and writes its module."""
    files = ("--graph", folder / "graph.arrow", "--costs", folder / "costs.arrow")
    choosing = ("--frontier", frontier, *files, "--budget", budget, "--out", place)
    made = ("--schedule", place / "schedule.arrow", "--plan", place / "plan.json")
    return [
        _python("stages", "choose", *choosing),
        _python("stages", "generate", *files[:2], *made, "--out", place / "module"),
    ]


def _linked(asked: Asked) -> list[Step]:
    """The link to the host (of a CPU, to a disk) as it is measured, and plans that send activations
    over it."""
    machine = asked.out / "machine.json"
    size = "1MiB" if asked.size == "tiny" else "256MiB"
    words = ("machine", "--device", asked.device, "--size", size, "--out", machine)
    found = [Step("link", [_python("stages", *words)], 120)]
    for name in NAMES:
        folder = asked.out / name
        frontier, planning = folder / "linked.arrow", f"{name}: plans with the link"
        given: list[object] = ["--strategy", "offload", "--machine", machine]
        for kind in ("graph", "costs", "blocks", "options"):
            given += [f"--{kind}", folder / f"{kind}.arrow"]
        combining = _python("stages", "combine", *given, "--out", frontier)
        after = ("link", f"{name}: solve")
        found.append(Step(planning, [combining], 400, PLANNING, after))
        for share in TIGHT[-1:] if asked.size == "tiny" else TIGHT:
            label = f"{name}: plan at a {share} with the link"
            place = folder / f"{share}-linked"
            commands = _chosen(folder, frontier, SHARES[share], place)
            found.append(Step(label, commands, 120, PLANNING, [planning], place / "plan.json"))
            found.append(_measured(asked, name, "linked", share, after=[label]))
    return found


def _whole(asked: Asked, name: str) -> list[Step]:
    """Whole steps with AdamW: plain ones, and those of a plan at a third whose states are in the
    host's memory (of a CPU, on a disk); on a GPU also those of one in a third of all bytes whose
    parameters are there, too, and those of torchao's optimiser on the host."""
    words: list[object] = ["--model", name, "--size", asked.size, "--device", asked.device]
    words += ["--steps", 3 if asked.size == "tiny" else 10]
    plain, planned = asked.out / name / "adamw.json", asked.out / name / "whole.json"
    module = asked.out / name / "third" / "module"
    away, peer = asked.out / name / "away.json", asked.out / name / "torchao.json"
    return [
        Step(
            f"{name}: {label}",
            [_python("tests.gpu.whole", *words, *more, "--out", result)],
            180,
            STAGES,
            after,
            result,
        )
        for label, more, after, result in (
            ("AdamW", (), (), plain),
            ("AdamW at a third", ("--module", module), [f"{name}: plan at a third"], planned),
            ("AdamW, parameters away", ("--beside", plain), [f"{name}: AdamW"], away),
            ("AdamW of torchao on the host", ("--peer",), (), peer),
        )
        if result not in (away, peer) or asked.device.startswith("cuda")
    ]


def _measured(
    asked: Asked, name: str, way: str, setting: str = "", after: Sequence[str] = ()
) -> Step:
    """A way to train the model, measured in a process of its own."""
    label = f"{name}: {way} {setting}".strip()
    result = asked.out / name / f"{way}{setting}.json"
    words: list[object] = [
        "--model",
        name.removesuffix(FUSED),
        "--size",
        asked.size,
        "--way",
        way,
        "--out",
        result,
    ]
    words += ["--device", asked.device]
    if way == "compile":
        words += ["--budget", setting]
    elif way in PLANNED:
        words[5] = "plan" if way == "linked" else way
        place = f"{setting}-linked" if way == "linked" else setting
        words += ["--module", asked.out / name / place / "module"]
        label = f"{name}: at a {setting}{PLANNED[way]}"
    command = _python("tests.gpu.contestant", *words)
    limit = 300 if way == "compile" else 180
    return Step(label, [command], limit, STAGES, after, result)


def _jobs(asked: Asked) -> int:
    return 1 if asked.size == "tiny" else 8
