"""`tightfit.pipeline/3`: how the ranks of a pipeline run one training step, with a flush.

A JSON file beside a folder for each stage, `stage-1` and so on. The folder holds the `graph.arrow`
and `schedule.arrow` of a training step of its own. The inputs of that step are those of the model
and what earlier stages made, its tangents what later stages made in the backward. Values have the
ids that they have in the graph of the whole model. A plan that is infeasible has a pipeline without
ranks and stages.

A step runs `microbatches` calls of the model. On each microbatch every stage has two units, its
forward and its backward, and the last one the loss between them. What a unit makes and others read
is a **parcel**; it is sent once to each other rank that has a taker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from tightfit.schemas import store
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.util.errors import ArtifactError

_T = TypeVar("_T")

PIPELINE_ARTIFACT = "tightfit.pipeline/3"
PIPELINE_FILE = "pipeline.json"
FORWARD, LOSS, BACKWARD, SUM = "forward", "loss", "backward", "sum"
UnitPhase = Literal["forward", "loss", "backward", "sum"]
ActionKind = Literal[
    "draw", "receive", "forward", "loss", "backward", "sum", "send", "wait", "share",
]  # fmt: skip
MAX_MICROBATCHES = 4096
_LARGEST = 2**62

PipelineUnit = tuple[int, str]
"""A stage, from 1 on, and what of it: its forward, the loss, its backward, or the sum of the parts
of a gradient that comes behind its backward."""


def stage_folder(stage: int) -> str:
    """The name of the folder of a stage."""
    return f"stage-{stage}"


@dataclass(frozen=True)
class PipelineTransfer:
    """What a unit makes of each microbatch for `takers`: the bytes of the storage of `value`."""

    value: int
    maker: PipelineUnit
    takers: list[PipelineUnit]
    bytes: int


@dataclass(frozen=True)
class PipelineStage:
    """Positions first..last of the chain on a rank; `draws` says that its forward draws random
    numbers. `schedule` is the digest of its schedule.arrow, which names the graph.arrow beside it;
    "" where neither is written yet."""

    stage: int
    rank: int
    first: int
    last: int
    draws: bool
    schedule: str = ""


@dataclass(frozen=True)
class SharedGradient:
    """The gradient of the parameter `value`, which several ranks read: the stage `root` adds up its
    `parts` (values), in this order, and sends the sum over all microbatches to the `ranks`."""

    value: int
    root: int
    parts: list[int]
    ranks: list[int]


@dataclass(frozen=True)
class RankAction:
    """One action of a rank: on a stage (forward, loss, backward, sum), on a parcel (receive, send,
    wait) by its number, or on a shared gradient by its number; with a `microbatch` and the rank at
    the other end (`peer`), NONE where there is none. `live` bytes after it and the `peak` within
    it, above what was there when the step began."""

    kind: ActionKind
    subject: int
    microbatch: int
    peer: int = NO_VALUE
    live: int = 0
    peak: int = 0


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline as its ranks run it.

    `graph` is the digest of the whole model's graph, `devices` the names of the ranks' devices and
    `memory` their bytes. `fixed` are the bytes of each rank's parameters and buffers, `peaks` the
    most of its step beyond these, gradients included. `outputs` are the values of the model's
    output that the last stage gives. `loss_bytes` stay of each microbatch's loss, which takes
    `loss_peak` at most.
    """

    model: str
    graph: str
    devices: list[str]
    memory: list[int]
    microbatches: int
    stages: list[PipelineStage]
    parcels: list[PipelineTransfer]
    shared: list[SharedGradient]
    actions: list[list[RankAction]]
    fixed: list[int] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.devices)

    @property
    def feasible(self) -> bool:
        """Whether there is anything to run: a plan that is infeasible has no ranks."""
        return bool(self.stages)

    def rank_of(self, stage: int) -> int:
        """The rank of a stage."""
        return self.stages[stage - 1].rank

    def words(self, rank: int) -> list[str]:
        """What a rank computes, in the words of torch.distributed.pipelining: stages from 0."""
        letters = {FORWARD: "F", BACKWARD: "B"}
        return [
            f"{action.subject - 1}{letters[action.kind]}{action.microbatch}"
            for action in self.actions[rank]
            if action.kind in letters
        ]


def write_pipeline(path: Path | str, pipeline: PipelineSchedule) -> None:
    """Checks a pipeline and writes it as JSON."""
    check_pipeline(pipeline, str(path))
    store.write_json(path, {"artifact": PIPELINE_ARTIFACT, **pipeline_to_json(pipeline)})


def pipeline_to_json(pipeline: PipelineSchedule) -> dict[str, Any]:
    """A pipeline as plain data, each action a row."""
    document = asdict(pipeline)
    document["actions"] = [
        [list(action.values()) for action in actions] for actions in document["actions"]
    ]
    return document


