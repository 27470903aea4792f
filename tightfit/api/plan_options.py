"""The option objects of `plan`: what few calls need, documented field by field."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tightfit.util.budget import parse_budget
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import BlockSolver

OnMismatch = Literal["error", "original", "copy", "replan"]
"""What a call that a plan was not made for does."""
REPLAN: OnMismatch = "replan"
CompilerFallback = Literal["error", "eager"]
CheckLevel = bool | Literal["full"]
OptionalPath = Path | str | None


@dataclass(frozen=True)
class SolverOptions:
    """How plans are searched for.

    Args:
        engine: Solver of the integer programs: "highs", "cbc", or "none" for heuristics alone on
            blocks; programs of whole steps are solved by HiGHS then.
        peak_levels: Number of peak memory bounds for which each block of the step is solved. More
            levels give finer frontiers and take longer.
        save_levels: Number of bounds on the bytes that a block saves for its backward.
        jobs: Number of processes that solve blocks at a time; None for one per CPU core.

    Raises:
        ConfigError: `jobs` is no whole number of at least 1. `tightfit.plan` checks the other
            fields.

    Example:
        >>> tightfit.plan(model, (x,), solver=SolverOptions(engine="highs", jobs=8))
    """

    engine: BlockSolver = "none"
    peak_levels: int = 4
    save_levels: int = 6
    jobs: int | None = None

    def __post_init__(self) -> None:
        jobs = self.jobs
        if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
            raise ConfigError(f"SolverOptions: jobs is {jobs!r}, expected a number of at least 1")

    @property
    def processes(self) -> int:
        """The number of processes that solve blocks at a time."""
        return self.jobs or os.cpu_count() or 1


@dataclass(frozen=True)
class OffloadOptions:
    """Where tensors wait that a plan sends out of the device's memory.

    These are activations with strategies such as "offload", and the optimizer's states in a plan
    with an optimizer. On a GPU they wait in the host's memory, on the CPU in a file.

    Args:
        path: Folder of that file, on the CPU; None for the folder that the environment variable
            TIGHTFIT_DISK names, or that of temporary files.
        machine: Path of a `tightfit.machine/1` document (.json) with the link's bandwidth in bytes
            per second; None to measure the link of this machine once.

    Raises:
        ConfigError: `path` is no path of a folder.

    Example:
        >>> tightfit.plan(model, (x,), strategy="offload", offload=OffloadOptions("/mnt/nvme"))
    """

    path: OptionalPath = None
    machine: OptionalPath = None

    def __post_init__(self) -> None:
        check_folder("OffloadOptions", self.path, "path")


@dataclass(frozen=True)
class ParameterOffloadOptions:
    """Parameters of 1 MiB and more leave the device's memory, too, with their optimizer states.

    They come to the device for as long as a step uses them. Needs the `optimizer`, and has a
    strategy of its own. Their values are available within `plan.optimizer.gathered()`.

    Args:
        path: Folder of the file that holds them, on the CPU; None as in `OffloadOptions`. On a GPU
            they are in the host's memory.
        limit: Most bytes that the plan may take there, as a number of bytes or a size ("20GB");
            None for all that are free.
        second_path: Folder of a second disk for optimizer states that exceed `limit`, as few as
            have to; their parameters are updated on the CPU. A GPU needs `limit`, too.
        microbatches: Number of microbatches of a step, each of the sample's shape. All but the
            last run within `plan.optimizer.accumulating()`; their gradients add up there. With a
            sequence, one number for each shape of the samples, the fastest plan is taken.

    Raises:
        ConfigError: A path is no path of a folder, `limit` is no number of bytes or size, or a
            number of microbatches is no whole number of at least 1.

    Example:
        >>> offload = ParameterOffloadOptions("/mnt/nvme", limit="200GB", microbatches=4)
        >>> tightfit.plan(model, (x,), optimizer=adamw, offload=offload, budget="8GiB")
    """

    path: OptionalPath = None
    limit: int | str | None = None
    second_path: OptionalPath = None
    microbatches: int | Sequence[int] = 1

    def __post_init__(self) -> None:
        check_folder("ParameterOffloadOptions", self.path, "path")
        check_folder("ParameterOffloadOptions", self.second_path, "second_path")
        assert self.limit_bytes is None or self.limit_bytes >= 0
        for count in self.microbatch_counts:
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(
                    f"ParameterOffloadOptions: microbatches is {count!r}, expected a number from 1 "
                    "on"
                )

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes."""
        if self.limit is None:
            return None
        size = parse_budget(self.limit, "ParameterOffloadOptions: limit").size
        if size is None:
            raise ConfigError(
                f"ParameterOffloadOptions: limit is {self.limit!r}, expected bytes or a size such "
                "as '20GB'"
            )
        return size

    @property
    def microbatch_counts(self) -> list[int]:
        """The numbers of microbatches: one for all shapes, or one for each."""
        given: Any = self.microbatches
        several = isinstance(given, Sequence) and not isinstance(given, str)
        return [*given] if several else [given]


