"""One step of a rank: the storages that it holds, by value and microbatch, and its actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..loss_outputs import LossOutputs
from ..strides import has_layout

if TYPE_CHECKING:
    from .rank import PipelineRank

ActionRecord = list[tuple[str, int, int, float, float]]
NONE = -1


class PipelineRankStep:
    """The state of one step; see `PipelineRank.step`."""

    def __init__(
        self,
        pipeline: PipelineRank,
        tensors: list[list[torch.Tensor]],
        loss: Callable[[Any], torch.Tensor] | None,
        outputs: list[Any] | None,
        record: ActionRecord | None,
    ) -> None:
        self.pipeline, self.facts = pipeline, pipeline.facts
        self.messages, self.rank = pipeline.messages, pipeline.rank
        self.tensors, self.loss_of = tensors, loss
        self.outputs, self.record = outputs, record
        self.programs: dict[tuple[int, int], Any] = {}
        self.kept: dict[tuple[int, int], list[Any]] = {}
        self.results: dict[int, dict[int, torch.Tensor]] = {}
        self.states: dict[tuple[int, int], torch.Tensor] = {}
        self.after: torch.Tensor | None = None
        self.losses: list[torch.Tensor] = []
        self.holders = self._holders()

    def run(self) -> list[torch.Tensor]:
        """Runs all actions of the rank and gives the losses."""
        for action in self.pipeline.actions:
            self.do(action)
        return self.finish()

    def do(self, action: list[Any]) -> None:
        """Does one action: its kind, its subject, a microbatch, a peer."""
        kind, subject, microbatch, peer, *_ = action
        begin = time.perf_counter()
        getattr(self, f"_{kind}")(subject, microbatch, peer)
        if self.record is not None:
            self.record.append((kind, subject, microbatch, begin, time.perf_counter()))

    def finish(self) -> list[torch.Tensor]:
        """Ends the step and gives the losses."""
        if self.after is not None:
            torch.set_rng_state(self.after)
        return self.losses

    def _holders(self) -> dict[int, int]:
        """How many units of this rank and messages take each parcel, by its value."""
        ranks = [stage["rank"] for stage in self.facts["stages"]]
        found = {}
        for parcel in self.facts["parcels"]:
            takers = [ranks[stage - 1] for stage, _ in parcel["takers"]]
            own = ranks[parcel["maker"][0] - 1] == self.rank
            sent = len(set(takers) - {self.rank}) if own else 0
            found[parcel["value"]] = takers.count(self.rank) + sent
        return found

    def _keep(self, value: int, microbatch: int, tensor: torch.Tensor) -> None:
        """Keeps a parcel for those who take it."""
        if self.holders[value]:
            self.kept[value, microbatch] = [tensor, self.holders[value]]

    def _take(self, value: int, microbatch: int) -> torch.Tensor:
        """A parcel; the last one who takes it leaves nothing behind."""
        entry = self.kept[value, microbatch]
        entry[1] -= 1
        if not entry[1]:
            del self.kept[value, microbatch]
        tensor: torch.Tensor = entry[0]
        return tensor

    def _draw(self, subject: int, microbatch: int, peer: int) -> None:
        """Draws what all stages draw, in the order of one process; keeps the state from before each
        forward of this rank."""
        torch.set_rng_state(self.messages.broadcast_random_state(torch.get_rng_state()))
        stages = self.facts["stages"]
        for number in range(self.pipeline.microbatches):
            for stage, draw in sorted(self.pipeline.draws.items()):
                if stages[stage - 1]["rank"] == self.rank:
                    self.states[stage, number] = torch.get_rng_state()
                draw()
        self.after = torch.get_rng_state()

    def _receive(self, subject: int, microbatch: int, peer: int) -> None:
        value = self.facts["parcels"][subject]["value"]
        self._keep(value, microbatch, self.messages.receive(subject, microbatch, peer))

    def _send(self, subject: int, microbatch: int, peer: int) -> None:
        value = self.facts["parcels"][subject]["value"]
        self.messages.send(subject, microbatch, peer, self._take(value, microbatch))

    def _wait(self, subject: int, microbatch: int, peer: int) -> None:
        self.messages.wait(subject, microbatch, peer)

    def _forward(self, stage: int, microbatch: int, peer: int) -> None:
        """Runs the program of a stage up to the end of its forward."""
        facts = self.facts["programs"][stage - 1]
        last = stage == len(self.facts["stages"])
        state = self.states.pop((stage, microbatch), None)
        if state is not None:
            torch.set_rng_state(state)
            del state
        found = {value: self._take(value, microbatch) for value in facts["arrive"]}
        results = {value: found[value] for value in facts["passed"]} if last else {}
        given = [self._argument(value, microbatch, found) for value in facts["arguments"]]
        found.clear()
        program = self.pipeline.programs[stage - 1](*given)
        given.clear()
        yielded = program.send(None)
        for value, tensor in dict(zip(facts["yields"], yielded, strict=True)).items():
            if value in self.holders:
                self._keep(value, microbatch, tensor)
            if last:
                results[value] = tensor
        yielded.clear()
        if last:
            self.results[microbatch] = results
        self.programs[stage, microbatch] = program

    def _argument(
        self, value: int, microbatch: int, found: dict[int, torch.Tensor]
    ) -> torch.Tensor | None:
        if value in found:
            return found[value]
        place = self.pipeline.places.get(value)
        return None if place is None else self.tensors[microbatch][place]

    def _loss(self, stage: int, microbatch: int, peer: int) -> None:
        """Runs the loss on the outputs of a microbatch, and keeps its tangents."""
        results = self.results.pop(microbatch)
        facts = self.facts["results"]
        leaves = [results[value].detach().requires_grad_() for value in facts["differentiable"]]
        plain = [results[value] for value in facts["plain"]]
        results.clear()
        tangents: list[torch.Tensor | None] = []
        with torch.enable_grad():
            given = LossOutputs.apply(lambda *found: tangents.extend(found), *leaves)
            output = self.pipeline.assemble([*given], plain, self.tensors[microbatch])
        leaves.clear()
        if self.outputs is not None:
            self.outputs.append(output)
        if self.loss_of is None:
            [at] = [at for at, tangent in enumerate(facts["tangents"]) if tangent != NONE]
            self.losses.append(given[at].detach().clone())
            tangents += [None] * len(given)
            tangents[at] = torch.ones_like(given[at])
        else:
            self._run_loss(output)
        del output, plain, given
        tangents = tangents or [None] * len(facts["tangents"])
        for number, value in enumerate(facts["tangents"]):
            tangent, tangents[number] = tangents[number], None
            self._tangent(number, value, tangent, microbatch)
            del tangent

    def _run_loss(self, output: Any) -> None:
        """Computes the loss of an output and its gradients, and keeps the loss."""
        assert self.loss_of is not None
        before = _peek_random_numbers()
        with torch.enable_grad():
            loss = self.loss_of(output)
            self._check_reads(loss)
            loss.backward()
        if before != _peek_random_numbers():
            raise RuntimeError(
                "the loss draws random numbers, which come to the rank of the last stage "
                "alone: draw them in the model's forward"
            )
        self.losses.append(loss.detach().clone())

    def _check_reads(self, loss: torch.Tensor) -> None:
        """Raises RuntimeError where a loss has gradients for parameters of the model, beside those
        that its outputs bring there."""
        names = {id(each): name for name, each in self.pipeline.model.named_parameters()}
        for leaf in _accumulated_leaves(loss):
            if id(leaf) in names:
                raise RuntimeError(
                    f"the loss reads the parameter {names[id(leaf)]} of the model, whose gradient "
                    "would come to the rank of the last stage alone: compute what it needs of "
                    "parameters in the model's forward"
                )

    def _tangent(
        self, number: int, value: int, tangent: torch.Tensor | None, microbatch: int
    ) -> None:
        """Keeps the gradient of an output; refuses one that the plan does not expect."""
        if (value == NONE) != (tangent is None):
            said = "a" if tangent is not None else "no"
            raise RuntimeError(
                f"output {number} receives {said} gradient, unlike when the pipeline was planned: "
                "give step the loss that it was planned with"
            )
        if tangent is None:
            return
        _, strides, dtype = self.facts["layouts"][str(value)]
        if not has_layout(tangent, strides) or str(tangent.dtype) != f"torch.{dtype}":
            raise RuntimeError(
                f"the gradient of output {number} has other strides or another dtype than when the "
                "pipeline was planned: give step the loss that it was planned with"
            )
        if value in self.holders:
            self._keep(value, microbatch, tangent)

    def _backward(self, stage: int, microbatch: int, peer: int) -> None:
        """Runs the rest of a stage's program, and takes the gradients that it hands over."""
        facts = self.facts["programs"][stage - 1]
        program = self.programs.pop((stage, microbatch))
        message: Any = [self._take(value, microbatch) for value in facts["tangents"]]
        pending: dict[int, list[Any]] = {}
        for owners, handed in zip(facts["slices"], facts["handed"], strict=True):
            gradients = program.send(message)
            message = None
            for place, (owner, value) in enumerate(zip(owners, handed, strict=True)):
                gradient, gradients[place] = gradients[place], None
                self._handed(facts, pending, (owner, value, microbatch), gradient)
                del gradient
        assert not pending
        try:
            program.send(message)
            raise AssertionError("a program hands over more than it says")
        except StopIteration:
            pass

    def _handed(
        self,
        facts: dict[str, Any],
        pending: dict[int, list[Any]],
        what: tuple[int, int, int],
        gradient: torch.Tensor | None,
    ) -> None:
        """Takes what a program hands over: a parcel, or a gradient or a part of one."""
        owner, value, microbatch = what
        if gradient is not None and gradient._is_view():
            gradient = gradient.detach()
        if gradient is not None and owner in facts["handing"]:
            self._keep(value, microbatch, gradient)
        elif gradient is None:
            self._accumulate(owner, pending.pop(owner)[0])
        elif str(owner) not in facts["several"]:
            self._accumulate(owner, gradient)
        else:
            entry = pending.setdefault(owner, [gradient, 0])
            if entry[1]:
                entry[0].add_(gradient)
            entry[1] += 1
            if entry[1] == facts["several"][str(owner)] and owner not in facts["told"]:
                self._accumulate(owner, pending.pop(owner)[0])

    def _sum(self, stage: int, microbatch: int, peer: int) -> None:
        """Adds up the gradients whose parts come from several stages, in the order of autograd."""
        for shared in self.facts["shared"]:
            if not shared["parts"] or shared["root"] != stage:
                continue
            total = None
            for base, part in zip(shared["bases"], shared["parts"], strict=True):
                tensor = self._take(base, microbatch)
                shape, strides, _ = self.facts["layouts"][str(part)]
                offset = self.facts["offsets"].get(str(part), 0)
                if base != part:
                    tensor = tensor.as_strided(shape, strides, offset)
                total = tensor if total is None else total.add_(tensor)
                del tensor
            assert total is not None
            self._accumulate(shared["value"], total)

    def _accumulate(self, owner: int, gradient: torch.Tensor) -> None:
        """Adds to `.grad` as autograd does, which takes what it is given first as it is."""
        parameter = self.tensors[0][self.pipeline.places[owner]]
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        elif gradient.stride() == parameter.stride():
            parameter.grad = gradient
        else:
            parameter.grad = torch.empty_like(parameter).copy_(gradient)

    def _share(self, subject: int, microbatch: int, peer: int) -> None:
        """Brings a gradient that several ranks share from the one that added it up to the
        others."""
        shared = self.facts["shared"][subject]
        first, *others = shared["ranks"]
        parameter = self.tensors[0][self.pipeline.places[shared["value"]]]
        if self.rank == first:
            for other in others:
                self.messages.share(subject, _require_gradient(parameter.grad), other, sends=True)
            return
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        self.messages.share(subject, parameter.grad, first, sends=False)


def _accumulated_leaves(result: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a backward of `result` adds gradients to."""
    known = set()
    rest = [getattr(result, "grad_fn", None)]
    while rest:
        node = rest.pop()
        if node is None or node in known:
            continue
        known.add(node)
        rest += [other for other, _ in node.next_functions]
        if isinstance(leaf := getattr(node, "variable", None), torch.Tensor):
            yield leaf


_DTYPES = (torch.float32, torch.float64, torch.float64)
_PEEKED_NUMBERS = [torch.empty((), dtype=each, device="cpu") for each in _DTYPES]
"""Where numbers are drawn that are only looked at: a step takes no memory for them."""


def _peek_random_numbers() -> tuple[float, ...]:
    """Random numbers that would be drawn next, which stay undrawn: they tell states apart without
    the memory that a state takes, or any else."""
    ahead = torch.default_generator.clone_state()
    return tuple(torch.randn((), generator=ahead, out=number).item() for number in _PEEKED_NUMBERS)


def _require_gradient(gradient: torch.Tensor | None) -> torch.Tensor:
    if gradient is None:
        raise RuntimeError("a gradient that several ranks share is not there")
    return gradient
