"""Runs a step under autograd: its backward is a chain of small functions.

The functions pass an empty token. All outputs leave by the last one, so that all their gradients
have arrived when the backward begins. Every other one returns the gradients that its slice of the
backward has finished: autograd accumulates them before the next slice runs. The state of a run
belongs to the run: it lives in the generator's frame and dies with the outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

from .backward_tracker import backward_failure, optimizer_refs, report_failed_backward
from .call_context import current_autocast_region, disable_function_modes, intercepting_mode
from .interface import Interface
from .intermediate_outputs import (
    IntermediateOutput,
    check_intermediate_outputs,
    watch_intermediate_outputs,
)
from .output_gradients import (
    MissingGradient,
    OutputGradient,
    copy_shared_gradients,
    receive_output_gradient,
)
from .repeated_backward import RepeatableForward
from .strides import restore_eager_strides

StepProgram = Callable[..., Generator[list[Any], list[OutputGradient], None]]
WatchedVersions = list[tuple[str, torch.Tensor, int]]


class StepRun:
    """One run of the step, suspended after its forward and after each slice of its backward."""

    __slots__ = (
        *("aliased", "device", "ended", "inner", "interface", "marks", "message", "program"),
        *("region", "repeatable", "unlike", "watched"),
    )

    def __init__(
        self,
        step: StepProgram,
        interface: Interface,
        tensors: Sequence[torch.Tensor],
        repeatable: bool = False,
    ) -> None:
        self.interface = interface
        self.device = tensors[0].device
        self.region = current_autocast_region(
            self.device, [tensors[i] for i in interface.cached_autocast_tensors]
        )
        self.marks = optimizer_refs(tensors)
        self.ended: list[str] = []
        """By what the backward has ended, where it has by an error."""
        self.program: Any = step(*tensors)
        self.message: list[OutputGradient] | None = None
        self.watched: list[WatchedVersions] = []
        self.aliased: list[tuple[torch.Tensor, int]] = []
        self.inner: list[IntermediateOutput] = []
        self.unlike = list(reversed(interface.eager_gradient_strides))
        self.repeatable = (
            RepeatableForward(step, interface, tensors, set(interface.written_tensors))
            if repeatable and interface.repeatable and not self.marks
            else None
        )

    def begin_backward(self, outputs: Sequence[int]) -> None:
        """Lets a backward begin through some outputs; a further one runs the forward again. Raises
        RuntimeError where there is none."""
        if self.repeatable is None or not self.repeatable.begin(outputs):
            return
        if self.ended:
            raise_ended_backward(self.ended, self.marks)
        tensors = self.repeatable.tensors()
        self.program = self.repeatable.start(tensors)
        self.watch(tensors, self.advance())
        self.aliased = []
        self.unlike = list(reversed(self.interface.eager_gradient_strides))

    def end_backward(self) -> None:
        """Drops what the last slice has left."""
        self.program.close()

    def advance(self) -> list[Any]:
        """Runs to the next stop and returns what the step yields there: a list to be emptied."""
        message, self.message = self.message, None
        if message is not None:
            copy_shared_gradients(message, self.interface.output_gradients)
        with (
            disable_function_modes(),
            torch.no_grad(),
            _disable_autocast(self.device),
            _enter_device(self.device),
        ):
            return self.program.send(message)

    def watch(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Remembers the versions of the tensors that each slice of the backward is going to read.

        The list begins with the last slice's, so that each slice takes its own off the end."""
        facts = self.interface
        self.watched = []
        for read, returned in zip(
            facts.version_checked_tensors, facts.version_checked_outputs, strict=True
        ):
            found = [(self._describe(i), tensors[i]) for i in read]
            found += [("an output", outputs[i]) for i in returned]
            self.watched.append([(name, tensor, tensor._version) for name, tensor in found])
        self.watched.reverse()
        self.aliased = [(outputs[i], outputs[i]._version) for i in facts.aliased]

    def check_autocast(self) -> None:
        """Refuses a backward that autocast, or casts that it shares, make another one in eager."""
        if torch.is_autocast_enabled(self.device.type):
            dtype = str(torch.get_autocast_dtype(self.device.type)).removeprefix("torch.")
            if dtype not in self.interface.autocast_invariant_dtypes:
                raise RuntimeError(
                    f"the backward runs under autocast with {dtype}, which would cast operands of "
                    "it: call backward outside of autocast"
                )
        region, self.region = self.region, None
        if region is not None:
            region.enter_backward()

    def check_aliased(self) -> None:
        """Refuses a backward after an output was changed through what it shares memory with."""
        aliased, self.aliased = self.aliased, []
        if any(tensor._version != version for tensor, version in aliased):
            raise RuntimeError(
                "an output that shares memory with another output, an input or a parameter was "
                "changed in place before the backward, which a planned step does not follow: "
                "change a clone of it"
            )

    def check_watched(self) -> None:
        """Refuses to run the next slice on tensors that have changed since the forward."""
        for name, tensor, version in self.watched.pop():
            if tensor._version != version:
                raise RuntimeError(
                    f"{name} was changed in place between the forward and the end of the backward, "
                    f"which needs it as it was: change it after the backward, or a clone of it"
                )

    def _describe(self, position: int) -> str:
        tensor = self.interface.tensors[position]
        return f"the {tensor.kind} {tensor.path}" if tensor.path else f"an {tensor.kind}"


