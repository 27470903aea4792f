"""What `tests/gpu/run.sh` does, part by part, the most telling first.

Plans are those that `python -m tests.gpu.prepare` left in a folder; nothing is planned before the
last part.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.gpu.estimates import START, contestant
from tests.gpu.model_sizes import COMPILE, EAGER, FULL, GRAPHS, PLAN, SAVED, SELECTIVE

ROOT = Path(__file__).parents[2]

STAGES = ("numpy", "pyarrow")
PLANNING = (*STAGES, "numba", "pulp", "highspy")
TESTS = (*PLANNING, "pytest", "hypothesis")

SMALL = ("gpt2", "resnet", "llama")
"""The models of the first part."""
SMALL_SHARE = "75%"
"""Their budget, "most": what cuBLAS keeps is a third of their bytes."""
FRONTIER = 3
"""How many of the commands that plan make the frontier that plans are taken from."""
SHARES = {"half": "50%", "third": "33%", "fifth": "20%"}
"""Budgets by how much of the activations they keep."""
COMPILER = (0.5, 0.33, 0.2, 0.05)
"""Values of the compiler's `activation_memory_budget` whose memory is compared."""
CHOSEN: dict[str, dict[str, str]] = {
    "llama": SHARES,
    "llama3": {FULL: FULL, SELECTIVE: SELECTIVE},
    "gpt2": {"half": "50%"},
    "resnet": {"half": "50%", "fifth": "20%"},
}
"""The budgets of the plans of each model; those that name a way to train are the bytes that it
reserves."""
LINKED = ("gpt2", "fifth")
"""The model and the share of a plan that sends activations to the host."""
LIMIT = 3.0
"""A step is ended after so many times its estimate, and half a minute."""


@dataclass(frozen=True)
class Step:
    """Commands to run, one after the other, within `limit` seconds in all.

    `estimate` are the seconds that it is likely to take. Steps in a row with the same `group` run
    at a time, `width` of them at most. `needs` are packages, `after` the steps whose success it
    builds on, `reads` files that it waits for, `result` a JSON file that it leaves.
    """

    name: str
    commands: Sequence[Sequence[str]]
    limit: float
    needs: Sequence[str] = STAGES
    after: Sequence[str] = ()
    result: Path | None = None
    reads: Sequence[Path] = ()
    estimate: float = 0.0
    group: str = ""
    width: int = 1


@dataclass(frozen=True)
class Asked:
    """What the steps are for: a folder to write, a device, models of a size ("full" or "tiny"), and
    the folder with the plans."""

    out: Path
    device: str
    size: str
    plans: Path

    @property
    def small(self) -> str:
        """The size of the models of the first part."""
        return "small" if self.size == "full" else "tiny"


def steps(asked: Asked) -> list[Step]:
    """All steps in their order."""
    return [
        *_runs(asked),
        *_budgets(asked),
        *_gradients(asked),
        *_speed(asked),
        *_others(asked),
        *_links(asked),
        *_whole(asked),
        *_rest(asked),
    ]


def _runs(asked: Asked) -> list[Step]:
    """Part 1: small models, planned elsewhere, against eager."""
    found = []
    for name in SMALL:
        folder = asked.plans / f"{name}-{asked.small}"
        module, result = folder / "most" / "module", asked.out / name / "validated.arrow"
        words = ["validate", "--factory", f"tests.gpu.models:{name}", "--search-path", ROOT]
        words += ["--arguments", json.dumps({"size": asked.small}), "--device", asked.device]
        words += ["--graph", folder / "graph.arrow", "--plan", folder / "most" / "plan.json"]
        words += ["--module", module, "--pairs", 5, "--out", result]
        found.append(
            Step(
                f"1 {name}: bits, bytes",
                [_python("tests.gpu.validate_module", *words)],
                90,
                result=result.with_suffix(".json"),
                reads=[module],
                estimate=20,
                group="1",
                width=3,
            )
        )
    if _is_gpu(asked):
        small = replace(asked, size=asked.small)
        found.append(_way(small, "llama", EAGER, part=1, group="1"))
        found.append(_way(small, "llama", GRAPHS, "most", part=1, group="1"))
        folders = ["tests/stages/torch_utils", "tests/stages/runtime"]
        found.append(_tests("1 tests of operators", folders, 25))
    return found


def _budgets(asked: Asked) -> list[Step]:
    """Part 2: budgets are kept, beside those of the compiler. Times do not count, so that some run
    at a time."""
    found = [_way(asked, "llama", EAGER, part=2)]
    found += [_way(asked, "llama", PLAN, share, part=2) for share in SHARES]
    budgets = COMPILER if asked.size == "full" else COMPILER[:1]
    found += [_way(asked, "llama", COMPILE, str(budget), part=2) for budget in budgets]
    return [replace(step, group="2", width=3 if _is_gpu(asked) else 2) for step in found]


