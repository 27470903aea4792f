"""The rules of the house, read from the code: who may import whom, and what starts without what."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tightfit.__main__ import STAGES
from tightfit.util.code_fingerprint import imported_names

ROOT = Path(__file__).parents[1]

ROOMS = (
    *("trace", "fuse", "profile", "partition", "solve", "combine", "generate", "validate"),
    "report",
    "audit",
    "compile",
)
SHARED = ("simulate", "torch_utils", "runtime")
TORCH_ROOMS = (
    *("trace", "fuse", "profile", "generate", "validate", "torch_utils", "runtime"),
    "compile",
)
COMPOSERS = tuple(
    path.relative_to(ROOT).as_posix()
    for folder in ("tightfit", "tightfit/api", "tightfit/util")
    for path in sorted((ROOT / folder).glob("*.py"))
)
"""The only modules that put stages together, and lazily."""

PRIVATE = {
    "torch._decomp": {"stages/trace/capture.py"},
    "torch._functorch": {
        "stages/compile/partitioner.py",
        "stages/trace/capture_patches.py",
        "stages/trace/capture.py",
    },
    "torch._inductor": {
        "stages/compile/partitioner.py",
        "stages/runtime/kernels/compile.py",
        "stages/torch_utils/aot_inductor.py",
    },
    "torch.fx.experimental": {
        "stages/runtime/kernels/compile.py",
        "stages/trace/capture_patches.py",
        "stages/trace/guards/global_state.py",
        "stages/trace/symbolic_sizes.py",
    },
}
"""Private parts of PyTorch that change with its releases, and the modules that use them."""

SOLVER_MODULES = (
    "tightfit.stages.partition.command",
    "tightfit.stages.solve.command",
    "tightfit.stages.combine.command",
    "tightfit.stages.combine.join.frontier",
    "tightfit.stages.report.command",
    "tightfit.stages.audit.command",
    "tightfit.stages.audit.lineage_command",
    "tightfit.stages.simulate.simulate",
    "tightfit.stages.simulate.planning_graph",
)


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def imported(path: Path, at_start: bool = False) -> set[str]:
    """The modules that a file names in imports; with `at_start`, only outside functions."""
    tree = ast.parse(path.read_text())
    parts = path.relative_to(ROOT).parent.parts
    if at_start:
        tree = StartOnly().visit(tree)
    own = ("tightfit",) if parts[:1] in (("stages",), ("schemas",)) else ()
    return set(imported_names(tree, ".".join((*own, *parts))))


class StartOnly(ast.NodeTransformer):
    """Leaves out what runs only when a function is called."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return ast.Pass()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return ast.Pass()

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return ast.Constant(None)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if parts[:2] == ["tightfit", "stages"] and len(parts) > 2 else None


def foreign_rooms(path: Path) -> Iterator[str]:
    """The rooms that a module of a room imports and must not."""
    own = path.relative_to(ROOT).parts[1]
    allowed = {own, "simulate"} | ({"torch_utils", "runtime"} if own in TORCH_ROOMS else set())
    if own in ("simulate", "runtime"):
        allowed = {own}
    for module in imported(path):
        room = room_of(module)
        if room in (*ROOMS, *SHARED) and room not in allowed:
            yield module


def test_every_room_is_known() -> None:
    rooms = {path.name for path in (ROOT / "stages").iterdir() if (path / "__init__.py").exists()}
    assert rooms == {*ROOMS, *SHARED}


@pytest.mark.parametrize("room", [*ROOMS, *SHARED])
def test_a_stage_imports_schemas_simulate_and_itself(room: str) -> None:
    wrong = {name_of(path): [*foreign_rooms(path)] for path in sources(f"stages/{room}")}
    assert not {path: modules for path, modules in wrong.items() if modules}


def test_only_the_composers_put_stages_together() -> None:
    loose = [*(ROOT / "stages").glob("*.py")]
    assert [name_of(path) for path in loose] == ["stages/__init__.py"]
    assert not {room_of(module) for path in loose for module in imported(path)} & {*ROOMS, *SHARED}


@pytest.mark.parametrize("path", COMPOSERS)
def test_composers_load_stages_lazily(path: str) -> None:
    assert not {room_of(module) for module in imported(ROOT / path, at_start=True)} & {*ROOMS}
    assert "torch" not in imported(ROOT / path, at_start=True)


def test_schemas_import_no_stage_and_no_torch() -> None:
    tops = {
        name_of(path): [
            module
            for module in imported(path)
            if module.startswith(("tightfit.stages", "torch.")) or module == "torch"
        ]
        for path in sources("schemas")
    }
    assert not {path: found for path, found in tops.items() if found}


def test_torch_is_imported_in_its_rooms_alone() -> None:
    users = {
        path.relative_to(ROOT).parts[1]
        for path in sources("stages")
        if name_of(path) not in COMPOSERS
        and any(module.split(".")[0] == "torch" for module in imported(path))
    }
    assert users == set(TORCH_ROOMS)


@pytest.mark.parametrize("part", PRIVATE)
def test_few_modules_use_private_parts_of_torch(part: str) -> None:
    users = {
        name_of(path)
        for path in sources("stages", "tightfit")
        if any(f"{module}.".startswith(f"{part}.") for module in imported(path))
    }
    assert users == PRIVATE[part]


def test_nothing_imports_tests() -> None:
    for path in sources("stages", "schemas", "tightfit", "data", "workflow"):
        assert not {module for module in imported(path) if module.split(".")[0] == "tests"}, path


def test_nothing_is_imported_by_the_names_of_folders() -> None:
    """An installation has the name tightfit alone: `schemas` may be somebody else's."""
    folders = ("stages", "schemas", "tightfit", "data", "tests", "workflow")
    for path in sources(*folders):
        tops = {module.split(".")[0] for module in imported(path)}
        assert not tops & {"stages", "schemas", "reports"}, path


@pytest.mark.parametrize("stage", STAGES)
def test_the_command_line_of_a_stage_loads_no_torch_until_it_runs(stage: str) -> None:
    assert "torch" not in loaded(f"import {STAGES[stage][0]}")


def test_importing_stages_loads_nothing() -> None:
    assert not {"torch", "pyarrow", "numpy", "numba", "pulp"} & loaded("import tightfit.stages")


def test_importing_tightfit_loads_nothing_large() -> None:
    assert not {"torch", "pyarrow", "numpy", "numba", "pulp"} & loaded("import tightfit")


def test_solver_rooms_start_without_torch() -> None:
    """What they import when they run, too: all of their modules, in one process."""
    names = [
        ".".join(("tightfit", *path.relative_to(ROOT).with_suffix("").parts))
        for room in ("partition", "solve", "combine", "report", "audit", "simulate")
        for path in sources(f"stages/{room}")
        if path.name != "__init__.py"
    ]
    assert set(SOLVER_MODULES) <= set(names)
    found = loaded(f"import {', '.join(names)}")
    assert not {"torch", "transformers", "snakemake"} & found


def loaded(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter loads to run the code."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize(
    "path", sources("stages", "schemas", "tightfit", "data", "workflow"), ids=name_of
)
def test_files_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 450