def read_pipeline(path: Path | str) -> PipelineSchedule:
    """Reads a pipeline; raises ArtifactError, naming the file, where it is not what it should
    be."""
    document = store.read_json(path)
    if document.pop("artifact", None) != PIPELINE_ARTIFACT:
        raise ArtifactError(f"{path}: is no {PIPELINE_ARTIFACT}")
    try:
        pipeline = _pipeline_from_json(document)
        check_pipeline(pipeline, str(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{path}: does not hold what a pipeline has") from error
    return pipeline


def _pipeline_from_json(document: Mapping[str, Any]) -> PipelineSchedule:
    known = {part.name for part in fields(PipelineSchedule)}
    if set(document) != known:
        raise ValueError("unknown keys")
    parcels = [
        PipelineTransfer(
            **{
                **row,
                "maker": tuple(row["maker"]),
                "takers": [tuple(taker) for taker in row["takers"]],
            }
        )
        for row in document["parcels"]
    ]
    return PipelineSchedule(
        **{
            **document,
            "stages": _rows(PipelineStage, document["stages"]),
            "parcels": parcels,
            "shared": _rows(SharedGradient, document["shared"]),
            "actions": [[RankAction(*row) for row in rows] for rows in document["actions"]],
        }
    )


def _rows(kind: type[_T], rows: list[dict[str, Any]]) -> list[_T]:
    return [cast(Any, kind)(**row) for row in rows]


def check_pipeline(pipeline: PipelineSchedule, where: str) -> None:
    """Raises ArtifactError unless stages, ranks, parcels and actions name each other rightly."""

    def require(condition: bool, sentence: str) -> None:
        if not condition:
            raise ArtifactError(f"{where}: {sentence}")

    def whole(*numbers: Any) -> bool:
        return all(type(number) is int and abs(number) <= _LARGEST for number in numbers)

    lists = (pipeline.devices, pipeline.memory, pipeline.stages, pipeline.parcels, pipeline.shared)
    for each in (*lists, pipeline.actions, pipeline.fixed, pipeline.peaks):
        require(isinstance(each, list), "a list is something else")
    for words in (pipeline.model, pipeline.graph, *pipeline.devices):
        require(isinstance(words, str), "a name is no text")
    ranks, stages = range(pipeline.ranks), range(1, len(pipeline.stages) + 1)
    require(whole(pipeline.microbatches), "the number of microbatches is no number")
    require(
        1 <= pipeline.microbatches <= MAX_MICROBATCHES,
        f"{pipeline.microbatches} microbatches are none or too many",
    )
    require(len(pipeline.actions) == len(ranks), "not every rank has its actions")
    for sizes in (pipeline.memory, pipeline.fixed, pipeline.peaks):
        require(len(sizes) == len(ranks) and whole(*sizes), "not every rank has its bytes")
    require(bool(pipeline.stages) or not ranks, "there is no stage")
    for number, stage in enumerate(pipeline.stages, start=1):
        known = whole(stage.stage, stage.rank, stage.first, stage.last)
        require(
            known and stage.stage == number and stage.rank in ranks and stage.draws in (0, 1),
            f"stage {number} is out of its place",
        )
        require(isinstance(stage.schedule, str), f"stage {number} names no schedule")
    for number, parcel in enumerate(pipeline.parcels):
        units = [parcel.maker, *parcel.takers]
        named = all(stage in stages and phase in get_args(UnitPhase) for stage, phase in units)
        require(named and whole(parcel.value, parcel.bytes), f"parcel {number} is amiss")
    for number, shared in enumerate(pipeline.shared):
        named = whole(shared.value, shared.root, *shared.parts, *shared.ranks)
        named = named and shared.root in stages and all(rank in ranks for rank in shared.ranks)
        require(named, f"shared gradient {number} is amiss")
    subjects: dict[str, range] = dict.fromkeys((FORWARD, LOSS, BACKWARD, SUM), stages)
    subjects |= dict.fromkeys(("send", "receive", "wait"), range(len(pipeline.parcels)))
    subjects |= {"share": range(len(pipeline.shared)), "draw": range(1)}
    for rank, actions in enumerate(pipeline.actions):
        for place, action in enumerate(actions):
            known = (
                isinstance(action.kind, str)
                and action.kind in subjects
                and whole(action.subject, action.microbatch, action.peer, action.live, action.peak)
                and action.subject in subjects[action.kind]
                and 0 <= action.microbatch < pipeline.microbatches
                and (action.peer == NO_VALUE or action.peer in ranks)
            )
            require(known, f"action {place} of rank {rank} names what is not there")


def stage_files(folder: Path, pipeline: PipelineSchedule) -> list[Path]:
    """The files of the stages of the pipeline in a folder: graph and schedule of each."""
    return [
        folder / stage_folder(stage.stage) / name
        for stage in pipeline.stages
        for name in ("graph.arrow", "schedule.arrow")
    ]


def is_pipeline(path: Path | str) -> bool:
    """Whether a folder holds a pipeline."""
    try:
        return (
            json.loads((Path(path) / PIPELINE_FILE).read_bytes()).get("artifact")
            == PIPELINE_ARTIFACT
        )
    except (OSError, ValueError, AttributeError):
        return False
