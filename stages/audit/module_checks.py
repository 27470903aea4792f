"""Checks the generated packages of a plan against the files that they were made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas import store
from tightfit.schemas.package_manifest import MANIFEST_NAME, module_file_digests, read_manifest
from tightfit.schemas.plan import plan_digest

if TYPE_CHECKING:
    from tightfit.stages.audit.plan_checks import PlanFiles


def check_modules(files: PlanFiles) -> Iterator[str]:
    """The module was generated from the files beside it, and not touched since; so was one that
    carries more."""
    for module in (files.module, *files.path.parent.glob("module-*")):
        if module is not None:
            yield from _check_module_files(files, module)


def _check_module_files(files: PlanFiles, module: Path) -> Iterator[str]:
    made_from = read_manifest(module)
    sources = (
        ("graph.arrow", made_from.graph, files.graph, _digest),
        ("schedule.arrow", made_from.schedule, files.schedule, _digest),
        ("plan.json", made_from.plan, files.path, plan_digest),
    )
    for name, digest, path, digest_of in sources:
        if path is not None and digest_of(path) != digest:
            yield f"{module}: was generated from another {name} than is there now"
    present = module_file_digests(module)
    for name in sorted(set(present) | set(made_from.files)):
        if name not in present:
            yield f"{module / name}: is missing"
        elif name not in made_from.files:
            yield f"{module / name}: was not generated, {MANIFEST_NAME} does not name it"
        elif present[name] != made_from.files[name]:
            yield f"{module / name}: was changed after it was generated"


def _digest(path: Path) -> str:
    return store.read_header(path).digest