def _gradients(asked: Asked) -> list[Step]:
    """Part 3: gradients with dropout, against eager with the same random state."""
    found = [_way(asked, "gpt2", EAGER, part=3), _way(asked, "gpt2", PLAN, "half", part=3)]
    budgets = ("0.0", "0.5") if asked.size == "full" else ("0.0",)
    found += [_way(asked, "gpt2", COMPILE, budget, part=3) for budget in budgets]
    return [replace(step, group="3", width=2) for step in found]


def _speed(asked: Asked) -> list[Step]:
    """Part 4: tokens a second in the bytes of checkpointing."""
    found = [_way(asked, "llama3", way, part=4, bits=False) for way in (EAGER, FULL, SELECTIVE)]
    found[2:2] = [_way(asked, "llama3", PLAN, FULL, part=4, bits=False)]
    found += [_way(asked, "llama3", PLAN, SELECTIVE, part=4, bits=False)]
    if _is_gpu(asked):
        found += [
            _way(asked, "llama3", GRAPHS, FULL, part=4, bits=False),
            _way(asked, "llama3", GRAPHS, SELECTIVE, part=4, bits=False),
            _way(asked, "llama3", COMPILE, "1.0", part=4, bits=False),
            _way(asked, "llama3", COMPILE, "0.5", part=4, bits=False),
        ]
    return found


def _others(asked: Asked) -> list[Step]:
    """Part 5: the time of plans of other models; Rockmate's is 1.05 of eager's for GPT2-large at
    half."""
    return [
        _way(asked, "gpt2", EAGER, part=5, bits=False),
        _way(asked, "gpt2", PLAN, "half", part=5, bits=False),
        _way(asked, "resnet", EAGER, part=5),
        *(_way(asked, "resnet", PLAN, share, part=5) for share in CHOSEN["resnet"]),
    ]


def _links(asked: Asked) -> list[Step]:
    """Part 6: the link to the host, a plan that sends activations over one of the speed that was
    described, and `save_on_cpu`."""
    machine = asked.out / "machine.json"
    words = ["machine", "--device", asked.device, "--out", machine]
    words += ["--size", "256MiB" if asked.size == "full" else "1MiB"]
    name, share = LINKED
    return [
        Step("6 link", [_python("tightfit", *words)], 60, result=machine, estimate=15),
        _way(asked, name, PLAN, f"{share}-linked", part=6),
        _way(asked, name, SAVED, part=6),
    ]


def _whole(asked: Asked) -> list[Step]:
    """Part 7: whole steps with AdamW: plain, with the states on the host, and torchao's optimizer,
    which keeps its states there."""
    name = "llama"
    words: list[object] = ["--model", name, "--size", asked.size, "--device", asked.device]
    words += ["--steps", 5 if asked.size == "full" else 2]
    module = asked.plans / f"{name}-{asked.size}" / "third" / "module"
    ways: list[tuple[str, list[object], list[Path], float]] = [
        ("AdamW", [], [], 20),
        ("AdamW at a third, states on the host", ["--module", module], [module], 40),
    ]
    if _is_gpu(asked):
        ways.append(("AdamW of torchao on the host", ["--peer"], [], 30))
    found = []
    for label, more, reads, seconds in ways:
        result = asked.out / name / f"{label.replace(' ', '-').replace(',', '')}.json"
        command = _python("tests.gpu.optimizer_steps", *words, *more, "--out", result)
        found.append(
            Step(
                f"7 {name}: {label}",
                [command],
                120,
                result=result,
                reads=reads,
                estimate=START + seconds,
            )
        )
    return found


def _rest(asked: Asked) -> list[Step]:
    """Part 8: costs as measured, beside the described ones; a plan with these; tests and
    battery."""
    found = []
    for name in ("llama3", "gpt2"):
        found += _measured(asked, name, FULL if name == "llama3" else "half")
    found.append(_planned_there(asked))
    files = (
        ["tests/gpu/test_on_gpu.py"]
        if _is_gpu(asked)
        else ["tests/stages/simulate/test_caching_allocator.py"]
    )
    found.append(_tests("8 tests", files, 90))
    if _is_gpu(asked):
        found.append(
            _tests("8 tests of packages", ["tests/stages/generate", "tests/stages/validate"], 90)
        )
    words = ["tests.battery", "--no-zoo", "--strategies", "recompute", "--device", asked.device]
    few = (
        ["--models", "mlp", "--uses", "outputs"]
        if asked.size == "tiny"
        else ["--fast", "--part", "0/8"]
    )
    found.append(Step("8 battery", [_python(*words, *few)], 240, TESTS, estimate=90))
    return found


