# Configuration, folders and fingerprints that the rules share.

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

# The folder of the package tightfit: a checkout, or that of an installation, which is found without
# being named.
ROOT = Path(workflow.basedir)
ROOT = ROOT if (ROOT / "tightfit").is_dir() else ROOT.parent
CHECKOUT = [str(ROOT)] if (ROOT / "Snakefile").is_file() else []
sys.path[:0] = CHECKOUT

from tightfit.job_client import FOLDER_VARIABLE
from tightfit.util.allocators import preload_settings
from tightfit.util.budget import NO_BUDGET
from tightfit.schemas.config import EAGER_FOLDER, parse_config, require_folders
from tightfit.schemas.config_optimizer_step import select_sample
from tightfit.schemas.lost_files import was_made
from tightfit.schemas.optimizer_plan import OPTIMIZER_OFFLOAD
from tightfit.util.errors import ConfigError
from tightfit.util.code_fingerprint import factory_fingerprint, stage_fingerprint
from tightfit.util.strategies import (
    ALLOCATORS,
    KEEP_ALL,
    STRATEGIES,
)

if not config.keys() & {"models", "chains"}:

    configfile: ROOT / "config.yaml"


try:
    SETTINGS = parse_config(config, "the configuration")
    require_folders(SETTINGS, "the configuration", writable_results=False)
except ConfigError as error:
    sys.exit(str(error))

# Jobs run the Python that runs Snakemake, and find the stages that it found.
for name, folders in {
    "PATH": [Path(sys.executable).parent],
    "PYTHONPATH": CHECKOUT,
}.items():
    os.environ[name] = os.pathsep.join(
        map(str, filter(None, [*folders, os.getenv(name)]))
    )

# Job servers are for jobs of this machine.
if workflow.remote_exec:
    os.environ.pop(FOLDER_VARIABLE, None)

# Modules that send tensors find the folder of the disk in the environment.
if SETTINGS.disk:
    os.environ.update(TIGHTFIT_DISK=str(Path(SETTINGS.disk).resolve()))

MODEL = f"{SETTINGS.results}/{{model}}"
STRATEGY = f"{MODEL}/{{strategy}}"
POINT = f"{STRATEGY}/{{budget}}"
KEEP_ALL_POINT = f"{MODEL}/{KEEP_ALL}/{NO_BUDGET}"
DONE = f"{SETTINGS.results}/index.done"
LINK = f"{SETTINGS.results}/machine_{{device}}.json"
COMPILED = f"{SETTINGS.results}/search.done"

# What the index tells beside models: the pages that are done before it, and the plans that a run is
# for. Each kind of plan adds its own.
FURTHER_PAGES = []
FURTHER_PLANS = []

# What running a model asks a cluster for: a GPU, or, to measure, a node without other jobs. On a
# described device nothing runs and nothing is measured. A resource that is None is not asked for.
GPU = {"gpu": lambda wildcards: 1 if model_of(wildcards).here != "cpu" else None}
MEASURING = {
    "gpu": lambda wildcards: GPU["gpu"](wildcards) if measures(wildcards) else None,
    "slurm_extra": lambda wildcards: (
        "--exclusive"
        if measures(wildcards) and model_of(wildcards).here == "cpu"
        else None
    ),
    "measuring": lambda wildcards: 1 if measures(wildcards) else None,
}
MEASURED = ["measurement.arrow", "memory_timeline.arrow"]

# Jobs in containers see what is declared and nothing else. Elsewhere a report is made from a folder,
# and what is in it is left out of a graph of jobs that has enough to look at.
APART = workflow.storage_settings.default_storage_provider is not None


def one_of(names):
    """A pattern that matches these names, and nothing where there are none."""
    return "|".join(map(re.escape, names)) or "(?!)"


# Models that are planned for one device.
PAGED = [name for name in SETTINGS.models if SETTINGS.requests(name)]

# Models whose small ops run as groups, each a single kernel, those whose whole step is planned with
# their optimizer, and all others.
FUSED = [name for name, model in SETTINGS.models.items() if model.fused]
STEPS = [name for name, model in SETTINGS.models.items() if model.optimizer_step]
EAGER = [name for name in SETTINGS.models if name not in FUSED + STEPS]

# The models that the configuration has first come first.
PRIORITIES = {name: rank for rank, name in enumerate(reversed(SETTINGS.models), 1)}

# The same steps with eager's kernels, whose plans are taken where they are better: each is planned
# like a model, in a folder of its model's.
RIVAL = f"{MODEL}/{EAGER_FOLDER}"
RIVALS = [f"{name}/{EAGER_FOLDER}" for name in FUSED]

# The samples of whole steps, each with a graph of its own, in a folder of its model's but for the
# first.
SAMPLES = [
    f"{name}/{folder}".rstrip("/")
    for name in STEPS
    for folder in SETTINGS.models[name].optimizer_step.samples
]
TRACED = expand(f"{MODEL}/graph.arrow", model=EAGER + RIVALS + SAMPLES) + expand(
    f"{MODEL}/eager.arrow", model=FUSED
)


wildcard_constraints:
    model=one_of([*SETTINGS.models, *RIVALS, *SAMPLES]),
    strategy=one_of([*STRATEGIES, OPTIMIZER_OFFLOAD]),
    budget="[A-Za-z0-9.]+",
    device="[a-z0-9:]+",
    allocator=one_of(ALLOCATORS),


def model_of(wildcards):
    """A model as the configuration has it, with the arguments of its sample."""
    name, _, folder = wildcards.model.partition("/")
    return select_sample(SETTINGS.models[name], folder)


def name_of(wildcards):
    """The name of a model, the same with either kernels."""
    return model_of(wildcards).name


