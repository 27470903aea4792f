"""Measures steps: their memory, and their time beside another module's."""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import (
    APART,
    CPU_APART,
    CPU_IN_TURNS,
    CPU_ONE_PROCESS,
    ONE_PROCESS,
    Measurement,
    TimelinePoint,
    downsample_timeline,
)
from tightfit.schemas.reference import ReferenceMeasurement
from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.simulate.caching_allocator import AllocatorBytes
from tightfit.stages.torch_utils.devices import (
    describe_device,
    enter_device,
    hold_on_host,
    is_out_of_memory,
    parse_device,
    preserve_random_states,
    release_device_memory,
    synchronize_device,
)
from tightfit.stages.torch_utils.memory_meter import (
    CallTiming,
    MemoryUsage,
    memory_session,
    summarize_timings,
)
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample
from tightfit.stages.validate.comparison import (
    MAX_STEPS,
    Comparer,
    Comparison,
    freeze_garbage_collector,
)
from tightfit.stages.validate.resident_memory import (
    RESIDENT_STEPS,
    ResidentMemory,
    available_memory,
)
from tightfit.stages.validate.step_memory import StepMemory, fresh_memory
from tightfit.stages.validate.step_timer import RemoteStepTimer, StepTimer
from tightfit.stages.validate.training_step import StepRunner, clear_gradients, detach_sample
from tightfit.util.allocators import hold_heap_pages
from tightfit.util.child_process import ChildError
from tightfit.util.progress import LabeledProgressCounter, ProgressCallback

BUSY_FRACTION = 0.05
"""The part of steps on the CPU that other work may take before they are timed in turns."""
TIMED_STEP = "timing"
"""What is told of steps that are timed."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of steps of the two modules, and their ratio: of alternating steps pair by pair, or
    of steps one after the other each by each; of the planned module alone where the other one's are
    not known. `timing` says which (`STEP_TIMINGS`). `waited` is the median of what a planned step
    waited for transfers, None where it sends nothing, and `runs` are the seconds of the planned
    steps. Other work took the part `lost` of the time on the clock."""

    planned: CallTiming
    original: CallTiming | None = None
    ratio: CallTiming | None = None
    timing: str = ""
    waited: float | None = None
    runs: Sequence[float] = ()
    lost: float = 0.0


def measure_memory(
    module: nn.Module, stepper: StepRunner, sample: Sample, device: str, warm: bool = False
) -> tuple[MemoryUsage, MemoryUsage]:
    """The memory of one step where `.grad` is None when it begins, and of the next one, which finds
    it there; each above what was allocated when it began. A step to warm up comes first, unless the
    module is `warm`.

    The lines end while the output and what it received are still held.
    """
    clear_gradients(module, sample)
    if not warm:
        stepper.run(module, sample)
        clear_gradients(module, sample)
    fresh = _memory_of_step(module, stepper, sample, device)
    accumulating = _memory_of_step(module, stepper, sample, device)
    clear_gradients(module, sample)
    return fresh, accumulating


def complete_step_memory(
    memory: StepMemory,
    module: nn.Module,
    stepper: StepRunner,
    sample: Sample,
    device: str,
    warm: bool = False,
    told: LabeledProgressCounter | None = None,
) -> StepMemory:
    """The memory of a module's steps, of which some may have told already; the others are run, as
    `measure_memory` does, and `told`."""
    if memory.fresh is not None and memory.accumulate_peak is not None:
        return memory
    (told or LabeledProgressCounter())("memory")
    fresh, accumulating = measure_memory(module, stepper, sample, device, warm)
    return StepMemory(device, fresh, accumulating.peak)


def _memory_of_step(
    module: nn.Module, stepper: StepRunner, sample: Sample, device: str
) -> MemoryUsage:
    gc.collect()
    with memory_session(device, lines=True) as running:
        running.mark("begin")
        alive = stepper.run(module, sample)
        running.mark("end")
    del alive
    return running.usage("begin", "end")


@dataclass(frozen=True)
class GpuUse:
    """What a process takes of a CUDA device: the most bytes by the three ways to count them and, as
    `context`, what else of the device is in use, CUDA's context and other processes."""

    most: AllocatorBytes
    context: int


def measure_gpu_memory(
    module: nn.Module,
    stepper: StepRunner,
    sample: Sample,
    device: str,
    steps: int = 2,
    others: Iterable[torch.Tensor] = (),
) -> GpuUse | None:
    """What some steps take of a CUDA device, parameters, inputs and workspaces of libraries
    included; None on the CPU.

    To be called before anything else has run there. Buffers and random states come back; `others`
    are tensors that the steps have no use for, which wait on the host.
    """
    if torch.device(device).type != "cuda":
        return None
    used = {leaf.untyped_storage()._cdata for leaf in _sample_tensors(sample)}
    others = [other for other in others if other.untyped_storage()._cdata not in used]
    with hold_on_host(others):
        release_device_memory(device)
        torch.cuda.reset_peak_memory_stats(device)
        with preserve_random_states(), restore_buffers(module, stepper.written_parameters):
            for _ in range(steps):
                stepper.run(module, sample)
                clear_gradients(module, sample)
            synchronize_device(device)
            return peak_gpu_use(device)