def raise_ended_backward(ended: Sequence[str], marks: Any) -> None:
    """Raises RuntimeError for a backward of a step that has run one, which may have failed."""
    if why := next(iter(ended), "") or backward_failure(marks):
        raise RuntimeError(
            f"{why}; this ended the backward of a planned module: run the forward again"
        )
    raise RuntimeError(
        "the backward of this planned module runs once for each forward, since it cannot run its "
        "forward again for a second one (it draws random numbers, depends on what it writes, "
        "writes buffers in its backward, or has an optimizer, transfers or CUDA graphs): give "
        "several losses one backward of their sum"
    )


class _ReturnOutputs(torch.autograd.Function):
    """Lets the outputs out, and takes all their gradients in at once."""

    @staticmethod
    def forward(
        ctx: Any, run: StepRun, outputs: list[torch.Tensor], token: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.run = run
        ctx.set_materialize_grads(False)
        leaving = tuple(outputs)
        outputs.clear()
        return leaving

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        run = ctx.run
        if run is None:
            raise_ended_backward(*ctx.started)
        if run.repeatable is None:
            ctx.run = None
        ctx.started = run.ended, run.marks
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a planned module has no double backward (create_graph=True): use the original "
                "model where a gradient is differentiated again"
            )
        mode = intercepting_mode(functions=False)
        if mode:
            raise RuntimeError(
                f"the backward is inside {mode}, which would see other operators than those of "
                f"the original model: call it outside of it"
            )
        run.begin_backward([n for n, tangent in enumerate(tangents) if tangent is not None])
        run.check_autocast()
        run.check_aliased()
        check_intermediate_outputs(run.inner)
        expected = run.interface.output_gradients
        for number, tangent in enumerate(tangents):
            if expected[number] is None and tangent is not None:
                raise RuntimeError(
                    f"output {number} receives a gradient, but the plan was made for a loss that "
                    f"does not use it: give loss=None, or a loss that uses it, too, to what made "
                    "the plan (Fit, LightningFit, plan_trainer, plan_at_first_call, plan)"
                )
            if (
                expected[number] is not None
                and tangent is None
                and run.interface.requires_all_output_gradients
            ):
                raise RuntimeError(
                    f"output {number} receives no gradient, but Python that the model has in its "
                    f"backward needs those of all outputs: let all take part in the loss, as by "
                    f"adding 0.0 * output.sum(), or plan with the loss (loss=)"
                )
        run.message = [
            receive_output_gradient(tangent, layout, number, run.device)
            for number, (tangent, layout) in enumerate(zip(tangents, expected, strict=True))
            if layout is not None
        ]
        return None, None, torch.empty(0, device=run.device)