def of_model(key):
    """The key of a configuration, as it holds for a model."""
    return lambda wildcards: getattr(model_of(wildcards), key)


def measures(wildcards):
    """Whether a model runs here, on the device that it is planned for."""
    return model_of(wildcards).machine is None


def measured(name, *files):
    """The files of measured plans, none where a model's device is described."""
    return [] if SETTINGS.models[name].machine else list(files)


def points_of(model):
    """The plans of a model, as strategy/budget."""
    return [
        f"{request.strategy}/{request.directory}"
        for request in SETTINGS.requests(model)
    ]


def of_plans(model, *files):
    """The paths of files of every plan of a model."""
    folder = f"{SETTINGS.results}/{model}"
    return [f"{folder}/{point}/{file}" for point in points_of(model) for file in files]


def frontiers_of(model):
    """The frontiers that a report shows, with eager's kernels, too, where others are fused; those of
    baselines alone where no others are asked for."""
    names = [model, f"{model}/{EAGER_FOLDER}"] if model in FUSED else [model]
    strategies = [] if model in STEPS else SETTINGS.models[model].strategies
    if not SETTINGS.budgets_shown:
        strategies = [name for name in strategies if STRATEGIES[name].baseline]
    return expand(f"{STRATEGY}/frontier.arrow", model=names, strategy=strategies)


def before_frontiers(wildcards):
    """The priority of what leads to a measured plan: those of the first model come first, frontiers
    and reports, whose priority is 0, last."""
    return PRIORITIES[name_of(wildcards)]


def compiled_search(wildcards):
    """The mark that the search is compiled, which a strategy waits for that searches. A pod keeps
    nothing of what another one compiles."""
    searches = not STRATEGIES[wildcards.strategy].baseline
    return [COMPILED] if searches and not APART else []


def plans_only(wildcards):
    """Whether a report or an index shows plans without frontiers, as an option of a stage."""
    return [] if SETTINGS.budgets_shown else ["--plans-only"]


def compared(model):
    """What the index reads of a model, where it has to be declared."""
    costs = expand(f"{MODEL}/costs.arrow", model=model)
    if model in FUSED:
        costs += expand(f"{RIVAL}/costs.arrow", model=model)
    costs += expand(f"{MODEL}/costs.arrow", model=samples_of(model)[1:])
    plans = of_plans(model, "plan.json", *measured(model, *MEASURED[:1]))
    return frontiers_of(model) + costs + plans if APART else []


def reported(model):
    """What a report reads of a model besides, where it has to be declared."""
    blocks, sequence = [("blocks", "options"), ("sequence.arrow",)]
    if model in STEPS:
        blocks, sequence = (), ()
    files = [f"{MODEL}/{name}.arrow" for name in ("graph", *blocks)]
    files += [f"{RIVAL}/graph.arrow"] if model in FUSED else []
    lines = measured(model, *MEASURED[1:])
    made = of_plans(model, *sequence, "schedule.arrow", *lines)
    made += expand(f"{MODEL}/graph.arrow", model=samples_of(model)[1:])
    return compared(model) + expand(files, model=model) + made if APART else []


def graphs(wildcards):
    """The graphs that a plan may be of: where kernels are fused that of eager's, too, and of a whole
    step those of all of its samples."""
    folders = [MODEL, RIVAL] if wildcards.model in FUSED else [MODEL]
    return expand(
        [f"{folder}/graph.arrow" for folder in folders],
        model=samples_of(wildcards.model),
    )


def samples_of(model):
    """The samples of a whole step; any other model itself."""
    own = [name for name in SAMPLES if name.partition("/")[0] == model]
    return own or [model]


def checked(model):
    """What says that the plans of a model are made: measured or, for a described device, written as
    modules, but for whole steps, whose updates are described, too."""
    last = "plan.json" if model in STEPS else "module"
    return of_plans(model, *(measured(model, *MEASURED[:1]) or [last]))


def clusters_for(wildcards, model=MODEL):
    """The hierarchy of a model, where a strategy takes it."""
    takes = STRATEGIES[wildcards.strategy].clusters
    return expand(f"{model}/hierarchy.arrow", model=wildcards.model) if takes else []


def budgets_shown(wildcards):
    """How many budgets a frontier is made for, as options of a stage; a baseline has none."""
    if STRATEGIES[wildcards.strategy].baseline:
        return []
    return ["--budgets", str(SETTINGS.budgets_shown or 1)]


def span_of(wildcards):
    """What is said of the budgets of a frontier; a baseline has none."""
    return "" if STRATEGIES[wildcards.strategy].baseline else " for all budgets"


def plans_of(wildcards, model=MODEL):
    """The plans that one for a budget is chosen from: a strategy's own, all of a baseline."""
    name = "frontier" if STRATEGIES[wildcards.strategy].baseline else "candidates"
    return expand(f"{model}/{{strategy}}/{name}.arrow", **wildcards)


def options_for(wildcards, model=MODEL):
    """The options of a model's blocks, made for a link where a strategy takes those."""
    linked = "linked_" if STRATEGIES[wildcards.strategy].uses_link_options else ""
    return expand(f"{model}/{linked}options.arrow", model=wildcards.model)


def share_of_cores(wildcards):
    """How many threads search for a frontier: its share of the cores among all that are searched for."""
    return max(1, workflow.cores // max(1, searched_frontiers()))


@cache
def searched_frontiers():
    """How many frontiers are searched for: those of all strategies but baselines."""
    return sum(
        not STRATEGIES[strategy].baseline
        for name in [*EAGER, *FUSED, *FUSED]
        for strategy in SETTINGS.models[name].strategies
    )


def given_clusters(wildcards, input):
    """Names the hierarchy as options of a stage."""
    return [word for file in input.hierarchy for word in ("--hierarchy", file)]
