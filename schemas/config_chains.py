"""The chains of a configuration: files of chains, or a model's blocks, that are planned without
being run. `config.schema.json` says which keys there are; here is what they mean together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.schemas.config_errors import format_choices
from tightfit.schemas.link import read_host_link
from tightfit.schemas.machine import Machine, machine_path, read_machine
from tightfit.schemas.pipeline_devices import check_uniform_devices
from tightfit.util.budget import NO_BUDGET, parse_plan_budget
from tightfit.util.errors import TightfitError
from tightfit.util.solver_engines import SolverEngine
from tightfit.util.strategies import ALLOCATORS, CHAIN_STRATEGIES, OFFLOADERS, StrategyInfo

CHAINS_FOLDER = "chains"
"""The folder, in that of the results, of what is planned of chains."""
ROCKMATE_STAGES = "rockmate"
"""How stages compute again by the options of blocks."""

KeyProblem = tuple[Sequence[str | int], str]
"""The path of a key, and what is wrong with it."""


def takes_budgets(about: StrategyInfo) -> bool:
    """Whether a strategy for chains plans within budgets: the memory of a pipeline is that of the
    machine."""
    return about.name not in ALLOCATORS


def _is_allocator(about: StrategyInfo) -> bool:
    return about.name in ALLOCATORS


def _takes_machine(about: StrategyInfo) -> bool:
    return about.name in OFFLOADERS or about.name in ALLOCATORS


OPTION_TAKERS: dict[str, Callable[[StrategyInfo], bool]] = {
    "machine": _takes_machine,
    "budgets": takes_budgets,
    "slots": lambda about: about.rounds or about.name in OFFLOADERS,
    "period": _is_allocator,
    "weight_copies": _is_allocator,
    "buffers": _is_allocator,
    "stage_recompute": lambda about: about.inside,
    "k": lambda about: about.turns,
    "microbatches": _is_allocator,
    "engine": lambda about: about.solves,
}
"""Which strategies take a key of a chain; each is given those that it takes."""
COMMAND_OPTIONS = {
    "slots": "slots",
    "period": "period",
    "weight_copies": "weight-copies",
    "buffers": "buffers",
    "stage_recompute": "stage-recompute",
    "k": "k",
    "microbatches": "microbatches",
    "engine": "solver",
}
"""Keys of a chain by the options of the command that takes them."""


@dataclass(frozen=True)
class ChainRequest:
    """One plan to make of a chain. `budget` is as written, "none" for a pipeline; `directory` is
    the folder that stands for it."""

    chain: str
    strategy: str
    budget: str
    directory: str

    @property
    def folder(self) -> str:
        """Where the plan is, below the results."""
        return "/".join((CHAINS_FOLDER, self.chain, self.strategy, self.directory))


@dataclass(frozen=True)
class ChainConfig:
    """A chain to plan, or the branches of a join: `files`, or the blocks of a `model` ("" for
    none); the strategies and budgets, as written; the machine and the `options` of blocks, None for
    none; and `settings`, the further keys by name."""

    name: str
    files: list[str]
    model: str
    strategies: list[str]
    budgets: list[str]
    machine: Path | None
    options: str | None
    settings: dict[str, Any]

    def requests(self) -> list[ChainRequest]:
        """The plans to make, in the order of the configuration."""
        found = []
        for strategy in self.strategies:
            places = [(NO_BUDGET, NO_BUDGET)]
            if takes_budgets(CHAIN_STRATEGIES[strategy]):
                places = [(budget, parse_plan_budget(budget).directory) for budget in self.budgets]
            found += [ChainRequest(self.name, strategy, *place) for place in places]
        return found

    def machine_of(self, strategy: str) -> Path | None:
        """The machine that a strategy is given, None where it takes none."""
        return self.machine if _takes_machine(CHAIN_STRATEGIES[strategy]) else None

    def needs_options(self, strategy: str) -> bool:
        """Whether a strategy is given the options of blocks."""
        return _needs_options(CHAIN_STRATEGIES[strategy], self.settings.get("stage_recompute"))

    def command_options(self, request: ChainRequest) -> list[str]:
        """The options of `chain` for a plan, but for files."""
        about = CHAIN_STRATEGIES[request.strategy]
        words = ["--strategy", request.strategy]
        if request.budget != NO_BUDGET:
            words += ["--budget", request.budget]
        if (machine := self.machine_of(request.strategy)) is not None:
            words += ["--machine", str(machine)]
        for key, given in self.settings.items():
            if OPTION_TAKERS[key](about) and given is not False:
                words += [f"--{COMMAND_OPTIONS[key]}", *([] if given is True else [str(given)])]
        return words


def _needs_options(about: StrategyInfo, stage_recompute: str | None) -> bool:
    return about.uses_solved_options or (about.inside and stage_recompute == ROCKMATE_STAGES)


def build_chain_configs(
    document: Mapping[str, Any], engine: SolverEngine
) -> dict[str, ChainConfig]:
    """The chains of a valid document with its defaults; `engine` solves the integer programs of
    allocators where a chain names none, and `solver.slots` are those of one that names none."""
    found = {}
    for name, given in document["chains"].items():
        budgets = given.get("budgets", document["budgets"])
        settings = {key: given[key] for key in COMMAND_OPTIONS if key in given}
        found[name] = ChainConfig(
            name,
            given.get("files", []),
            given.get("model", ""),
            given["strategies"],
            [parse_plan_budget(budget).text for budget in budgets],
            machine_path(given["machine"]) if "machine" in given else None,
            given.get("options"),
            {"engine": engine, "slots": document["solver"]["slots"], **settings},
        )
    return found


def find_chain_problems(document: Any, models: Collection[str]) -> Iterator[KeyProblem]:
    """What is wrong with the chains of a document, sound or not, beside what the schema says;
    `models` are the names of models whose blocks can be a chain."""
    if not isinstance(document, dict):
        return
    if not document.keys() & {"models", "chains"}:
        yield ["models"], "is missing, expected a mapping from names to models, or chains beside it"
    chains = document.get("chains")
    for name, chain in chains.items() if isinstance(chains, dict) else ():
        if isinstance(chain, dict):
            for path, said in _ChainReader(chain, models).problems():
                yield ["chains", name, *path], said


class _ChainReader:
    """The keys of one chain, of which those of a wrong type are left to the schema."""

    def __init__(self, chain: Mapping[str, Any], models: Collection[str]) -> None:
        self.chain = chain
        self.models = models
        named = chain.get("strategies")
        self.strategies = [
            (number, CHAIN_STRATEGIES[name])
            for number, name in enumerate(named if isinstance(named, list) else [])
            if isinstance(name, str) and name in CHAIN_STRATEGIES
        ]

    def problems(self) -> Iterator[KeyProblem]:
        yield from self.source_problems()
        yield from self.join_problems()
        yield from self.loss_problems()
        yield from self.machine_problems()
        yield from self.option_file_problems()
        for key, takes in OPTION_TAKERS.items():
            taken = any(takes(about) for _, about in self.strategies)
            if key in self.chain and self.strategies and not taken:
                takers = [name for name, about in CHAIN_STRATEGIES.items() if takes(about)]
                asked = format_choices([about.name for _, about in self.strategies], "and")
                verb = "takes" if len(self.strategies) == 1 else "take"
                said = f"expected no such key, or a strategy that does ({', '.join(takers)})"
                yield [key], f"{asked} {verb} no {key}, {said}"

    def source_problems(self) -> Iterator[KeyProblem]:
        """Whether there are files, or a model, and each is there."""
        files, model = self.chain.get("files"), self.chain.get("model")
        if ("files" in self.chain) == ("model" in self.chain):
            found = "has both files and a model" if model else "names nothing to plan"
            yield [], f"{found}, expected either files: [PATH.arrow] or model: NAME"
        if isinstance(model, str) and model not in self.models:
            known = ", ".join(self.models)
            wanted = f"expected one of {known}" if known else "which has none"
            yield ["model"], f"{model} is no model of this configuration, {wanted}"
        for number, path in enumerate(files if isinstance(files, list) else []):
            if isinstance(path, str) and (said := _file_problem(path, "chain")):
                yield ["files", number], said

    def join_problems(self) -> Iterator[KeyProblem]:
        """Whether each strategy plans as many chains as there are files."""
        files = self.chain.get("files", [])
        several = isinstance(files, list) and len(files) > 1
        for number, about in self.strategies:
            if several and not about.plans_joins:
                joins = [name for name, other in CHAIN_STRATEGIES.items() if other.plans_joins]
                said = f"one file, or for a join {format_choices(joins)}"
                yield ["strategies", number], f"{about.name} plans one chain, expected {said}"
            elif not several and about.plans_joins and not about.chains:
                said = "expected two files or more, which end in one loss"
                yield ["strategies", number], f"{about.name} plans the branches of a join, {said}"

    def loss_problems(self) -> Iterator[KeyProblem]:
        """Whether several files are branches that end in one loss."""
        from tightfit.schemas.chain import Chain, describe_loss_difference, read_chain

        files = self.chain.get("files")
        named = [path for path in files if isinstance(path, str)] if isinstance(files, list) else []
        if len(named) < 2 or any(_file_problem(path, "chain") for path in named):
            return
        first: Chain | None = None
        for number, path in enumerate(named):
            try:
                chain = read_chain(path)
            except TightfitError as error:
                yield ["files", number], str(error)
                return
            first = first or chain
            if said := describe_loss_difference(path, chain, named[0], first):
                yield ["files", number], said

    def machine_problems(self) -> Iterator[KeyProblem]:
        """Whether there is a machine with the links that strategies need."""
        needing = [about for _, about in self.strategies if _takes_machine(about)]
        given = self.chain.get("machine")
        if needing and "machine" not in self.chain:
            names = format_choices([about.name for about in needing])
            yield ["machine"], f"is missing, expected the description of a machine, for {names}"
        if not isinstance(given, str):
            return
        try:
            path = machine_path(given)
            machine = read_machine(path)
        except TightfitError as error:
            yield ["machine"], str(error)
            return
        told: dict[str, str] = {}
        for about in needing:
            if said := _link_problem(machine, path, about):
                told.setdefault(said, about.name)
        yield from ((["machine"], f"{said} ({name} needs it)") for said, name in told.items())

    def option_file_problems(self) -> Iterator[KeyProblem]:
        """Whether the options of blocks are there where a strategy takes them."""
        given, inside = self.chain.get("options"), self.chain.get("stage_recompute")
        needing = [about.name for _, about in self.strategies if _needs_options(about, inside)]
        if isinstance(given, str) and (said := _file_problem(given, "options")):
            yield ["options"], said
        if needing and "options" not in self.chain and "model" not in self.chain:
            names = format_choices(needing)
            yield ["options"], f"is missing, expected the options of the blocks, for {names}"
        if "options" in self.chain and "model" in self.chain:
            yield ["options"], "is not for a model, whose blocks have options, expected no such key"
        elif self.strategies and "options" in self.chain and not needing:
            yield ["options"], "none of the strategies takes it, expected no such key"


def _file_problem(path: str, what: str) -> str:
    """What is wrong with a file that is to be a "chain", or the "options" of blocks, "" if nothing
    is."""
    from tightfit.schemas import store
    from tightfit.schemas.block_options import BLOCK_OPTIONS
    from tightfit.schemas.chain import CHAIN

    kind = CHAIN if what == "chain" else BLOCK_OPTIONS
    if not Path(path).is_file():
        return f"{path} does not exist, expected a file of the kind {kind.name}"
    try:
        found = store.read_header(path).name
    except TightfitError as error:
        return f"{error}, expected a file of the kind {kind.name}"
    return (
        ""
        if found == kind.name
        else f"{path} is a {found}, expected a file of the kind {kind.name}"
    )


def _link_problem(machine: Machine, path: Path, about: StrategyInfo) -> str:
    """What a machine lacks for a strategy, "" if nothing."""
    try:
        if about.name in OFFLOADERS:
            read_host_link(machine, path)
        else:
            check_uniform_devices(machine, path, about.contiguous)
    except TightfitError as error:
        return str(error)
    return ""
