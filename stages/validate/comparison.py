"""Compares a planned module with its original in all rounds, and says what a difference means."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.reference import ResultDigests
from tightfit.stages.runtime.guards.lru_caches import nested_tensors
from tightfit.stages.torch_utils.devices import (
    is_out_of_memory,
    move_tensors,
    preserve_random_states,
    release_device_memory,
)
from tightfit.stages.torch_utils.model_factory import Sample
from tightfit.stages.validate.difference_causes import (
    find_difference_cause,
    find_missing_library_kernels,
)
from tightfit.stages.validate.scenarios import (
    LOSS_ONLY_SCENARIO,
    SCENARIOS,
    STATEFUL_FORWARD_CAUSE,
    Scenario,
    quick_scenario,
)
from tightfit.stages.validate.step_memory import StepMemory
from tightfit.stages.validate.step_results import (
    ResultDifference,
    StepResults,
    compare_results,
    equal_digests,
    has_nan,
    result_digests,
)
from tightfit.stages.validate.training_step import StepRunner, copy_sample
from tightfit.util.errors import ModelError
from tightfit.util.progress import LabeledProgressCounter
from tightfit.util.tracebacks import describe_error

SEED = 20
REPEATS = 3
NOISE_FACTOR = 10.0
MAX_STEPS = 2 * (len(SCENARIOS) + 1)
"""Steps of a comparison that are told, at most."""
MAX_QUICK_STEPS = 2
"""Those of a quick one."""
ORIGINAL_STEP = "the model's own step"
PLANNED_STEP = "the planned step"

NO_DIFFERENCE = ResultDifference(0.0, 0.0, 0.0, True, "")


@dataclass(frozen=True)
class Comparison:
    """The largest differences of all rounds, and how much the original differs from itself in
    them. `complaint` is a clause that says what is not as it should be, "" for nothing. `skipped`
    is one that says what was not compared. Without `compared` nothing was. `libraries` are the
    operators of the original whose kernels the plan does not have, where it differs for them within
    the tolerance of its dtypes."""

    difference: ResultDifference
    own: ResultDifference
    complaint: str
    skipped: str = ""
    compared: bool = True
    libraries: Sequence[str] = ()

    def add_skipped_clause(self, clause: str) -> Comparison:
        """The same with one more clause on what the original had no memory for."""
        why = f"the original model is {clause}, since both do not fit"
        return replace(self, skipped="; ".join(filter(None, [self.skipped, why])))


@dataclass(frozen=True)
class Comparer:
    """A model, and the steps in which its planned modules are compared with it.

    The model is only ever run as a deep copy on `device`, and waits on the host where that is a
    GPU. Where the results may vary from run to run (`varying`), a plan may differ by ten times as
    much as the original does. What does not fit on the device is not compared, and named. Of rounds
    that are `known` the model has left what these digests are of: it is run in them only where a
    planned module leaves something else.
    """

    original: nn.Module
    stepper: StepRunner
    samples: list[Sample]
    nondeterministic: bool
    device: torch.device
    graph: Graph
    known: Mapping[str, ResultDigests] = field(default_factory=dict)
    planned_memory: StepMemory | None = None
    original_memory: StepMemory | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        stepper: StepRunner,
        samples: list[Sample],
        varying: bool,
        device: torch.device,
        graph: Graph,
    ) -> Comparer:
        """A comparer with a copy of a model."""
        on_host = device.type != "cpu"
        original = copy_model(model, on_host)
        if on_host:
            move_tensors(original, "cpu")
            release_device_memory(device)
        return cls(original, stepper, samples, varying, device, graph)

    def copy_original(self) -> nn.Module:
        """A copy of the model on the device."""
        copied_model = copy_model(self.original)
        move_tensors(copied_model, self.device)
        return copied_model

    def compare(
        self,
        planned: nn.Module,
        itself: bool = False,
        told: LabeledProgressCounter | None = None,
        rounds: Sequence[Scenario] = SCENARIOS,
    ) -> Comparison:
        """Runs rounds, unless given all, up to the first in which the planned module differs, up
        to MOST steps of which each is `told`.

        Copies of the planned module are run, too; with `itself` the first round runs the module
        that was given. Raises what the planned module raises on its own samples.
        """
        with freeze_garbage_collector():
            more = () if itself or rounds is not SCENARIOS else self._loss_only_scenarios()
            return self._compare(
                planned, itself, told or LabeledProgressCounter(), (*rounds, *more)
            )

    def _compare(
        self,
        planned: nn.Module,
        itself: bool,
        told: LabeledProgressCounter,
        rounds: Sequence[Scenario],
    ) -> Comparison:
        total = own = NO_DIFFERENCE
        skipped: list[str] = []
        libraries: list[str] = []
        given, planned = planned, copy_model(planned) if itself else planned
        contained, waiting = "", None
        for one in rounds:
            if one.name and one.name == contained:
                continue
            known, reference = self.known.get(one.name), None
            if known is None:
                reference = self._report_and_run_reference(one, told, skipped)
                if reference is None and skipped == [""]:
                    return Comparison(
                        NO_DIFFERENCE,
                        NO_DIFFERENCE,
                        "",
                        self._describe_skipped(skipped),
                        compared=False,
                    )
                if reference is None:
                    continue
            told(f"{PLANNED_STEP} {one.name}".strip())
            try:
                module = given if itself and not one.name else copy_model(planned)
                mine = self.run(one, module, self.planned_memory)
            except Exception as error:
                if not one.name:
                    raise
                if one.may_reject and type(error).__name__ == "PlanMismatch":
                    continue
                failed = f"the planned step fails {one.name} with {describe_error(error)}"
                clause = f"{failed}; {one.likely_cause}"
                if not one.contains:
                    return Comparison(total, own, clause)
                waiting = Comparison(total, own, clause)
                continue
            if known is not None and equal_digests(result_digests(mine), known):
                contained = one.contains
                continue
            reference = reference or self._report_and_run_reference(one, told, skipped)
            if reference is None:
                continue
            difference = compare_results(mine, reference)
            varied = (
                self._run_to_run_difference(one, reference)
                if not difference.bits_equal
                else NO_DIFFERENCE
            )
            total, own = total.joined(difference), own.joined(varied)
            excused = not varied.bits_equal and difference.within(NOISE_FACTOR, varied)
            if difference.bits_equal or excused:
                contained = one.contains if difference.bits_equal else ""
                continue
            libraries = self.libraries() if difference.share <= 1.0 else []
            if not libraries:
                complaint = self._describe_mismatch(one, difference, planned)
                waiting = Comparison(total, own, complaint)
                if not one.contains:
                    return waiting
        if waiting is not None:
            return waiting
        return Comparison(total, own, "", self._describe_skipped(skipped), libraries=libraries)

    def compare_quickly(
        self, planned: nn.Module, told: LabeledProgressCounter | None = None
    ) -> Comparison:
        """Runs two steps of copies of both modules, on other contents each, with both forwards
        ahead of both backwards. Where anything is not equal to the bit, or no number, it compares
        in all rounds, as `compare` does: they say what a difference comes from, and excuse some."""
        told, one = (
            told or LabeledProgressCounter(),
            quick_scenario(bool(self._loss_only_scenarios())),
        )
        with freeze_garbage_collector():
            try:
                told(ORIGINAL_STEP)
                reference = self.run(one, self.copy_original())
                told(PLANNED_STEP)
                equal = compare_results(self.run(one, copy_model(planned)), reference).bits_equal
            except Exception:  # the round that shows it says what it is and what it comes from
                equal = False
        if equal and not has_nan(reference):
            return Comparison(NO_DIFFERENCE, NO_DIFFERENCE, "")
        release_device_memory(self.device)
        return self.compare(planned, told=told)

    def _loss_only_scenarios(self) -> list[Scenario]:
        """The round for a first output that is one number, where others receive gradients, too."""
        receives = self.stepper.outputs_with_gradient
        if self.stepper.loss is not None or len(receives) < 2:
            return []
        shape = self.graph.values[self.graph.outputs[receives[0]].value].shape
        return [] if shape else [LOSS_ONLY_SCENARIO]

    def libraries(self) -> list[str]:
        """The operators of the original whose kernels the step has not."""
        sample = copy_sample(self.samples[0])
        with preserve_random_states():
            return find_missing_library_kernels(
                self.graph, self.copy_original(), self.stepper, sample
            )

    def _describe_skipped(self, rounds: list[str]) -> str:
        """A clause on the rounds for which the original has no memory."""
        if not rounds:
            return ""
        what = "not compared" if rounds == [""] else f"not compared {', '.join(rounds)}"
        return f"{what}, since the original model's step does not fit on {self.device}"

    def left(self, original: nn.Module, told: LabeledProgressCounter) -> dict[str, ResultDigests]:
        """The digests of what the model leaves in each round that it can run and has memory for;
        `original` is the copy of it that runs in the first."""
        found: dict[str, ResultDigests] = {}
        contained: set[str] = set()
        for one in SCENARIOS:
            if one.name in contained:
                continue
            trail = self._report_and_run_reference(one, told, [], None if one.name else original)
            if trail is not None:
                found[one.name] = result_digests(trail)
                contained |= {one.contains} - {""}
        return found

    def _report_and_run_reference(
        self,
        one: Scenario,
        told: LabeledProgressCounter,
        skipped: list[str],
        original: nn.Module | None = None,
    ) -> StepResults | None:
        """What the original leaves in a round, which is `told`; None where it cannot run it, or
        where it does not fit on the device: the round is `skipped` then."""
        told(f"{ORIGINAL_STEP} {one.name}".strip())
        try:
            found = self._reference(one, original)
        except torch.OutOfMemoryError:
            skipped.append(one.name)
            found = None
        if found is None:
            release_device_memory(self.device)
        return found

    def _reference(self, one: Scenario, original: nn.Module | None = None) -> StepResults | None:
        """What the original leaves in a round; None where it cannot run it.

        Raises OutOfMemoryError where it does not fit on the device, ModelError where it cannot run
        its samples."""
        try:
            module = self.copy_original() if original is None else original
            return self.run(one, module, self.original_memory)
        except Exception as error:
            if is_out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from error
            if one.name:
                return None
            raise ModelError(f"the model's own step fails with {describe_error(error)}") from error

    def run(
        self, one: Scenario, module: nn.Module, memory: StepMemory | None = None
    ) -> StepResults:
        """What a module leaves in a round, of which `memory` takes what steps take."""
        gc.collect()
        return one.run(module, replace(self.stepper, memory=memory), self.samples, SEED)

    def _run_to_run_difference(self, one: Scenario, reference: StepResults) -> ResultDifference:
        """How the original differs from itself in a round."""
        found = NO_DIFFERENCE
        for _ in range(REPEATS if self.nondeterministic else 0):
            found = found.joined(compare_results(self.run(one, self.copy_original()), reference))
        return found

    def _describe_mismatch(
        self, one: Scenario, difference: ResultDifference, planned: nn.Module
    ) -> str:
        likely = find_difference_cause(self, one, planned, SEED)
        if not likely and not one.name and ", step 0)" not in difference.first:
            likely = STATEFUL_FORWARD_CAUSE
        likely = likely or one.likely_cause
        where = f" {one.name}" if one.name else ""
        return (
            f"{difference.first} differs from the original model{where}, by up to "
            f"{difference.largest:g}; {likely}"
        )


@contextlib.contextmanager
def freeze_garbage_collector() -> Iterator[None]:
    """Within it the garbage collector looks only at what was made within it."""
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def copy_model(module: nn.Module, on_host: bool = False) -> nn.Module:
    """A deep copy with the strides of the original; raises ModelError where there can be none.

    With `on_host` parameters and buffers are copied to the host at once: there may be no room for
    them where they are. What a forward has left in an attribute of a module with its history, also
    in lists and dictionaries, is copied without that history."""
    left = [value for part in module.modules() for value in vars(part).values()]
    computed = [tensor for tensor in nested_tensors(left) if not tensor.is_leaf]
    known = {id(value): value.detach().clone() for value in computed}
    if on_host:
        known |= {id(tensor): _host_copy(tensor) for tensor in _plain_state(module)}
    try:
        copied_module = copy.deepcopy(module, known)
    except Exception as error:
        raise ModelError(
            "the model cannot be compared with its plan, since it cannot be copied by "
            f"copy.deepcopy ({describe_error(error)}): let it be copied, or plan with check=False"
        ) from error
    for one, other in zip(
        (*copied_module.parameters(), *copied_module.buffers()),
        (*module.parameters(), *module.buffers()),
        strict=True,
    ):
        if one.stride() != other.stride() and one.layout == torch.strided:
            size, strides = other.shape, other.stride()
            one.data = torch.empty_strided(size, strides, dtype=one.dtype, device=one.device)
            one.data.copy_(other.data)
    return copied_module


def _plain_state(module: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters and buffers of a module that are of no class of their own."""
    for tensor in (*module.parameters(), *module.buffers()):
        if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_leaf:
            yield tensor


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """What deepcopy makes of a parameter or a buffer, on the host."""
    contents = tensor.detach().to("cpu", copy=True)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(contents, tensor.requires_grad)
    contents.__dict__.update(vars(tensor))
    return contents.requires_grad_(tensor.requires_grad)


def describe_library_kernels(compared: Comparison) -> str:
    """A sentence on the operators for which a plan differs; "" where it does for none."""
    if not compared.libraries:
        return ""
    return (
        f"The original model runs {' and '.join(compared.libraries)}, whose kernels the plan does "
        f"not have; its results differ by up to {compared.difference.largest:g}, within the "
        "tolerance of their dtypes."
    )


def format_sentence(clause: str) -> str:
    """A clause as a sentence."""
    return f"{clause[0].upper()}{clause[1:]}." if clause else ""
