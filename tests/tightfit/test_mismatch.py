"""One class of mismatch for all packages of a process and for `tightfit`, whoever comes first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stages.conftest import Planned
from tests.stages.conftest import small as small

ROOT = Path(__file__).parents[2]
FIRST = {
    "tightfit": "import tightfit, planned_small, other",
    "packages": "import planned_small, other, tightfit",
    "between": "import planned_small, tightfit, other",
}
CATCH = """
import pickle
assert planned_small.PlanMismatch is other.PlanMismatch is tightfit.PlanMismatch
assert issubclass(tightfit.PlanMismatch, RuntimeError)
try:
    raise planned_small.PlanMismatch("this")
except tightfit.PlanMismatch as error:
    again = pickle.loads(pickle.dumps(error))
assert type(again) is tightfit.PlanMismatch and str(again) == "this"
"""
ALONE = """
import sys
import planned_small, other
assert planned_small.PlanMismatch is other.PlanMismatch
assert issubclass(planned_small.PlanMismatch, RuntimeError)
assert "tightfit" not in sys.modules
"""


def run(code: str, folder: Path, *path: Path) -> None:
    lines = "".join(f"sys.path.insert(0, {str(place)!r})\n" for place in (folder, *path))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{lines}{code}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def packages(small: Planned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for name in ("planned_small", "other"):
        (folder / name).symlink_to(small.directory)
    return folder


@pytest.mark.sample(3)
@pytest.mark.parametrize("order", FIRST)
def test_one_class(order: str, packages: Path) -> None:
    run(FIRST[order] + CATCH, packages, ROOT)


def test_packages_need_no_tightfit(packages: Path) -> None:
    run(ALONE, packages)


def test_what_is_no_such_class_is_not_taken(packages: Path) -> None:
    run(
        'import types\nsys.modules["tightfit.mismatch"] = types.ModuleType("tightfit.mismatch")\n'
        'sys.modules["tightfit.mismatch"].PlanMismatch = print' + ALONE,
        packages,
    )
