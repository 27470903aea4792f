"""Writes the package of a pipeline: the programs of its stages, its ranks' actions, the runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import BASELINE_KINDS, NO_VALUE, Graph
from tightfit.schemas.pipeline import FORWARD, PipelineSchedule, pipeline_to_json
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.generate.graph_guards import check_interface, guard_file_bytes
from tightfit.stages.generate.interface import constants_bytes, interface_text
from tightfit.stages.generate.naming import UniqueNames, comment_text, format_megabytes, value_names
from tightfit.stages.generate.operator_calls import OperatorBindings, op_statements
from tightfit.stages.generate.package import zero_time_costs
from tightfit.stages.generate.package_init import format_facts
from tightfit.stages.generate.runtime_files import runtime_files
from tightfit.stages.generate.step_program import SourceProgram
from tightfit.stages.generate.step_writer import interface_program, write_program
from tightfit.stages.simulate.pipeline_rank_check import check_ranks
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ArtifactError


def build_pipeline_package(
    graph: Graph,
    pipeline: PipelineSchedule,
    stages: Sequence[tuple[Graph, Sequence[ScheduleStep]]],
    facts: Mapping[str, Any],
) -> dict[str, bytes]:
    """The files of the package of a pipeline, by name: `graph` is that of the whole model, `stages`
    are the graphs and schedules of its stages, `facts` the strategy, the machine and the sentence
    of its plan.

    An infeasible plan has a package whose `load_pipeline` says why.

    Raises ScheduleError when the simulator refuses a schedule or the ranks, ArtifactError when the
    files are not of one pipeline.
    """
    if not pipeline.feasible:
        return {"__init__.py": _INFEASIBLE_TEMPLATE.format(**format_facts(facts)).encode()}
    check_interface(graph)
    if len(stages) != len(pipeline.stages):
        raise ArtifactError(f"the pipeline has {len(pipeline.stages)} stages, not {len(stages)}")
    check_ranks(pipeline, graph, [own for own, _ in stages])
    programs = []
    texts = {}
    for number, (own, steps) in enumerate(stages, start=1):
        simulate(own, zero_time_costs(own), steps)
        title = f"Stage {number} of {graph.model}, planned by tightfit: its forward, its backward."
        programs.append(write_program(own, steps, title))
        texts[f"stage_{number}.py"] = programs[-1].text
    whole = interface_program(graph)
    texts["interface.py"] = interface_text(graph, whole)
    texts["draws.py"] = _draws_text([own for own, _ in stages])
    texts["__init__.py"] = _init_text(graph, pipeline, facts)
    files = {name: text.encode() for name, text in texts.items()} | runtime_files(texts.values())
    files["guards.json"] = guard_file_bytes(graph)
    document = _runtime_document(graph, pipeline, [own for own, _ in stages], programs, whole)
    files["pipeline.json"] = (json.dumps(document, separators=(",", ":")) + "\n").encode()
    rows = (",".join(pipeline.words(rank)) for rank in range(pipeline.ranks))
    files["schedule.csv"] = ("\n".join(rows) + "\n").encode()
    data = constants_bytes(graph, whole)
    return files if data is None else files | {"constants.bin": data}


def _runtime_document(
    graph: Graph,
    pipeline: PipelineSchedule,
    graphs: Sequence[Graph],
    programs: Sequence[SourceProgram],
    whole: SourceProgram,
) -> dict[str, Any]:
    """What the runtime knows beside texts: see `runtime/pipeline/rank.py`."""
    document = pipeline_to_json(pipeline)
    base = {graph.values[p.value].storage: p.value for p in pipeline.parcels}
    for shared in document["shared"]:
        shared["bases"] = [base[graph.values[part].storage] for part in shared["parts"]]
    named = {p.value for p in pipeline.parcels}
    named |= {part for shared in pipeline.shared for part in shared.parts}
    leaving = whole.differentiable + whole.unused
    tangents = [*whole.tangents, *(NO_VALUE for _ in whole.unused)]
    named |= set(tangents) - {NO_VALUE}
    values = {value: graph.values[value] for value in sorted(named)}
    document |= {
        "has_loss": graph.has_loss,
        "tensors": whole.arguments,
        "needed": [_rank_inputs(graph, pipeline, graphs, rank) for rank in range(pipeline.ranks)],
        "programs": [
            _stage_document(graph, pipeline, number, own, program)
            for number, (own, program) in enumerate(zip(graphs, programs, strict=True), start=1)
        ],
        "layouts": {v: [each.shape, each.strides, each.dtype] for v, each in values.items()},
        "offsets": {v: each.offset for v, each in values.items() if each.offset},
        "results": {
            "differentiable": leaving,
            "plain": whole.plain,
            "tangents": tangents,
        },
    }
    return document


def _stage_document(
    graph: Graph, pipeline: PipelineSchedule, number: int, own: Graph, program: SourceProgram
) -> dict[str, Any]:
    """What a stage's program takes and gives, as values."""
    arriving = [p.value for p in pipeline.parcels if (number, FORWARD) in p.takers]
    outputs = {output.value for output in own.outputs}
    return {
        "arguments": program.arguments,
        "arrive": arriving,
        "passed": [value for value in arriving if value in outputs],
        "yields": program.differentiable + program.unused + program.plain,
        "tangents": program.tangents,
        "slices": program.slices,
        "handed": program.handed,
        "handing": [value.id for value in own.values[len(graph.values) :]],
        "several": {
            owner: len(p) for owner, p in partial_gradients_by_owner(own).items() if len(p) > 1
        },
        "told": [
            owner
            for owners, values in zip(program.slices, program.handed, strict=True)
            for owner, value in zip(owners, values, strict=True)
            if value == NO_VALUE
        ],
    }