class _ReturnOutput(torch.autograd.Function):
    """Lets one of several outputs out."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor | None) -> torch.Tensor | None:
        return tangent


class _BackwardSegment(torch.autograd.Function):
    """One slice of the backward: runs it and returns the gradients that it finishes."""

    @staticmethod
    def forward(
        ctx: Any, run: StepRun, token: torch.Tensor, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.run = run
        return torch.empty(0, device=run.device)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor) -> tuple[Any, ...]:
        run = ctx.run
        if run.repeatable is None:
            ctx.run = None
        try:
            run.check_watched()
            gradients = run.advance()
        except BaseException as error:
            run.ended.append(report_failed_backward(run.marks, error))
            raise
        unlike = run.unlike.pop()
        if run.repeatable is not None and not run.unlike:
            run.end_backward()
        handed = [_detach_view(gradient) for gradient in gradients]
        gradients.clear()
        if any(unlike):
            _, *receivers = ctx.next_functions
            restore_eager_strides(handed, unlike, [receiver for receiver, _ in receivers])
        return None, token, *handed


def _detach_view(gradient: OutputGradient | None) -> torch.Tensor | None:
    """The gradient without the tensor that it is a view of: autograd adds further parts to it in
    place where nobody else holds its storage. None for one that is absent."""
    if gradient is None or isinstance(gradient, MissingGradient):
        return None
    return gradient.detach() if gradient._is_view() else gradient


def run_forward(
    step: StepProgram,
    interface: Interface,
    tensors: Sequence[torch.Tensor],
    repeatable: bool = False,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Runs the forward of the step.

    Returns its outputs: those that receive gradients, joined to autograd, and the plain ones. If it
    is `repeatable`, it runs again for a further backward.
    """
    run = StepRun(step, interface, tensors, repeatable)
    yielded = run.advance()
    split = len(interface.output_gradients)
    # The step may need an output again: were what leaves the tensor that it holds, the run would
    # hold itself.
    leaving = [output.detach() for output in yielded]
    if not interface.backward_segments:
        return leaving[:split], leaving[split:]
    run.watch(tensors, yielded)
    yielded.clear()
    plain = leaving[split:]
    del leaving[split:]
    # What is left to be done when the last gradients are taken up has a slice without any.
    token = torch.empty(0, device=run.device, requires_grad=not interface.backward_segments[-1])
    for positions in reversed(interface.backward_segments):
        token = _BackwardSegment.apply(run, token, *[tensors[position] for position in positions])
    returned = list(_ReturnOutputs.apply(run, leaving, token))
    return _separate_outputs(run, returned), plain


def _forbid_writes(output: torch.Tensor) -> torch.Tensor:
    """The output as one of several views of a function: PyTorch lets nobody write into it."""
    view = output.view_as(output)
    torch._C._autograd._set_creation_meta(view, torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE)
    return view


def _separate_outputs(run: StepRun, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs; where there are several, each by a function of its own: hooks of one run where
    it receives a gradient, in eager's order."""
    for number in reversed(run.interface.backward_order):
        if len(outputs) > 1:
            outputs[number] = _ReturnOutput.apply(outputs[number])
        if number in run.interface.unwritable:
            outputs[number] = _forbid_writes(outputs[number])
    run.inner = watch_intermediate_outputs(outputs, run.interface.intermediate_outputs)
    return outputs


def get_random_state(device: str) -> torch.Tensor:
    """The present state of the random numbers of the current device of a type."""
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


@contextlib.contextmanager
def use_random_state(state: torch.Tensor, device: str) -> Iterator[None]:
    """Within it random numbers are drawn from a saved state; then the present one is put back."""
    present = get_random_state(device)
    _set_random_state(state, device)
    try:
        yield
    finally:
        _set_random_state(present, device)


def _set_random_state(state: torch.Tensor, device: str) -> None:
    if device == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _disable_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The program says itself where it casts, so autocast is off while it runs."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def _enter_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
