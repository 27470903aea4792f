"""One rank of a pipeline: runs its actions, sends and receives, and adds up gradients.

The ranks are the processes of a group of torch.distributed, on the CPU. Ranks send and receive
themselves. The stages of torch.distributed.pipelining pass tensors to the next stage alone, add up
a parameter that several of them share in another order than one process does, and receive into
buffers that are there for the whole step. `schedule.csv` beside this file says their order in the
words of that module.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from ..call_context import check_call_context, check_tensor_types, disable_function_modes
from ..guards.check import Guards
from ..interface import Interface, PlainArgument, output_assembler
from .p2p import PeerMessages
from .step import ActionRecord, PipelineRankStep

MicrobatchLoss = Callable[[Any], torch.Tensor]
MicrobatchCall = tuple[tuple[Any, ...], dict[str, Any]]


class PipelineRank:
    """What a rank runs of a pipeline. `parameters` are those that its stages read, which are its
    own to optimize: gradients of what several ranks read come to all of them."""

    def __init__(
        self,
        model: torch.nn.Module,
        rank: int | None,
        group: Any,
        interface: Interface,
        programs: Sequence[Callable[..., Generator[list[Any], Any, None]]],
        draws: Mapping[int, Callable[[], None]],
    ) -> None:
        package = Path(__file__).parents[2]
        self.facts = json.loads((package / "pipeline.json").read_bytes())
        self.model = model
        self.messages = PeerMessages(group, self.facts)
        self.rank = self.messages.check(rank)
        self.programs, self.draws = programs, draws
        self.actions: list[list[Any]] = self.facts["actions"][self.rank]
        self.values, self.interface = _rank_interface(interface, self.facts, self.rank)
        self.places = {value: place for place, value in enumerate(self.values)}
        self.guards = Guards(self.interface, model, package)
        self.digests_compared = False
        self.assemble = output_assembler(self.interface)

    @property
    def microbatches(self) -> int:
        """How many calls of the model make a step."""
        return int(self.facts["microbatches"])

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The parameters that this rank's stages read, with their names in the model."""
        known = dict(self.model.named_parameters(remove_duplicate=False))
        for tensor in self.interface.tensors:
            if tensor.kind == "parameter":
                yield tensor.path, known[tensor.path]

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters that this rank's stages read."""
        for _, parameter in self.named_parameters():
            yield parameter

    def step(
        self,
        calls: Sequence[MicrobatchCall],
        loss: MicrobatchLoss | None = None,
        outputs: list[Any] | None = None,
        record: ActionRecord | None = None,
    ) -> list[torch.Tensor]:
        """Runs the model forward and backward on all microbatches, (args, kwargs) each, the same on
        every rank, and flushes.

        Adds the gradients of `loss(output)` of each microbatch, in their order, to `.grad` of this
        rank's parameters; `loss` is needed where the pipeline was planned with one. Gives the
        losses on the rank of the last stage, nothing on others. The rank of the last stage appends
        the outputs to `outputs` where given; (kind, subject, microbatch, start, end) of each action
        is appended to `record`. Raises PlanMismatch for calls that differ from the plan,
        RuntimeError where another rank is lost.
        """
        for call in calls:
            pair = isinstance(call, (tuple, list)) and len(call) == 2
            if not (pair and isinstance(call[0], (tuple, list)) and isinstance(call[1], Mapping)):
                raise RuntimeError(
                    "a call is a pair of the arguments of the model, (args, kwargs), such as "
                    f"((tokens,), {{}}), and one given here is a {type(call).__name__}"
                )
        if len(calls) != self.microbatches:
            raise RuntimeError(
                f"the pipeline was planned for {self.microbatches} microbatches, "
                f"and {len(calls)} are given"
            )
        if self.facts["has_loss"] and loss is None:
            raise RuntimeError("the pipeline was planned with a loss: give it to step(..., loss)")
        if loss is not None and not self.facts["has_loss"]:
            raise RuntimeError("the pipeline was planned without a loss: the output is the loss")
        stepping = self.begin(calls, loss, outputs, record)
        if not self.digests_compared:
            self._meet(stepping.tensors)
        with disable_function_modes(), torch.no_grad():
            losses = stepping.run()
        self.digests_compared = True
        return losses

    def begin(
        self,
        calls: Sequence[MicrobatchCall],
        loss: MicrobatchLoss | None,
        outputs: list[Any] | None = None,
        record: ActionRecord | None = None,
    ) -> PipelineRankStep:
        """A step that has not done anything yet; see `step`."""
        check_call_context(self.guards.writes)
        tensors = [self.guards.gather(self.model, args, kwargs) for args, kwargs in calls]
        for each in tensors:
            check_tensor_types(each)
        self._check_hooks(tensors[0])
        return PipelineRankStep(self, tensors, loss, outputs, record)

    def _meet(self, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
        """Compares, ahead of the first step, the packages of the ranks, all inputs, and the
        parameters and buffers that several read. Raises RuntimeError where two have different
        ones."""
        readers = Counter(value for needed in self.facts["needed"] for value in needed)
        found = {"package of a plan": _package_digest()}
        for place, value in enumerate(self.values):
            given = self.interface.tensors[place].kind == "input"
            if given or readers[value] > 1:
                rows = tensors if given else tensors[:1]
                found[self.guards.names[place]] = _tensors_digest([row[place] for row in rows])
        self.messages.meet(found)

    def _check_hooks(self, tensors: Sequence[torch.Tensor]) -> None:
        for described, tensor in zip(self.interface.tensors, tensors, strict=True):
            if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
                raise RuntimeError(
                    f"{described.path} has a hook, which a pipeline does not call: remove it, and "
                    "look at .grad behind the step"
                )


def _package_digest() -> str:
    """The digest of what the ranks do: their actions and the programs of all stages."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256((package / "pipeline.json").read_bytes())
    for path in sorted(package.glob("stage_*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _tensors_digest(tensors: Sequence[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def release_unused_parameters(
    model: torch.nn.Module, interface: Interface, package: Path, rank: int
) -> None:
    """Puts tensors without memory in the place of the parameters and buffers that a rank's stages
    do not read."""
    facts = json.loads((package / "pipeline.json").read_bytes())
    _, own = _rank_interface(interface, facts, rank)
    kept = {path for tensor in own.tensors for path in (tensor.path, *tensor.aliases)}
    made: dict[int, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or (f"{path}.{name}" if path else name) in kept:
                    continue
                if id(tensor) not in made:
                    light = tensor.detach().to("meta")
                    if isinstance(tensor, torch.nn.Parameter):
                        light = torch.nn.Parameter(light, tensor.requires_grad)
                    made[id(tensor)] = (light, tensor)
                held[name] = made[id(tensor)][0]


def _rank_interface(
    interface: Interface, facts: Mapping[str, Any], rank: int
) -> tuple[list[int], Interface]:
    """The values and the interface of what a rank takes: all inputs, and the parameters, buffers
    and constants that its stages read."""
    wanted = set(facts["needed"][rank])
    kept = [
        place
        for place, tensor in enumerate(interface.tensors)
        if tensor.kind == "input" or facts["tensors"][place] in wanted
    ]
    new = {old: place for place, old in enumerate(kept)}
    ends = rank == facts["stages"][-1]["rank"]
    return [facts["tensors"][old] for old in kept], dataclasses.replace(
        interface,
        tensors=tuple(interface.tensors[old] for old in kept),
        leaves=tuple(
            leaf if isinstance(leaf, PlainArgument) else new[leaf] for leaf in interface.leaves
        ),
        outputs=tuple(
            dataclasses.replace(leaf, position=new[leaf.position])
            if leaf.source in ("tensor", "detached")
            else leaf
            for leaf in interface.outputs
        )
        if ends
        else (),
        output_tree=interface.output_tree if ends else "null",
        stride_flexible_inputs=tuple(
            new[old] for old in interface.stride_flexible_inputs if old in new
        ),
        copyable_inputs=tuple(new[old] for old in interface.copyable_inputs if old in new),
        same_object_inputs=tuple(
            (new[one], new[other]) for one, other in interface.same_object_inputs
        ),
        assigned_buffers=(),
        cached_autocast_tensors=(),
    )