def _rank_inputs(
    graph: Graph, pipeline: PipelineSchedule, graphs: Sequence[Graph], rank: int
) -> list[int]:
    """The values that were there before the step which a rank reads, or gives back."""
    found = {
        value
        for stage, own in zip(pipeline.stages, graphs, strict=True)
        if stage.rank == rank
        for op in own.ops
        for value in op.inputs
        if graph.values[value].kind in BASELINE_KINDS
    }
    found |= {shared.value for shared in pipeline.shared if pipeline.rank_of(shared.root) == rank}
    if pipeline.stages[-1].rank == rank:
        found |= {
            value for value in graph.output_values() if graph.values[value].kind in BASELINE_KINDS
        }
    return sorted(found)


def _draws_text(graphs: Sequence[Graph]) -> str:
    """The module that draws the random numbers of each stage's forward and forgets them."""
    drawing = {number: own for number, own in enumerate(graphs, 1) if any(_random_ops(own))}
    names = UniqueNames()
    names.reserve("torch")
    names.reserve("DRAWS")
    operators = OperatorBindings(
        names, {op.target for own in drawing.values() for op in _random_ops(own)}
    )
    lines: list[str] = []
    for number, own in drawing.items():
        lines += ["", "", f"def stage_{number}():"]
        lines += [f'    """The random numbers of the forward of stage {number}."""']
        lines += [f"    {line}" for line in _draw_lines(own, operators)]
    bindings = operators.bindings()
    pairs = ", ".join(f"{number}: stage_{number}" for number in drawing)
    head = ['"""Draws what stages draw, in the order of one process."""', "", "import torch", ""]
    return "\n".join([*head, *bindings, *lines, "", "", f"DRAWS = {{{pairs}}}", ""])


def _random_ops(graph: Graph) -> list[Any]:
    return [op for op in graph.ops if op.random]


def _draw_lines(graph: Graph, operators: OperatorBindings) -> Iterator[str]:
    names = value_names(graph, UniqueNames())
    for op in _random_ops(graph):
        read = sorted(set(op.inputs))
        for value in read:
            like = graph.values[value]
            yield (
                f"{names[value]} = torch.empty_strided({tuple(like.shape)}, {tuple(like.strides)}, "
                f"dtype=torch.{like.dtype})"
            )
        for call in op_statements(graph, op, NO_VALUE, names, operators):
            yield f"{call.function}({', '.join(call.arguments)})"
        if read:
            yield f"del {', '.join(names[value] for value in read)}"


def _init_text(graph: Graph, pipeline: PipelineSchedule, facts: Mapping[str, Any]) -> str:
    ranks = "\n".join(
        f"    {rank}: stages "
        + ", ".join(str(stage.stage) for stage in pipeline.stages if stage.rank == rank)
        + f" on {comment_text(name)}, at most {format_megabytes(pipeline.peaks[rank])}"
        for rank, name in enumerate(pipeline.devices)
    )
    imports = "\n".join(
        f"from .stage_{stage.stage} import step as stage_{stage.stage}" for stage in pipeline.stages
    )
    return _INIT_TEMPLATE.format(
        model=comment_text(graph.model),
        microbatches=pipeline.microbatches,
        ranks=ranks,
        imports=imports,
        programs=", ".join(f"stage_{stage.stage}" for stage in pipeline.stages),
        peaks=pipeline.peaks,
        count=pipeline.ranks,
        **format_facts(facts),
    )


_INIT_TEMPLATE = '''"""A training step of {model} as a pipeline, planned by tightfit.

`load_pipeline(model, rank)` gives what one of the processes runs, {microbatches} microbatches a
step. The ranks, with the bytes of their step above parameters, buffers and inputs:

{ranks}
"""

from pathlib import Path

from .draws import DRAWS
from .interface import INTERFACE
from .runtime.mismatch import PlanMismatch
from .runtime.pipeline.rank import PipelineRank, release_unused_parameters
{imports}

__all__ = ["PipelineRank", "PlanMismatch", "load_pipeline"]

STRATEGY = {strategy}
MACHINE = {machine}
MESSAGE = {message}
RANKS = {count}
MICROBATCHES = {microbatches}
PREDICTED_PEAKS = {peaks}
PROGRAMS = [{programs}]


def load_pipeline(model, rank=None, group=None, light=False):
    """What this process runs of the pipeline; `model` is the whole model, alike on every rank.

    The processes are those of a group of torch.distributed with gloo, the default one unless
    given, and `rank` is the rank in it. With `light` the parameters and buffers that other ranks
    alone read give their memory back. Raises RuntimeError where group or model are others than the
    pipeline was planned for.
    """
    pipeline = PipelineRank(model, rank, group, INTERFACE, PROGRAMS, DRAWS)
    if light:
        release_unused_parameters(model, INTERFACE, Path(__file__).parent, pipeline.rank)
        pipeline = PipelineRank(model, rank, group, INTERFACE, PROGRAMS, DRAWS)
    return pipeline
'''

_INFEASIBLE_TEMPLATE = '''"""A pipeline that fits no devices: `load_pipeline` says why."""

STRATEGY = {strategy}
MACHINE = {machine}
STATUS = "infeasible"
MESSAGE = {message}
RANKS = 0


def load_pipeline(model, rank=None, group=None, light=False):
    """Raises RuntimeError: there is no plan."""
    raise RuntimeError(MESSAGE)
'''
