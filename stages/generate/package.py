"""Writes the package of a plan: the step, what it was specialized to, and the runtime."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tightfit.schemas.actions import LinkAction
from tightfit.schemas.costs import RANDOM_STATE_TARGET, Costs, OpCost, ProfileDevice
from tightfit.schemas.graph.fused_groups import is_fused_group
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, Op
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.package_manifest import (
    MANIFEST_NAME,
    PackageManifest,
    content_digests,
    manifest_bytes,
)
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.generate.backends import ATEN, BACKENDS, ProgramBackend
from tightfit.stages.generate.dynamic_sizes import SMALL_SIZES_PREFIX
from tightfit.stages.generate.graph_guards import check_interface, guard_file_bytes
from tightfit.stages.generate.group_source import compile_library_file, groups_text
from tightfit.stages.generate.interface import constants_bytes, interface_text
from tightfit.stages.generate.optimizer_step import (
    MICROBATCH_PREFIX,
    MicrobatchSchedule,
    check_microbatches,
    check_optimizer_step,
    offload_spec_text,
    optimizer_init_text,
    zero_time_updates,
)
from tightfit.stages.generate.package_init import (
    PLAN_CONSTANTS,
    eager_plan_text,
    format_facts,
    infeasible_text,
    init_text,
    plan_facts,
)
from tightfit.stages.generate.runtime_files import runtime_files
from tightfit.stages.generate.transfers import placeholder_updates, unlimited_link
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.fused_group_operators import register_groups
from tightfit.util.errors import ArtifactError
from tightfit.util.progress import ProgressCallback

EAGER_PREFIX = "eager_"
"""What the names of the files of the plan of eager's kernels begin with, where it is beside."""


class PlannedGraph(NamedTuple):
    """A plan with the graph and the steps that it is of; see `package` for what `plan` says."""

    graph: Graph
    steps: Sequence[ScheduleStep]
    plan: Mapping[str, Any]
    updates: OptimizerPlan | None = None


def write_package(
    directory: Path, graph: Graph, steps: Sequence[ScheduleStep], plan: Mapping[str, Any]
) -> None:
    """Writes the package of a plan, whole or not at all; an older one is replaced.

    Raises ScheduleError when the simulator refuses the schedule, ArtifactError when graph or plan
    are not what they should be.
    """
    write_directory(directory, build_package(graph, steps, plan))


def build_package(
    graph: Graph,
    steps: Sequence[ScheduleStep],
    plan: Mapping[str, Any],
    write: ProgramBackend = BACKENDS[ATEN],
    updates: OptimizerPlan | None = None,
    beside: PlannedGraph | None = None,
    report_libraries: ProgressCallback | None = None,
    adding: MicrobatchSchedule = None,
) -> dict[str, bytes]:
    """The files of the package of a plan, by name, its program as a backend writes it; see
    `write_package`. Where `updates` have parameters in an offload target, it is that of a whole
    step.

    Of the plan it takes strategy, budget, budget_bytes, status, message, peak and time, and what
    is taken of a GPU ahead of the first step. Where the plan runs groups, the plan `beside` of
    eager's kernels goes along, and with `report_libraries`, which is told how many are done, the
    groups' compiled libraries, which are compiled here (RuntimeError in a sentence where they
    cannot be). With dynamic shapes the plan `beside` takes calls of small sizes. Of several
    microbatches those that are not the last one run another schedule, `adding`.
    """
    register_groups(graph)
    _check_dynamic_step(graph, steps, updates)
    small = beside if graph.dynamic is not None else None
    facts = plan_facts(plan)
    whole = updates if updates is not None and updates.has_program else None
    check_optimizer_step(graph, steps, updates)
    program, files = _program_files(graph, steps, write, whole, small=small)
    if whole is not None:
        check_microbatches(whole, adding)
    if adding is not None:
        others, adds = adding
        check_optimizer_step(graph, others, adds)
        more, own = _program_files(graph, others, write, adds, MICROBATCH_PREFIX)
        files |= {
            name: own[name]
            for name in (f"{MICROBATCH_PREFIX}interface.py", f"{MICROBATCH_PREFIX}step.py")
        }
        program += more
    if small is not None:
        more, own = _program_files(small.graph, small.steps, write, None, SMALL_SIZES_PREFIX)
        files |= {
            name: own[name]
            for name in (f"{SMALL_SIZES_PREFIX}interface.py", f"{SMALL_SIZES_PREFIX}step.py")
        }
        program += more
    groups = re.findall(r"^from \.groups import (\w+)$", program, re.MULTILINE)
    if groups:
        library = (
            None
            if report_libraries is None
            else compile_library_file(graph, groups, report_libraries)
        )
        files["groups.py"] = groups_text(graph, groups, library).encode()
        files |= {} if library is None else {library.name: library.data}
    if groups and beside is not None:
        _check_eager_plan(graph, beside.graph)
        own = plan_facts(beside.plan)
        _, eagers = _program_files(beside.graph, beside.steps, write, None, EAGER_PREFIX)
        files |= eagers | {"eager.py": eager_plan_text(beside.graph, own).encode()}
    if whole is None:
        entry = init_text(graph, facts, bool(groups), bool(groups) and beside is not None)
    else:
        spec = offload_spec_text(graph, steps, whole, adding)
        shown = format_facts(facts)
        entry = optimizer_init_text(graph, spec, PLAN_CONSTANTS, shown, adding is not None)
    files["__init__.py"] = entry.encode()
    files["plan.json"] = (json.dumps(plan, indent=2) + "\n").encode()
    modules = [data.decode() for name, data in files.items() if name.endswith(".py")]
    return files | runtime_files(modules)