def peak_gpu_use(device: str) -> GpuUse:
    """What has been taken of a CUDA device at most since its counters were reset."""
    counters = torch.cuda.memory_stats(device)
    ways = ("requested", "allocated", "reserved")
    most = AllocatorBytes(*(counters[f"{way}_bytes.all.peak"] for way in ways))
    free, total = torch.cuda.mem_get_info(device)
    return GpuUse(most, total - free - counters["reserved_bytes.all.current"])


def _sample_tensors(sample: Sample) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(sample)[0] if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def restore_buffers(module: nn.Module, parameters: Sequence[str] = ()) -> Iterator[None]:
    """The contents of a module's buffers, and of some frozen parameters, come back at its end; they
    wait on the host."""

    def written() -> dict[str, torch.Tensor]:
        return {
            **dict(module.named_buffers()),
            **{name: module.get_parameter(name) for name in parameters},
        }

    kept = {name: tensor.detach().to("cpu", copy=True) for name, tensor in written().items()}
    yield
    with torch.no_grad():
        for name, tensor in written().items():
            tensor.copy_(kept[name])


def time_steps(
    timer: StepTimer,
    runs: int,
    told: LabeledProgressCounter | None = None,
    original: Sequence[float] = (),
) -> StepTimes:
    """Times further steps of one module that has run, each of which is `told`. The ratio is that to
    the steps of the other one in a process of its own, where these are known: all quotients of one
    of its steps and one of `original`."""
    told = told or LabeledProgressCounter()
    gc.collect()
    for _ in range(runs):
        told(TIMED_STEP)
        timer.time_step()
    found = _times_of(timer)
    if not original:
        return found
    quotients = [mine / other for mine in timer.seconds for other in original]
    return replace(
        found,
        original=summarize_timings(list(original)),
        ratio=replace(summarize_timings(quotients), repeats=len(timer.seconds)),
        timing=CPU_APART if timer.on_cpu else APART,
    )


def time_with_resident_peak(
    timer: StepTimer,
    runs: int,
    told: LabeledProgressCounter | None = None,
    original: Sequence[float] = (),
) -> tuple[StepTimes, int | None]:
    """`time_steps`, and the RSS of the first `RESIDENT_STEPS` of them, where the system counts
    it."""
    told = told or LabeledProgressCounter()
    clear_gradients(timer.module, timer.sample)
    resident = ResidentMemory(timer.device)
    for _ in range(RESIDENT_STEPS):
        told(TIMED_STEP)
        timer.time_step()
    peak = resident.peak()
    del timer.seconds[runs:]
    return time_steps(timer, max(runs - RESIDENT_STEPS, 0), told, original), peak


def time_beside(
    timer: StepTimer,
    runs: int,
    known: OriginalMeasurement,
    told: LabeledProgressCounter | None = None,
) -> tuple[StepTimes, int | None]:
    """Times steps of a planned module beside what is known of its original, and their RSS. Where
    other work took a part of either's steps, both are timed again, in turns: such work changes
    what a step takes of a processor, too, and that of both alike."""
    reference = known.reference
    times, resident = time_with_resident_peak(timer, runs, told, reference.seconds)
    busy = max(times.lost, reference.lost) >= BUSY_FRACTION
    fits = available_memory() > 2 * (reference.peak or 0)
    if known.timer is None or not busy or not reference.seconds or not fits:
        return times, resident
    try:
        return time_step_pairs(timer.renewed(), known.timer, runs, told), resident
    except ChildError:  # such as of memory
        return times, resident


def time_step_pairs(
    planned: StepTimer,
    original: StepTimer | RemoteStepTimer,
    pairs: int,
    told: LabeledProgressCounter | None = None,
) -> StepTimes:
    """Times pairs of steps of modules that have run, the planned one first in every other pair,
    each of which is `told`. The heap keeps its pages: how many a step takes anew is by chance."""
    told = told or LabeledProgressCounter()
    timers = [planned, original]
    gc.collect()
    runs: list[list[float]] = [[], []]
    with hold_heap_pages():
        for pair in range(pairs):
            told(TIMED_STEP)
            for index in (0, 1) if pair % 2 == 0 else (1, 0):
                runs[index].append(timers[index].time_step())
    ratios = [mine / other for mine, other in zip(*runs, strict=True)]
    apart = isinstance(original, RemoteStepTimer)
    together = CPU_ONE_PROCESS if planned.on_cpu else ONE_PROCESS
    return replace(
        _times_of(planned),
        planned=summarize_timings(runs[0]),
        runs=runs[0],
        original=summarize_timings(runs[1]),
        ratio=summarize_timings(ratios),
        timing=CPU_IN_TURNS if apart else together,
    )


