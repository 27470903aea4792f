"""Writes the package of a plan: the step, what it was specialised to, and the runtime."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.costs import RANDOM_STATE_TARGET, Cost, Costs, Device
from schemas.errors import ArtifactError
from schemas.graph import LOSS_TARGET, NONE, Graph, Op
from schemas.module import MADE_FROM, MadeFrom, digests_of, made_from_bytes
from schemas.schedule import Step
from schemas.updates import Updates
from stages.device.groups import register_groups
from stages.generate.check import check_interface
from stages.generate.groups import groups_text
from stages.generate.interface import constants, interface_text
from stages.generate.naming import comment, megabytes
from stages.generate.registry import ATEN, BACKENDS, Backend
from stages.generate.transfers import any_link, any_updates
from stages.generate.watched import watched_bytes
from stages.generate.whole import check_whole, lodging_text, played, whole_files, whole_init
from stages.replay.referee import replay

_RUNTIME = Path(__file__).parent / "runtime"
_COPIED = (
    *("absent.py", "ahead.py", "answers.py", "arrived.py", "call.py", "chain.py"),
    *("difference.py", "facts.py"),
    *("graphed.py", "guards.py", "inner.py", "lists.py", "looks.py", "mismatch.py", "outputs.py"),
    *("places.py", "regions.py", "steps.py", "strides.py", "structure.py", "surroundings.py"),
    "ties.py",
    *("watch.py", "wrap.py"),
)
_DEVICE = Path(__file__).parents[1] / "device"
_SHARED = (
    *("asked.py", "caches.py", "classes.py", "form.py", "kept.py", "readings.py", "states.py"),
    *("trees.py", "written.py"),
)


_MEMORIES = ("disk.py", "memories.py", "slow.py", "streams.py")


def write_package(
    directory: Path, graph: Graph, steps: Sequence[Step], plan: Mapping[str, Any]
) -> None:
    """Writes the package of a plan, whole or not at all; an older one is replaced.

    Raises ScheduleError when the referee refuses the schedule, ArtifactError when graph or plan
    are not what they should be.
    """
    write_directory(directory, package(graph, steps, plan))


def package(
    graph: Graph,
    steps: Sequence[Step],
    plan: Mapping[str, Any],
    write: Backend = BACKENDS[ATEN],
    updates: Updates | None = None,
) -> dict[str, bytes]:
    """The files of the package of a plan, by name, its program as a backend writes it; see
    `write_package`. Where `updates` have parameters in another memory, it is that of a whole step.

    Of the plan it takes strategy, budget, budget_bytes, verdict, sentence, peak and time, and what
    is taken of a GPU ahead of the first step.
    """
    register_groups(graph)
    check_interface(graph)
    check_whole(graph, steps, updates)
    whole = updates if updates is not None and updates.remote else None
    known = any_updates(steps) if whole is None else played(whole)
    replay(graph, timeless(graph), steps, link=any_link(graph), updates=known)
    facts = _facts(plan)
    title = f"The training step of {graph.model} as straight-line code, planned by tightfit."
    more = () if whole is None else (whole,)
    program = write(graph, steps, title, *more)
    texts = {
        "__init__.py": _init(graph, facts, "from .groups import" in program.text),
        "interface.py": interface_text(graph, program),
        "step.py": program.text,
    }
    groups = re.findall(r"^from \.groups import (\w+)$", program.text, re.MULTILINE)
    if groups:
        texts["groups.py"] = groups_text(graph, groups)
    texts |= runtime_files(program.text)
    if whole is not None:
        lodging = lodging_text(graph, steps, whole)
        texts["__init__.py"] = whole_init(graph, lodging, _CONSTANTS, _shown(facts))
        texts |= whole_files()
    files = {name: text.encode() for name, text in texts.items()}
    files["watched.json"] = watched_bytes(graph)
    data = constants(graph, program)
    return files if data is None else files | {"constants.bin": data}


def runtime_files(programs: str) -> dict[str, str]:
    """The texts, by name, of what travels with the text of some programs."""
    texts = {name: (_RUNTIME / name).read_text() for name in _COPIED}
    texts |= {name: (_DEVICE / name).read_text() for name in _SHARED}
    if "from .groups import" in programs:
        texts["grouped.py"] = (_RUNTIME / "grouped.py").read_text()
        texts["kernels.py"] = (_DEVICE / "kernels.py").read_text()
    for name, folder in (("foreign", _RUNTIME), ("repeat", _DEVICE), ("recurrent", _DEVICE)):
        if f"from .{name} import" in programs:
            texts[f"{name}.py"] = (folder / f"{name}.py").read_text()
    if "from .transfers import" in programs:
        texts["transfers.py"] = (_RUNTIME / "transfers.py").read_text()
        texts |= {name: (_DEVICE / name).read_text() for name in _MEMORIES}
    return texts


def infeasible_package(plan: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a plan that does not exist: its `load` says why."""
    facts = _facts(plan)
    return {"__init__.py": _INFEASIBLE.format(**_shown(facts)).encode()}


def signed(files: Mapping[str, bytes], graph: str, schedule: str, plan: str) -> dict[str, bytes]:
    """The files of a package with the one that names what they were made from, by digest, and
    themselves: see `schemas.module`."""
    made_from = MadeFrom(graph, schedule, plan, digests_of(files))
    return {**files, MADE_FROM: made_from_bytes(made_from)}