def _check_dynamic_step(
    graph: Graph, steps: Sequence[ScheduleStep], updates: OptimizerPlan | None
) -> None:
    """Raises ArtifactError where a step has one size for what differs from call to call."""
    if graph.dynamic is None:
        return
    sends = any(isinstance(step.action, LinkAction) for step in steps)
    if sends or updates is not None or any(is_fused_group(op.target) for op in graph.ops):
        raise ArtifactError(
            "a plan with dynamic shapes sends no tensors away, has no optimizer and runs no fused "
            "groups for now: plan without dynamic_shapes"
        )


def _check_eager_plan(graph: Graph, beside: Graph) -> None:
    """Raises ArtifactError where a graph is not of the same call by eager's kernels."""
    if any(is_fused_group(op.target) for op in beside.ops):
        raise ArtifactError("the plan that shall be beside runs groups, too")
    if _call_signature(beside) != _call_signature(graph):
        raise ArtifactError("the plan that shall be beside is of another model, call or device")


def _call_signature(graph: Graph) -> tuple[Any, ...]:
    """What a module is called with, and where."""
    inputs = [
        None if value == NO_VALUE else (graph.values[value].shape, graph.values[value].dtype)
        for value in graph.inputs
    ]
    return graph.device, inputs, graph.input_constants, graph.input_tree, graph.output_tree


def _program_files(
    graph: Graph,
    steps: Sequence[ScheduleStep],
    write: ProgramBackend,
    whole: OptimizerPlan | None = None,
    prefix: str = "",
    small: PlannedGraph | None = None,
) -> tuple[str, dict[str, bytes]]:
    """The text of a program, and its files by name, which begin with `prefix`; `small` is a second
    plan of it for small sizes of calls."""
    check_interface(graph)
    known = placeholder_updates(steps) if whole is None else zero_time_updates(whole)
    simulate(graph, zero_time_costs(graph), steps, link=unlimited_link(graph), updates=known)
    title = f"The training step of {graph.model} as straight-line code, planned by tightfit."
    more = () if whole is None else (whole,)
    program = write(graph, steps, title, *more)
    files = {
        "interface.py": interface_text(graph, program, prefix, small and small.graph).encode(),
        "step.py": program.text.encode(),
        "guards.json": guard_file_bytes(graph),
    }
    data = constants_bytes(graph, program)
    files |= {} if data is None else {"constants.bin": data}
    return program.text, {f"{prefix}{name}": content for name, content in files.items()}


def infeasible_package(plan: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a plan that does not exist: its `load` says why."""
    return {"__init__.py": infeasible_text(plan_facts(plan)).encode()}


def add_lineage_file(
    files: Mapping[str, bytes], graph: str, schedule: str, plan: str
) -> dict[str, bytes]:
    """The files of a package with the one that names what they were made from, by digest, and
    themselves: see `schemas.package_manifest`."""
    made_from = PackageManifest(graph, schedule, plan, content_digests(files))
    return {**files, MANIFEST_NAME: manifest_bytes(made_from)}


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
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                with (fresh / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            _swap_directory(fresh, directory)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        raise ArtifactError(
            f"{directory}: cannot be written ({error.strerror or error})"
        ) from error


def _swap_directory(fresh: Path, directory: Path) -> None:
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


def zero_time_costs(graph: Graph) -> Costs:
    """Costs for the simulator where only the order of steps and the sizes of storages matter."""
    return _ZeroTimeCosts(graph)


class _ZeroTimeCosts(Costs):
    def __init__(self, graph: Graph) -> None:
        super().__init__([], ProfileDevice(graph.device, "", graph.torch, 0, "none"))

    def of(self, graph: Graph, op: Op, in_place: int = NO_VALUE) -> OpCost:
        if op.target == LOSS_TARGET:
            storages = {graph.values[value].storage for value in op.outputs if value != NO_VALUE}
            size = sum(graph.storages[storage] for storage in storages)
            return OpCost("", op.target, NO_VALUE, 0.0, 0.0, size, size)
        return OpCost("", op.target, in_place, 0.0, 0.0, 0, 0)

    def random_state(self) -> OpCost:
        return OpCost("", RANDOM_STATE_TARGET, NO_VALUE, 0.0, 0.0, 0, 0)
