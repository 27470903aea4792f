"""What holds for all tests: `make test` leaves those marked `long` to `make test-long`, the files
that take longest are run first, those marked `cuda` are skipped where there is no GPU, collections
of garbage look only at what tests have made, modules that many generated packages have are compiled
once, no file waits for the disk, and threads that wait leave the cores to other tests."""

from __future__ import annotations

import gc
import os
import py_compile
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.case_times import read_case_times, sample_cases
from tightfit.util import child_process
from tightfit.util.code_cache import compile_cached

# PyTorch reads this when it is loaded: processes of two threads each, side by side, would spend
# half of their time in waiting for each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What a test puts in the place of a function would run in another process, where it sees nothing.
child_process.USE_CHILD_PROCESSES = False

# How fast examples are drawn says something of the machine, nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", settings.get_profile("shared"))
settings.load_profile("shared")

TESTS = Path(__file__).parent
FIRST = (
    "workflow/test_plan.py",
    "workflow/test_incremental_runs.py",
    "crash",
    "gpu",
    "stages/combine/local_search/test_budget_sweep.py",
    "stages/combine/optimizer_offload",
    "workflow",
    "tightfit",
    "test_reproducibility.py",
    "battery",
    "fuzz",
)
"""Files and folders whose tests are few and long: of those begun last, one core would wait for the
other."""
PASSING = ("generated_", "tightfit_module_")
"""How the names of generated packages begin."""
PART, LEAST = 5, 5
"""In the profile `short` of Hypothesis, which is that of `make test`, a property test draws one of
`PART` of its examples, and not fewer than `LEAST`."""
LASTING: set[str] = set()
"""Those that tests of more files than one use."""
_compile = SourceFileLoader.source_to_code


def rank(path: Path) -> int:
    """The place in `FIRST` of the first that has a file, behind all of them where none has."""
    found = (place for place, name in enumerate(FIRST) if path.is_relative_to(TESTS / name))
    return next(found, len(FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the files, marks what a sample leaves out, draws fewer examples in the profile
    `short`, and skips what needs a GPU; PyTorch is loaded only where such a test was collected."""
    items.sort(key=lambda item: rank(item.path))
    mark_long(items)
    mark_slow_cases(items)
    if settings.get_current_profile_name() == "short":
        draw_fewer_examples(items)
    wanting = [item for item in items if item.get_closest_marker("cuda")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def mark_long(items: list[pytest.Item]) -> None:
    """Marks the parameters of tests marked `sample` that are not in the sample as `long`:
    `sample(5)` takes each fifth, `sample("kind")` the first of each value of the parameter `kind`,
    and `sample(only=["a", "b"])` those with these ids."""
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is None or not isinstance(item, pytest.Function):
            continue
        step = next((step for step in sample.args if isinstance(step, int)), sys.maxsize)
        step = 1 if "only" in sample.kwargs else step
        values = [item.callspec.params[name] for name in sample.args if isinstance(name, str)]
        kind = item.nodeid.partition("[")[0], repr(values)
        only = sample.kwargs.get("only", [item.callspec.id])
        if seen[kind] % step or item.callspec.id not in only:
            item.add_marker(pytest.mark.long)
        seen[kind] += 1


def mark_slow_cases(items: list[pytest.Item]) -> None:
    """Marks cases of parametrized tests that take long together as `long` (`tests.case_times`), but
    not where a test says itself which of them run."""
    chosen_before = ("long", "sample")
    short = [item for item in items if not any(map(item.get_closest_marker, chosen_before))]
    chosen = sample_cases([item.nodeid for item in short], read_case_times())
    for item in short:
        if item.nodeid not in chosen:
            item.add_marker(pytest.mark.long)


def draw_fewer_examples(items: list[pytest.Item]) -> None:
    """Has each property test draw fewer examples than its `settings` say."""
    functions = {item.obj for item in items if isinstance(item, pytest.Function)}
    for function in filter(is_hypothesis_test, functions):
        given = function._hypothesis_internal_use_settings
        count = max(given.max_examples // PART, min(given.max_examples, LEAST))
        function._hypothesis_internal_use_settings = settings(given, max_examples=count)


@pytest.fixture(autouse=True, scope="session")
def _alone() -> Iterator[None]:
    """What other work takes of measurements is not counted, so that nothing is measured again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightfit.stages.torch_utils.timing.THREADS_FOLDER", Path("/nowhere"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_packages() -> Iterator[None]:
    """Modules of the same text are compiled once, as those of generated packages are, of which each
    has the same runtime; and no file waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceFileLoader, "source_to_code", _code_of)
        patch.setattr(os, "fsync", lambda handle: None)
        yield


def _code_of(loader: SourceFileLoader, data: Any, path: Any, **given: Any) -> CodeType:
    if isinstance(data, bytes) and not given:
        return compile_cached(data, os.fspath(path))
    return _compile(loader, data, path, **given)


@pytest.fixture(autouse=True, scope="module")
def _young_garbage() -> Iterator[None]:
    """Leaves what was there before the tests of a file out of collections of garbage, of which
    validation makes many, and forgets the packages that its tests have generated: what looks
    through all modules would take longer with each."""
    gc.collect()
    gc.freeze()
    there = set(sys.modules)
    yield
    for name in set(sys.modules) - there:
        if name.startswith(PASSING) and name.partition(".")[0] not in LASTING:
            del sys.modules[name]


@pytest.fixture(scope="module")
def brief_search() -> Iterator[None]:
    """Searches take a tenth of their moves, where no test asks how good a plan is."""
    brief = {"MIN_MOVES": 400, "START_MOVES": 40, "SLOW_MOVES": 60, "CONTINUATION_MOVES": 20}
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {**brief, "SEEDS_PER_WARM_START": 1, "MAX_ROUNDS": 3}.items():
            patch.setattr(f"tightfit.stages.combine.local_search.search.{name}", number)
        yield


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with programs that start at once, see `preloaded_process.py`."""
    folder = tmp_path_factory.mktemp("programs")
    # Traces name the innermost file on the stack that is somebody's: this one is to be nobody's.
    code = py_compile.compile(
        str(TESTS / "preloaded_process.py"),
        str(folder / "ready.pyc"),
        "<frozen ready>",
        doraise=True,
    )
    command = [sys.executable, str(code), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None and serving.stdout.readline() == b"ready\n"
        yield folder
        serving.terminate()