def write_directory(directory: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a new directory that then takes its place.

    Raises ArtifactError where that cannot be done; an older directory is then still there, and
    nothing else is.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            fresh.chmod(0o755)
            for name, data in sorted(files.items()):
                with (fresh / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            _take_place(fresh, directory)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        raise ArtifactError(
            f"{directory}: cannot be written ({error.strerror or error})"
        ) from error


def _take_place(fresh: Path, directory: Path) -> None:
    if not directory.exists():
        fresh.replace(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        directory.replace(old)
        fresh.replace(directory)
    except OSError:
        if not directory.exists():
            old.replace(directory)
        raise
    finally:
        if directory.exists():
            shutil.rmtree(old, ignore_errors=True)


def timeless(graph: Graph) -> Costs:
    """Costs for the referee where only the order of steps and the sizes of storages matter."""
    return _Timeless(graph)


class _Timeless(Costs):
    def __init__(self, graph: Graph) -> None:
        super().__init__([], Device(graph.device, "", graph.torch, 0, "none"))

    def of(self, graph: Graph, op: Op, in_place: int = NONE) -> Cost:
        if op.target == LOSS_TARGET:
            storages = {graph.values[value].storage for value in op.outputs if value != NONE}
            size = sum(graph.storages[storage] for storage in storages)
            return Cost("", op.target, NONE, 0.0, 0.0, size, size)
        return Cost("", op.target, in_place, 0.0, 0.0, 0, 0)

    def random_state(self) -> Cost:
        return Cost("", RANDOM_STATE_TARGET, NONE, 0.0, 0.0, 0, 0)


_FACTS: dict[str, tuple[type, ...]] = {
    "strategy": (str,),
    "budget": (str,),
    "budget_bytes": (int, type(None)),
    "verdict": (str,),
    "sentence": (str,),
    "peak": (int, type(None)),
    "time": (int, float, type(None)),
}


def _facts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the package says of its plan; raises ArtifactError naming what is wrong with it."""
    facts = {}
    for name, kinds in _FACTS.items():
        fact = plan.get(name)
        if not isinstance(fact, kinds) or isinstance(fact, bool):
            raise ArtifactError(f"plan.json: {name!r} is {json.dumps(fact)}, which it cannot be")
        if isinstance(fact, float) and not math.isfinite(fact):
            raise ArtifactError(f"plan.json: {name!r} is not finite")
        facts[name] = fact
    return facts | {"arena": _arena(plan)}


def _arena(plan: Mapping[str, Any]) -> int:
    """The bytes that a plan takes of a GPU ahead of its first step."""
    gpu = plan.get("gpu")
    arena = gpu.get("arena", 0) if isinstance(gpu, Mapping) else 0
    if not isinstance(arena, int) or isinstance(arena, bool) or arena < 0:
        raise ArtifactError(f"plan.json: 'gpu.arena' is {json.dumps(arena)}, which it cannot be")
    return arena


def _shown(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(fact) for name, fact in facts.items()}


def _init(graph: Graph, facts: Mapping[str, Any], grouped: bool) -> str:
    peak = "unknown" if facts["peak"] is None else megabytes(facts["peak"])
    return _INIT.format(
        model=comment(graph.model),
        about=comment(facts["budget"]),
        mb=peak,
        groups=_GROUPED_IMPORTS if grouped else "",
        prepared=_PREPARED if grouped else "",
        **_shown(facts),
    )


_CONSTANTS = """STRATEGY = {strategy}
BUDGET = {budget}
BUDGET_BYTES = {budget_bytes}
VERDICT = {verdict}
SENTENCE = {sentence}
PREDICTED_PEAK = {peak}
PREDICTED_SECONDS = {time}
ARENA = {arena}
"""

_GROUPED_IMPORTS = """from .grouped import prepare
from .groups import GROUPS
"""
_PREPARED = """    prepare(GROUPS, INTERFACE.device)
"""

_INIT = (
    '''"""A training step of {model}, planned by tightfit for the budget {about}.

`load(model)` gives a module that takes the place of the model. The step allocates at most
{mb} above parameters, buffers and inputs. Sizes are in bytes.
"""

{groups}from .interface import INTERFACE
from .step import step
from .wrap import PlanMismatch, wrap

__all__ = ["PlanMismatch", "load"]

'''
    + _CONSTANTS
    + '''

def load(model, otherwise="error", cuda_graphs=False):
    """A module that takes the place of `model` and trains inside the budget.

    It is of the model's class, shares all its state, and is called as the model is. In the other
    mode (`eval()`), and where no gradient is wanted, it runs the model's own forward. A call that
    differs from what the plan was made for raises PlanMismatch or, with otherwise="original", runs
    the model's own forward: so do hooks on submodules, which are not called, and attributes,
    globals and settings that the plan's trace read and that have changed since. With
    otherwise="copy" inputs that only lie otherwise in memory than the sample's are copied into its
    strides: the step gives what the model gives for the copies, which may differ in last bits from
    what it gives for them as they are. Any other call that differs raises PlanMismatch.

    With `cuda_graphs`, on a GPU, the step is launched as CUDA graphs from the second call on, which
    takes one more time the bytes of inputs, outputs and the gradients of these. RuntimeError says
    why where it cannot be. ARENA bytes of a GPU are taken and given back ahead of the first step,
    in one piece, from which PyTorch's allocator then serves the steps.
    """
{prepared}    return wrap(model, INTERFACE, step, otherwise, load, cuda_graphs, ARENA)
'''
)

_INFEASIBLE = (
    '''"""A budget that no plan fits: `load` says why."""

'''
    + _CONSTANTS
    + '''

def load(model, otherwise="error", cuda_graphs=False):
    """Raises RuntimeError: there is no plan."""
    raise RuntimeError(SENTENCE)
'''
)
