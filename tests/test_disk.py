"""A disk that is full and a store that is read-only: one sentence or a correct result, and nothing
lost or half-written."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stages.report.cases import small_blocks, small_costs, small_graph
from tightfit.schemas.block_options import read_block_options
from tightfit.schemas.blocks import write_blocks
from tightfit.schemas.costs import write_costs
from tightfit.stages.profile.cost_library import device_digest

ROOT = Path(__file__).parents[1]
FULL = 1500
"""Bytes that a file may have where the disk is said to be full."""


def full_disk() -> None:
    """Lets no file grow further, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))


def no_superuser() -> None:
    """Takes from root the right to write what is read-only."""
    drop, override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)


@pytest.fixture
def modes_hold(tmp_path: Path) -> None:
    """Skips where what is read-only is written all the same."""
    (tmp_path / "sealed").mkdir(mode=0o555)
    code = "import os; os.mkdir('sealed/inside')"
    if python(tmp_path, ["-c", code], no_superuser).returncode == 0:
        pytest.skip("modes of files hold nobody back here")
    (tmp_path / "sealed").rmdir()


def python(
    folder: Path, words: list[str], before: Callable[[], None]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=before,
        capture_output=True,
        text=True,
        check=False,
    )


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


WRITERS = {
    "store": """
from pathlib import Path
from tightfit.schemas.sequence import ChainOperation, write_sequence
write_sequence(Path("kept.arrow"), [ChainOperation("B", 1)] * 1000)
""",
    "library": """
from dataclasses import replace
from tightfit.schemas.costs import OpCost, ProfileDevice
from tightfit.stages.profile.cost_library import open_cost_library
device = ProfileDevice("cpu", "a machine", "a build", 2, "measured")
with open_cost_library("store", device) as library:
    library.add(OpCost(f"{key:064}", "aten.mm.default", -1, 1.0, 0.0, 1, 1) for key in range(100))
""",
    "module": """
from pathlib import Path
from tightfit.stages.generate.package import write_directory
write_directory(Path("module"), {"a.py": b"a", "step.py": b"x" * 5000})
""",
}


@pytest.fixture
def before(tmp_path: Path) -> dict[str, bytes]:
    """What is there before the disk is full."""
    graph = small_graph()
    costs = small_costs(graph)
    write_costs(tmp_path / f"store/profile/{device_digest(costs.device)}.arrow", costs)
    for name in ("lock", f"lock.{socket.gethostname()}"):
        (tmp_path / "store/profile" / name).touch()
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "old.py").write_text("old")
    (tmp_path / "kept.arrow").write_text("old")
    return files(tmp_path)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_a_sentence_and_loses_nothing(
    tmp_path: Path, before: dict[str, bytes], writer: str
) -> None:
    code = "import sys\nfrom tightfit.util.errors import TightfitError\n"
    code += f"try:{indented(WRITERS[writer])}"
    code += "except TightfitError as error:\n    sys.exit(str(error))\n"
    result = python(tmp_path, ["-c", code], full_disk)
    assert result.returncode == 1
    assert result.stderr.endswith(": cannot be written (File too large)\n")
    assert result.stderr.count("\n") == 1
    assert files(tmp_path) == before


def indented(code: str) -> str:
    return code.replace("\n", "\n    ").rstrip(" ")


def solve(folder: Path, prepare: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    words = ["-m", "tightfit", "solve", "--blocks", "blocks.arrow", "--store", "store"]
    grid = ["--peaks", "2", "--saves", "2", "--jobs", "1"]
    kept = ["--error-file", "error.txt"]
    return python(folder, [*words, *grid, "--out", "out/options.arrow", *kept], prepare)


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[Path]:
    """A folder with blocks to solve."""
    write_blocks(tmp_path / "blocks.arrow", small_blocks(small_graph()))
    yield tmp_path
    for path in (tmp_path / "store").rglob("*"):
        path.chmod(0o755)


def test_a_solve_on_a_full_disk_says_so_and_leaves_nothing(blocks: Path) -> None:
    result = solve(blocks, full_disk)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("tightfit solve: solving block ")
    assert result.stderr.endswith(".arrow: cannot be written (File too large)\n")
    assert (blocks / "error.txt").read_text() == result.stderr.removeprefix("tightfit ")
    assert set(files(blocks)) == {"blocks.arrow", "error.txt"}
    assert solve(blocks, lambda: None).returncode == 0


def test_an_error_that_cannot_be_kept_is_told_all_the_same(blocks: Path) -> None:
    (blocks / "error.txt").mkdir()
    result = solve(blocks, full_disk)
    first, second = result.stderr.splitlines()
    assert result.returncode == 1
    assert first.startswith("tightfit solve: solving block ")
    assert second == "tightfit: error.txt: cannot be written (Is a directory)"


def read_only(store: Path) -> None:
    for path in (store, *store.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.mark.usefixtures("modes_hold")
def test_a_read_only_store_is_read(blocks: Path) -> None:
    assert solve(blocks, no_superuser).returncode == 0
    made = (blocks / "out/options.arrow").read_bytes()
    (blocks / "out/options.arrow").unlink()
    read_only(blocks / "store")
    result = solve(blocks, no_superuser)
    assert result.returncode == 0, result.stderr
    assert (blocks / "out/options.arrow").read_bytes() == made
    assert read_block_options(blocks / "out/options.arrow")


@pytest.mark.usefixtures("modes_hold")
def test_a_read_only_store_that_lacks_something_is_a_sentence(blocks: Path) -> None:
    (blocks / "store/options").mkdir(parents=True)
    read_only(blocks / "store")
    result = solve(blocks, no_superuser)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(".arrow: cannot be written (Permission denied)\n")
    assert not (blocks / "out").exists()


LOOK_UP = """
import sys
from tightfit.schemas.costs import ProfileDevice
from tightfit.util.errors import TightfitError
from tightfit.stages.profile.cost_library import open_cost_library
device = ProfileDevice("cpu", "a machine", "a build", 2, "measured")
try:
    with open_cost_library("store", device) as library:
        print(len(library.costs.rows))
except TightfitError as error:
    sys.exit(str(error))
"""


@pytest.mark.usefixtures("modes_hold")
def test_a_read_only_library_is_read(tmp_path: Path, before: dict[str, bytes]) -> None:
    read_only(tmp_path / "store")
    result = python(tmp_path, ["-c", LOOK_UP], no_superuser)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == len(small_costs(small_graph()).rows)
    (tmp_path / "store").chmod(0o755)
    (tmp_path / "store/profile").rename(tmp_path / "profile")
    (tmp_path / "store").chmod(0o555)
    result = python(tmp_path, ["-c", LOOK_UP], no_superuser)
    assert result.returncode == 1
    assert result.stderr == "store/profile: cannot be written (Permission denied)\n"
    (tmp_path / "profile").chmod(0o755)