def _times_of(timer: StepTimer) -> StepTimes:
    """The times of one module alone."""
    waited = statistics.median(timer.waits) if timer.waits else None
    planned = summarize_timings(timer.seconds)
    return StepTimes(planned, waited=waited, runs=tuple(timer.seconds), lost=timer.lost)


def fits_budget(base: Measurement, peak: int, taken: AllocatorBytes | None) -> bool:
    """Whether a step kept its budget: on CUDA its reserved bytes in all, too."""
    if base.budget_bytes is None:
        return True
    if taken is not None and base.budget_total is not None and taken.reserved > base.budget_total:
        return False
    return peak <= base.budget_bytes


def describe_budget_overrun(measured: Measurement) -> str:
    """How a step misses its budget."""
    peak, own = measured.measured_peak, measured.budget_bytes
    if peak is not None and own is not None and peak > own:
        return f"the step takes {peak} bytes, over its budget of {own}"
    foretold = measured.predicted_reserved
    said = "" if foretold is None else f", where {foretold} were predicted"
    return (
        f"PyTorch's allocator reserves {measured.reserved_peak} bytes, over the budget of "
        f"{measured.budget_total}{said}"
    )


def add_measured_results(
    base: Measurement,
    compared: Comparison,
    times: StepTimes | None,
    known: ReferenceMeasurement | None,
) -> Measurement:
    """The measurement with differences, where there was a comparison, and times, beside what was
    `known` of the original."""
    found = base
    if compared.compared:
        difference = compared.difference
        found = replace(
            base,
            output_difference=difference.output,
            gradient_difference=difference.gradient,
            buffer_difference=difference.buffer,
            bits_equal=difference.bits_equal,
        )
    if times is None:
        return found
    lost = max(times.lost, known.lost if known else 0.0)
    found = replace(
        found,
        measured_time=times.planned.median,
        preemption_fraction=None if found.device == "cpu" else lost,
    )
    if times.original is None or times.ratio is None:
        return found
    return replace(
        found,
        original_time=times.original.median,
        time_ratio=times.ratio.median,
        time_ratio_first_quartile=times.ratio.first_quartile,
        time_ratio_third_quartile=times.ratio.third_quartile,
        timing=times.timing,
        pairs=times.ratio.repeats,
    )


ORIGINAL_RUN = "original"


@dataclass(frozen=True)
class OriginalMeasurement:
    """What was measured of a model's own step, and its memory line. `timer` times further steps of
    it in a process of its own, where there is one."""

    reference: ReferenceMeasurement
    line: Sequence[TimelinePoint]
    timer: RemoteStepTimer | None = None

    def matches_device(self, device: str) -> bool:
        """Whether it was measured on such a device, with this build of PyTorch and as many
        threads."""
        return self.reference.device == describe_device(device)


def measure_original(
    graph: Graph,
    digest: str,
    built: BuiltModel,
    runs: int,
    device: str,
    report: ProgressCallback | None = None,
) -> OriginalMeasurement:
    """Runs the model of a graph, which has a digest: in the rounds of a comparison, for its memory,
    and `runs` times for its time; `report` is told of each step.

    What does not fit on the device is left out. Raises ModelError where the model cannot run its
    samples.
    """
    place, stepper = parse_device(device), StepRunner.of(graph, built)
    comparer = Comparer.of(built.model, stepper, built.samples, False, place, graph)
    told = LabeledProgressCounter(report, MAX_STEPS // 2 + 1 + runs)
    memory = StepMemory(str(place))
    comparer = replace(comparer, original_memory=memory)
    with enter_device(place), freeze_garbage_collector():
        reference = ReferenceMeasurement(digest, describe_device(place), {})
        try:
            original = comparer.copy_original()
            rounds = comparer.left(original, told)
            reference = ReferenceMeasurement(digest, reference.device, rounds)
            sample = detach_sample(built.samples[0])
            runner = (original, stepper, sample, str(place))
            memory = complete_step_memory(memory, *runner, warm=bool(rounds), told=told)
            times, resident = time_with_resident_peak(StepTimer(*runner), runs, told)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            release_device_memory(place)
            return OriginalMeasurement(reference, [])
    fresh = fresh_memory(memory)
    line = [
        TimelinePoint(ORIGINAL_RUN, seconds, live)
        for seconds, live in downsample_timeline(fresh.line)
    ]
    peaks = (fresh.peak, memory.accumulate_peak)
    found = (reference.rounds, *peaks, tuple(times.runs), times.lost, resident)
    return OriginalMeasurement(ReferenceMeasurement(digest, reference.device, *found), line)
