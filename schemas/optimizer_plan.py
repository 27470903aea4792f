"""What updates of parameters in a step take, with their states in an offload target."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tightfit.schemas.chain import MAX_BYTES, are_valid_times
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink, TransferOverhead, parse_host_link
from tightfit.schemas.store import read_json, write_json
from tightfit.util.errors import ArtifactError, ConfigError

OFFLOADED_PARAMETERS = "offload"
ON_DEVICE = "device"
PARAMETER_PLACES = (OFFLOADED_PARAMETERS, ON_DEVICE)
"""Where parameters of a step wait for their use."""


def small_parameters_error(where: object, least: int) -> ConfigError:
    """What is said of a graph without a parameter that is large enough to be offloaded."""
    return ConfigError(
        f"{where}: no parameter that can be offloaded has {least:,} bytes or more, and smaller "
        "ones stay on the device: say so by --parameters device (parameters: device in a "
        "configuration), or plan the step without its optimizer"
    )


@dataclass(frozen=True)
class LinkSpeed(TransferOverhead):
    """A link as it was measured: bytes a second that leave (`to`) and return (`back`), each with
    nothing else on its way, and `both` ways at once, each way; seconds of a short transfer."""

    to: float
    back: float
    both: tuple[float, float]
    latency: float
    overhead: float = 0.0
    overhead_per_byte: float = 0.0

    def seconds(self, size: int, leaves: bool) -> float:
        """What a transfer takes while the other way is busy too, infinite without a bandwidth."""
        bandwidth = self.both[0 if leaves else 1]
        return self.latency + size / bandwidth if bandwidth else math.inf

    @classmethod
    def of(cls, link: HostLink) -> LinkSpeed:
        """The speed of a link that was described."""
        each, own = link.bandwidth, (link.latency, link.overhead, link.overhead_per_byte)
        return cls(each, each, (each, each), *own)


@dataclass(frozen=True)
class ParameterUpdateCost:
    """The update of one parameter.

    `pieces` are the bytes of states that each piece brings, `seconds` what all of it computes,
    `peak` the most bytes that it takes beyond parameter, gradient and staging, and `net` what stays
    of these; `first` are peak and net where there were no states. In the offload target it takes
    `host_seconds`, and adding a gradient to a sum `add_seconds`, infinite where nothing computes
    there; beside the buffers of that it takes `host_peak` bytes.
    """

    path: str
    pieces: tuple[int, ...]
    seconds: float
    peak: int
    net: int
    first: tuple[int, int]
    host_seconds: float = math.inf
    add_seconds: float = math.inf
    host_peak: int = 0

    @property
    def states(self) -> int:
        """The bytes of all states."""
        return sum(self.pieces)

    def piece_shares(self) -> Iterator[tuple[float, int]]:
        """The part of the work and the bytes of states of each piece."""
        whole = self.states
        for size in self.pieces:
            yield size / whole if whole else 1 / len(self.pieces), size

    def parts(self) -> Iterator[tuple[float, int]]:
        """The seconds and the bytes of states of each piece."""
        for share, size in self.piece_shares():
            yield self.seconds * share, size


@dataclass(frozen=True)
class SecondTierStates:
    """A second offload tier, to which a `link` leads from the other one, such as a disk behind the
    host's. The states of the parameters `values`, which are updated in the offload target, are in
    it, and pass through `buffers` staging buffers of that."""

    link: HostLink
    values: frozenset[int]
    buffers: int

    def staging(self, costs: Mapping[int, ParameterUpdateCost]) -> int:
        """The bytes of the staging buffers."""
        pieces = [size for value in self.values for size in costs[value].pieces]
        return self.buffers * max(pieces, default=0)

    def states(self, costs: Mapping[int, ParameterUpdateCost]) -> int:
        """The bytes of the states in the second offload tier."""
        return sum(costs[value].states for value in self.values)


@dataclass(frozen=True)
class OptimizerPlan:
    """The optimizer of a step, as the simulator plays it.

    `costs` are by parameter (a value of the graph). States are in the offload target, but for those
    of the parameters `on_device`, and pass through `buffers` staging buffers of the device; there
    are none yet in a `first` step, and no gradients in a first microbatch that adds. Where it is
    `cyclic`, steps follow each other without a seam (`stages.simulate.cyclic_schedule`). The
    `offloaded` ones live in the offload target; those of them that are `resident` are on the
    device, too, when the step begins and when it ends. Of several `microbatches` the last one
    updates, and all others `add` their gradients up: the sums of remote parameters are in the
    offload target then, and in a last one that is `has_sums`. The states of some are in a second
    offload tier, where there is one, `second_tier`. Measured costs are those of an `optimizer`, a
    class of `torch.optim` with its `settings` (those that are not its usual ones), in pieces of
    `piece_bytes` bytes of a parameter. Updates in the offload target take `workspace_bytes` bytes
    of the device, where that memory is a disk: buffers and temporaries."""

    costs: Mapping[int, ParameterUpdateCost]
    speed: LinkSpeed
    buffers: int
    first: bool = False
    on_device: frozenset[int] = frozenset()
    offloaded: frozenset[int] = frozenset()
    resident: frozenset[int] = frozenset()
    accumulates: bool = False
    has_sums: bool = False
    second_tier: SecondTierStates | None = None
    optimizer: str = ""
    piece_bytes: int = 0
    workspace_bytes: int = 0
    microbatches: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    cyclic: bool = False

    @property
    def has_program(self) -> bool:
        """Whether the optimizer is part of a generated program: parameters are offloaded, or
        measured updates say of which optimizer it is."""
        return bool(self.offloaded or self.optimizer)

    @property
    def second_tier_parameters(self) -> frozenset[int]:
        """The parameters whose states are in the second offload tier."""
        return self.second_tier.values if self.second_tier else frozenset()

    @property
    def staging(self) -> int:
        """The bytes of the staging buffers. Where updates are run they are as large as any piece:
        what a caller asks for passes through them, wherever it lives."""
        apart = frozenset() if self.optimizer else self.on_device | self.second_tier_parameters
        passing = [cost for value, cost in self.costs.items() if value not in apart]
        return self.buffers * max((max(cost.pieces) for cost in passing if cost.pieces), default=0)

    @property
    def offloaded_state_bytes(self) -> int:
        """The bytes of the states in the offload target, and of those buffers there that states of
        a third one pass through."""
        apart = self.on_device | self.second_tier_parameters
        own = sum(c.states for value, c in self.costs.items() if value not in apart)
        return own + (self.second_tier.staging(self.costs) if self.second_tier else 0)

    def host_bytes(self, graph: Graph) -> int:
        """The bytes that are in the offload target before the step and after it."""
        storages = {graph.values[value].storage for value in self.offloaded}
        moving = sum(graph.storages[storage] for storage in storages)
        sums = moving if self.accumulates or self.has_sums else 0
        return self.offloaded_state_bytes + moving + sums

    def text(self) -> str:
        """The optimizer as JSON, with null for what is infinite."""
        costs = [
            {
                **asdict(cost),
                "value": value,
                "host_seconds": _finite_or_none(cost.host_seconds),
                "add_seconds": _finite_or_none(cost.add_seconds),
            }
            for value, cost in sorted(self.costs.items())
        ]
        sets = {name: sorted(getattr(self, name)) for name in _PARAMETER_SETS}
        plain = {"buffers": self.buffers, "first": self.first, "speed": asdict(self.speed)}
        plain |= {"accumulates": self.accumulates, "has_sums": self.has_sums}
        plain |= {
            "optimizer": self.optimizer,
            "piece_bytes": self.piece_bytes,
            "workspace_bytes": self.workspace_bytes,
        }
        plain |= {"microbatches": self.microbatches}
        plain |= {"settings": dict(self.settings)} if self.settings else {}
        plain |= {"cyclic": True} if self.cyclic else {}
        if self.second_tier is not None:
            values, link = sorted(self.second_tier.values), self.second_tier.link.text()
            plain["second_tier"] = {
                "link": link,
                "values": values,
                "buffers": self.second_tier.buffers,
            }
        return json.dumps({"costs": costs, **sets, **plain}, sort_keys=True)


_PARAMETER_SETS = ("on_device", "offloaded", "resident")


def _finite_or_none(figure: float) -> float | None:
    return None if figure == math.inf else figure


def parse_optimizer_plan(text: str, what: str) -> OptimizerPlan:
    """The optimizer that `OptimizerPlan.text` says; raises ArtifactError, naming `what`, where it
    is none."""
    try:
        found = json.loads(text)
        costs = {row.pop("value"): _parse_update_cost(row) for row in found.pop("costs")}
        speed = found.pop("speed")
        both = (float(speed["both"][0]), float(speed["both"][1]))
        made = OptimizerPlan(
            costs=costs,
            speed=LinkSpeed(**{**speed, "both": both}),
            on_device=frozenset(found.pop("on_device")),
            offloaded=frozenset(found.pop("offloaded")),
            resident=frozenset(found.pop("resident")),
            second_tier=_parse_second_tier(found.pop("second_tier", None), what),
            **found,
        )
        good = _is_plausible(made)
    except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError):
        good = False
    if not good:
        raise ArtifactError(f"{what}: what it says of an optimizer is none")
    return made


def _parse_second_tier(found: Any, what: str) -> SecondTierStates | None:
    if found is None:
        return None
    link, values = parse_host_link(found.pop("link"), what), frozenset(found.pop("values"))
    return SecondTierStates(link=link, values=values, **found)


def _parse_update_cost(row: dict[str, Any]) -> ParameterUpdateCost:
    away, adding = row.pop("host_seconds"), row.pop("add_seconds")
    pieces, (own, net) = tuple(row.pop("pieces")), row.pop("first")
    return ParameterUpdateCost(
        **row,
        pieces=pieces,
        first=(own, net),
        host_seconds=math.inf if away is None else away,
        add_seconds=math.inf if adding is None else adding,
    )


def _is_plausible(made: OptimizerPlan) -> bool:
    speed = made.speed
    times = [speed.latency, speed.overhead, speed.overhead_per_byte]
    times += [cost.seconds for cost in made.costs.values()]
    speeds = [speed.to, speed.back, *speed.both]
    there = [t for c in made.costs.values() for t in (c.host_seconds, c.add_seconds)]
    more = [*speeds, *there]
    flags = (made.first, made.accumulates, made.has_sums, made.cyclic)
    far = made.second_tier
    sizes = [
        made.buffers,
        made.piece_bytes,
        made.workspace_bytes,
        made.microbatches,
        *(size for name in _PARAMETER_SETS for size in getattr(made, name)),
        *made.costs,
        *([] if far is None else [far.buffers, *far.values]),
    ]
    for cost in made.costs.values():
        sizes += [*cost.pieces, cost.peak, cost.net, cost.host_peak, *cost.first]
    texts = all(isinstance(cost.path, str) for cost in made.costs.values())
    texts = texts and isinstance(made.optimizer, str) and isinstance(made.settings, dict)
    whole = all(type(size) is int and 0 <= size < MAX_BYTES for size in sizes)
    numbers = all(not isinstance(t, bool) and t >= 0 for t in (*times, *more))
    return (
        whole
        and numbers
        and texts
        and are_valid_times([*times, *(each for each in there if each != math.inf)])
        and (all(isinstance(flag, bool) for flag in flags) and made.resident <= made.offloaded)
        and made.microbatches > 0
        and (far is None or (far.buffers > 0 and far.values <= made.costs.keys()))
    )


@dataclass(frozen=True)
class OptimizerStepPrediction:
    """A training step with the updates of its parameters, as predicted.

    `total` is the most bytes on the device: `parameters`, `buffers`, `inputs`, the `staging` that
    states pass through, and `peak`, what the step takes beyond these; `first_peak` is that of the
    first step, which makes the states. Of several microbatches, whose `gradients` add up on the
    device, `opening_peak` is that of the first, `adding_peak` that of one that finds gradients
    there, and `accumulating_peak` that of the last, which updates; `accumulating_total` is the most
    bytes then, which `total` is where the budget counts them. `slow` bytes are in `slow_memory`, of
    which `moved` leave in each step, and as many or more return. It takes `seconds`, and waits for
    the offload target for `waited` of them. `schedule` is the path of its actions, as the simulator
    played them (`schemas.schedule`). Where parameters live in the offload target, `remote` are
    their bytes, and `parameters` those that are on the device between two steps, too; those of them
    that are updated there have `away` bytes, and on a CPU that takes `workspace` bytes of the
    device. A step of several `microbatches` takes `seconds` for all of them; `peak` is that of the
    last one, `microbatch_peak` that of the others, of which the first one takes
    `first_microbatch_peak`, and `gradients` are those of the parameters that are on the device.
    Where states are in a second offload tier, which is called `far_memory`, `far` are their bytes;
    `resident` are those of states that stay on the device."""

    optimizer: str
    total: int
    parameters: int
    buffers: int
    inputs: int
    staging: int
    peak: int
    first_peak: int
    accumulating_peak: int
    slow_memory: str
    slow: int
    moved: int
    seconds: float
    waited: float
    schedule: str
    remote: int = 0
    away: int = 0
    workspace: int = 0
    microbatches: int = 1
    microbatch_peak: int = 0
    first_microbatch_peak: int = 0
    gradients: int = 0
    opening_peak: int = 0
    adding_peak: int = 0
    accumulating_total: int = 0
    far_memory: str = ""
    far: int = 0
    resident: int = 0

    @property
    def places(self) -> dict[str, str]:
        """Which memory each part of the step lives in."""
        device = "device"
        states = f"{self.slow_memory}, pieces of them on the {device}"
        if self.far:
            states += f"; {self.far_memory}, pieces of them in the {self.slow_memory}"
        if self.resident:
            states += f"; {device}"
        return {
            "parameters": f"{self.slow_memory}, each on the {device} while it is used"
            if self.remote
            else device,
            "gradients": f"{device}, each until its parameter is updated",
            "optimizer states": states,
        }


OPTIMIZER_OFFLOAD = "optimizer_offload"
"""What plans a whole step: named as strategies are, and the folder of its plans."""
SAMPLE_FOLDER = "sample_"
"""What the names of folders begin with that have graph and costs of further samples of a step."""
MICROBATCH_SCHEDULE = "microbatch.arrow"
"""The file, beside the schedule of the last microbatch, of that of each other one."""
OPTIMIZER_COSTS_ARTIFACT = "tightfit.updates/2"
ELEMENTWISE_OPTIMIZERS = ("SGD", "Adam", "AdamW")
"""The classes of `torch.optim` that update parameters element by element."""
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class OptimizerCosts:
    """The `costs` of updates by the path of the parameter, with an `optimizer` (a class of
    `torch.optim`) of some `settings`, in pieces of `piece` bytes of a parameter; `spare` where a
    processor is left beside those that the device takes, which updates in the offload target have
    for themselves."""

    optimizer: str
    piece: int
    costs: Mapping[str, ParameterUpdateCost]
    spare: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


def write_optimizer_costs(path: Path | str, measured: OptimizerCosts) -> None:
    """Writes measured updates; raises ArtifactError where that cannot be done."""
    text = _costs_as_plan(measured).text()
    write_json(
        Path(path), {"artifact": OPTIMIZER_COSTS_ARTIFACT, "updates": text, "spare": measured.spare}
    )


def read_optimizer_costs(path: Path | str) -> OptimizerCosts:
    """Reads measured updates; raises ArtifactError where the file holds none."""
    found = read_json(path, _MOST_BYTES)
    text = found.get("updates") if isinstance(found, dict) else None
    if not isinstance(text, str) or found.get("artifact") != OPTIMIZER_COSTS_ARTIFACT:
        raise ArtifactError(f"{path}: is no {OPTIMIZER_COSTS_ARTIFACT}")
    spare = found.get("spare", True)
    if not isinstance(spare, bool):
        raise ArtifactError(f"{path}: what it says of a spare processor is neither true nor false")
    updates = parse_optimizer_plan(text, str(path))
    if not updates.optimizer or not updates.piece_bytes:
        raise ArtifactError(f"{path}: does not say of which optimizer it is")
    if updates.optimizer not in ELEMENTWISE_OPTIMIZERS:
        known = ", ".join(ELEMENTWISE_OPTIMIZERS)
        raise ArtifactError(f"{path}: {updates.optimizer!r} is no optimizer that is known: {known}")
    paths = Counter(cost.path for cost in updates.costs.values())
    if twice := [name for name, count in paths.items() if count > 1]:
        raise ArtifactError(f"{path}: the parameter {twice[0]!r} is updated twice")
    costs = {cost.path: cost for cost in updates.costs.values()}
    return OptimizerCosts(updates.optimizer, updates.piece_bytes, costs, spare, updates.settings)


def _costs_as_plan(measured: OptimizerCosts) -> OptimizerPlan:
    """The same as an optimizer of a step, by numbers in order, over a link that is not known."""
    return OptimizerPlan(
        costs=dict(enumerate(measured.costs.values())),
        speed=LinkSpeed(0.0, 0.0, (0.0, 0.0), 0.0),
        buffers=0,
        optimizer=measured.optimizer,
        piece_bytes=measured.piece,
        settings=measured.settings,
    )