def _measured(asked: Asked, name: str, share: str) -> list[Step]:
    """The costs of a model as measured there, each beside the described one, and its plan by these
    costs."""
    folder, place = asked.plans / f"{name}-{asked.size}", asked.out / name / "again"
    graph, costs, compared = folder / "graph.arrow", place / "costs.arrow", place / "compared.json"
    words = [
        "profile",
        "--graph",
        graph,
        "--library",
        asked.out / "store",
        "--device",
        asked.device,
    ]
    words += ["--out", costs]
    comparing = ["--graph", graph, "--costs", costs, "--described", folder / "costs.arrow"]
    profiled = Step(
        f"8 {name}: costs",
        [
            _python("tightfit", *words),
            _python("tests.gpu.compare_costs", *comparing, "--out", compared),
        ],
        120,
        result=compared,
        reads=[graph],
        estimate=35,
    )
    budgets = folder / "budgets.json"
    known = json.loads(budgets.read_text()) if budgets.exists() else {}
    budget = known.get(share, "50%")
    planning = plan_commands(folder / "graph.arrow", costs, place, {share: budget}, 8)
    planned = Step(
        f"8 {name}: planned by these",
        planning,
        240,
        PLANNING,
        [profiled.name],
        estimate=120,
        result=place / share / "plan.json",
    )
    run = _way(asked, name, PLAN, share, part=8, bits=False)
    command = [
        str(place / share / "module") if str(folder) in word else word for word in run.commands[0]
    ]
    again = replace(
        run,
        commands=[command],
        name=f"{run.name} by measured costs",
        after=[planned.name],
        reads=[],
    )
    return [profiled, planned, again]


def plan_commands(
    graph: Path,
    costs: Path,
    place: Path,
    budgets: dict[str, str],
    jobs: int,
    more: Sequence[object] = (),
    strategy: str = "rockmate",
) -> list[list[str]]:
    """The commands that plan a traced model for budgets by name, and write their packages below
    `place`."""
    files = ["--graph", graph, "--costs", costs]
    blocks, options = place / "blocks.arrow", place / "options.arrow"
    frontier = place / f"{strategy}.arrow"
    solving = ["--solver", "highs", "--peaks", 4, "--saves", 6, "--jobs", jobs, "--out", options]
    found = [
        _python("tightfit", "partition", *files, "--out", blocks),
        _python("tightfit", "solve", "--blocks", blocks, "--store", place / "store", *solving),
        _python(
            "tightfit",
            "combine",
            *files,
            "--blocks",
            blocks,
            "--options",
            options,
            "--strategy",
            strategy,
            "--workers",
            jobs,
            *more,
            "--out",
            frontier,
        ),
    ]
    for name, budget in budgets.items():
        at = place / name
        made = ["--schedule", at / "schedule.arrow", "--plan", at / "plan.json"]
        found.append(
            _python(
                "tightfit",
                "select",
                "--frontier",
                frontier,
                *files,
                "--budget",
                budget,
                "--out",
                at,
            )
        )
        found.append(_python("tightfit", "generate", *files[:2], *made, "--out", at / "module"))
    return found


def _planned_there(asked: Asked) -> Step:
    """A small model, planned in one call."""
    words = ["--device", asked.device, "--size", asked.small]
    result = asked.out / "planned.json"
    return Step(
        "8 planned there",
        [_python("tests.gpu.plan_small_model", *words, "--out", result)],
        180,
        PLANNING,
        result=result,
        estimate=90,
    )


def _tests(name: str, files: Sequence[str], seconds: float) -> Step:
    """The tests for CUDA of files and folders."""
    marks = ["-m", "cuda", "-p", "no:cacheprovider", "-rA", "--tb=short"]
    return Step(name, [_python("pytest", *files, *marks)], 2 * seconds, TESTS, estimate=seconds)


def _way(
    asked: Asked,
    name: str,
    way: str,
    setting: str = "",
    part: int = 0,
    bits: bool = True,
    group: str = "",
) -> Step:
    """A way to train a model, measured in a process of its own."""
    timed = 5 if asked.size == "full" else 2
    slug = f"{way}{setting}-{part}".replace(" ", "-")
    result = asked.out / name / f"{slug}.json"
    words: list[object] = [
        "--model",
        name,
        "--size",
        asked.size,
        "--way",
        way,
        "--device",
        asked.device,
    ]
    words += ["--steps", timed, "--out", result, *([] if bits else ["--no-bits"])]
    reads = []
    if way == COMPILE:
        words += ["--budget", setting]
    elif way in (PLAN, GRAPHS):
        reads = [asked.plans / f"{name}-{asked.size}" / setting / "module"]
        words += ["--module", reads[0]]
    seconds = contestant(name, asked.size, way, timed, bits)
    label = " ".join(filter(None, (f"{part} {name}: {way}", setting)))
    command = _python("tests.gpu.contestant", *words)
    return Step(
        label,
        [command],
        LIMIT * seconds + 30,
        result=result,
        reads=reads,
        estimate=seconds,
        group=group,
        width=3 if group else 1,
    )


def _is_gpu(asked: Asked) -> bool:
    return asked.device.startswith("cuda")


def _python(*words: object) -> list[str]:
    return [sys.executable, "-m", *map(str, words)]