@dataclass(frozen=True)
class GradientOptions:
    """What becomes of gradients in a plan with an optimizer, which by default updates each
    parameter in the backward and frees its gradient at once. A budget in bytes counts them.

    Args:
        accumulate: Gradients of several microbatches add up on the device; all but the last run
            within `plan.optimizer.accumulating()`.
        keep: Gradients stay on the device until `plan.optimizer.step()`, which updates the
            parameters: for clipping by norm, for a gradient scaler, or to read them.

    Raises:
        ConfigError: A field is neither True nor False.

    Example:
        >>> tightfit.plan(model, (x,), optimizer=adamw, gradients=GradientOptions(keep=True))
    """

    accumulate: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        _check_flags("GradientOptions", accumulate=self.accumulate, keep=self.keep)

    @property
    def stay(self) -> bool:
        """Whether gradients are on the device after some backwards."""
        return self.accumulate or self.keep


@dataclass(frozen=True)
class FusedKernelOptions:
    """Groups of small operators run as single compiled kernels.

    Args:
        eager_fallback: The package has a plan of eager's kernels for the same bytes, too, for
            machines without a compiler (`load(..., without_compiler="eager")`); it is the plan's
            `eager_fallback`. Not with an optimizer.
        libraries: The package has the compiled libraries of the groups, for
            `load(..., libraries=True)`. On the CPU only.

    Raises:
        ConfigError: A field is neither True nor False.

    Example:
        >>> tightfit.plan(model, (x,), fused_kernels=FusedKernelOptions(eager_fallback=True))
    """

    eager_fallback: bool = False
    libraries: bool = False

    def __post_init__(self) -> None:
        _check_flags(
            "FusedKernelOptions", eager_fallback=self.eager_fallback, libraries=self.libraries
        )


@dataclass(frozen=True)
class ReplanOptions:
    """A call that no plan takes is planned within the same budget, and its plan is kept.

    Given as `on_mismatch`; "replan" stands for the defaults.

    Args:
        max_replans: Number of calls that are planned at most. Beyond it, and where a call cannot be
            planned, the original runs, with a warning.

    Raises:
        ConfigError: `max_replans` is no whole number of at least 1.

    Example:
        >>> tightfit.plan(model, (x,), on_mismatch=ReplanOptions(max_replans=3))
    """

    max_replans: int = 8

    def __post_init__(self) -> None:
        most = self.max_replans
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError(
                f"ReplanOptions: max_replans is {most!r}, expected a number of at least 1"
            )


def check_folder(call: str, folder: object, named: str) -> None:
    """Raises ConfigError where what a call is given is no folder's path, or that of none."""
    if folder is None:
        return
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise ConfigError(f"{call}: {named} is {folder!r}, expected the path of a folder")
    if not Path(folder).is_dir():
        raise ConfigError(f"{call}: {named} is {os.fspath(folder)!r}, which is no folder: make it")


def _check_flags(options: str, **flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{options}: {name} is {value!r}, expected True or False")


DEFAULT_SOLVER = SolverOptions()
DEFAULT_OFFLOAD = OffloadOptions()
DEFAULT_GRADIENTS = GradientOptions()
