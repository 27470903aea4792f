# Configuration, folders and fingerprints that the rules share.

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

CHECKOUT = Path(workflow.basedir)
sys.path.insert(0, str(CHECKOUT))

from tightfit.util.allocators import preload_settings
from tightfit.util.budget import NO_BUDGET
from tightfit.schemas.config import EAGER_FOLDER, parse_config, require_folders
from tightfit.util.errors import ConfigError
from tightfit.util.code_fingerprint import factory_fingerprint, stage_fingerprint
from tightfit.util.strategies import HIERARCHY_LIMITS, KEEP_ALL, STRATEGIES

if "models" not in config:

    configfile: CHECKOUT / "config.yaml"


try:
    SETTINGS = parse_config(config, "the configuration")
    require_folders(SETTINGS, "the configuration")
except ConfigError as error:
    sys.exit(str(error))

# Jobs run the Python that runs Snakemake, and find the stages in this checkout.
os.environ.update(
    PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.getenv('PATH')}",
    PYTHONPATH=f"{CHECKOUT}{os.pathsep}{os.getenv('PYTHONPATH', '')}".rstrip(
        os.pathsep
    ),
)

# Modules that send tensors find the folder of the disk in the environment.
if SETTINGS.disk:
    os.environ.update(TIGHTFIT_DISK=str(Path(SETTINGS.disk).resolve()))

MODEL = f"{SETTINGS.results}/{{model}}"
STRATEGY = f"{MODEL}/{{strategy}}"
POINT = f"{STRATEGY}/{{budget}}"
KEEP_ALL_POINT = f"{MODEL}/{KEEP_ALL}/{NO_BUDGET}"
DONE = f"{SETTINGS.results}/index.done"
LINK = f"{SETTINGS.results}/machine.json"
COMPILED = f"{SETTINGS.results}/search.done"

# What running a model asks a cluster for: a GPU, or, to measure, a node without other jobs. On a
# described device nothing runs and nothing is measured.
GPU = {} if SETTINGS.here == "cpu" else {"gpu": 1}
ALONE = GPU or {"slurm_extra": "--exclusive"}
MEASURING = {} if SETTINGS.machine else {**ALONE, "measuring": 1}
MEASURED = [] if SETTINGS.machine else ["measurement.arrow", "memory_timeline.arrow"]

# Jobs in containers see what is declared and nothing else. Elsewhere a report is made from a folder,
# and what is in it is left out of a graph of jobs that has enough to look at.
APART = workflow.storage_settings.default_storage_provider is not None


def one_of(names):
    """A pattern that matches these names, and nothing where there are none."""
    return "|".join(map(re.escape, names)) or "(?!)"


# Models whose small ops run as groups, each a single kernel.
FUSED = [name for name, model in SETTINGS.models.items() if model.fused]
EAGER = [name for name in SETTINGS.models if name not in FUSED]

# The same steps with eager's kernels, whose plans are taken where they are better: each is planned
# like a model, in a folder of its model's.
RIVAL = f"{MODEL}/{EAGER_FOLDER}"
RIVALS = [f"{name}/{EAGER_FOLDER}" for name in FUSED]
TRACED = expand(f"{MODEL}/graph.arrow", model=EAGER + RIVALS) + expand(
    f"{MODEL}/eager.arrow", model=FUSED
)


wildcard_constraints:
    model=one_of([*SETTINGS.models, *RIVALS]),
    strategy="[a-z_]+",
    budget="[A-Za-z0-9.]+",


def model_of(wildcards):
    """A model as the configuration has it."""
    return SETTINGS.models[wildcards.model.partition("/")[0]]


def name_of(wildcards):
    """The name of a model, the same with either kernels."""
    return model_of(wildcards).name


def of_plans(model, *files):
    """The paths of files of every plan of a model."""
    return [
        f"{SETTINGS.results}/{request.model}/{request.strategy}/{request.directory}/{file}"
        for request in SETTINGS.requests(model)
        for file in files
    ]


def frontiers_of(model):
    """The frontiers that a report shows, with eager's kernels, too, where others are fused; those of
    baselines alone where no others are asked for."""
    names = [model, f"{model}/{EAGER_FOLDER}"] if model in FUSED else [model]
    strategies = SETTINGS.models[model].strategies
    if not SETTINGS.budgets_shown:
        strategies = [name for name in strategies if STRATEGIES[name].baseline]
    return expand(f"{STRATEGY}/frontier.arrow", model=names, strategy=strategies)


def before_frontiers(wildcards):
    """The priority of what leads to a measured plan: those of the first model come first, frontiers
    and reports, whose priority is 0, last."""
    return len(SETTINGS.models) - list(SETTINGS.models).index(name_of(wildcards))


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
    plans = of_plans(model, "plan.json", *MEASURED[:1])
    return frontiers_of(model) + costs + plans if APART else []


def reported(model):
    """What a report reads of a model besides, where it has to be declared."""
    files = [f"{MODEL}/{name}.arrow" for name in ("graph", "blocks", "options")]
    files += [f"{RIVAL}/graph.arrow"] if model in FUSED else []
    made = of_plans(model, "sequence.arrow", "schedule.arrow", *MEASURED[1:])
    return compared(model) + expand(files, model=model) + made if APART else []


def graphs(wildcards):
    """The graphs that a plan may be of: where kernels are fused that of eager's, too."""
    folders = [MODEL, RIVAL] if wildcards.model in FUSED else [MODEL]
    return expand(
        [f"{folder}/graph.arrow" for folder in folders], model=wildcards.model
    )


def given_rival(wildcards, input, output):
    """Names what is planned with eager's kernels beside fused ones as options of a stage."""
    names = ("graph", "costs", "frontier", "blocks", "options", "hierarchy")
    files = [(f"--eager-{name}", input.get(f"eager_{name}")) for name in names]
    plan = output.get("eager_plan")
    files.append(("--eager-out", plan and Path(plan).parent))
    return [word for name, file in files if file for word in (name, file)]


def carries(wildcards, what):
    """Whether modules of a strategy carry something: those that a configuration asks for do."""
    model = model_of(wildcards)
    return getattr(model, what) and wildcards.strategy in model.strategies


def of_libraries(wildcards):
    """How many threads libraries that a module carries are compiled for."""
    return workflow.cores if carries(wildcards, "with_libraries") else 1


def plan_beside(wildcards):
    """The plan of eager's kernels that a module carries."""
    folder = f"{RIVAL}/{{strategy}}/{{budget}}"
    files = [f"{folder}/schedule.arrow", f"{folder}/plan.json"]
    return expand(files, **wildcards) if carries(wildcards, "with_eager") else []


def given_carried(wildcards, input):
    """Says as options of a stage what a module carries."""
    words = ["--libraries"] if carries(wildcards, "with_libraries") else []
    if input.beside:
        files = zip(("graph", "schedule", "plan"), (input.graph[1], *input.beside))
        words += [word for name, file in files for word in (f"--eager-{name}", file)]
    return words


def kernels_unplanned(wildcards):
    """The module that runs fused kernels unplanned, which plans of them are compared with."""
    fused = wildcards.model in FUSED
    return expand(f"{KEEP_ALL_POINT}/module", model=wildcards.model) if fused else []


def given_unplanned(wildcards, input):
    """Names that module as options of a stage."""
    return [word for folder in input.unplanned for word in ("--unplanned", folder)]


def measured_line(wildcards, input):
    """Names the lines of a measured step as options of a stage."""
    return ["--timeline", input.line] if input.line else []


def clusters_for(wildcards, model=MODEL):
    """The hierarchy of a model, where a strategy takes it."""
    takes = STRATEGIES[wildcards.strategy].clusters
    return expand(f"{model}/hierarchy.arrow", model=wildcards.model) if takes else []


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
    """How many threads polish a frontier: its share of the cores among all that are polished."""
    polished = [
        strategy
        for name in [*SETTINGS.models, *FUSED]
        for strategy in SETTINGS.models[name].strategies
        if not STRATEGIES[strategy].baseline
    ]
    return max(1, workflow.cores // max(1, len(polished)))


def given_clusters(wildcards, input):
    """Names the hierarchy as options of a stage."""
    return [word for file in input.hierarchy for word in ("--hierarchy", file)]


def measured_link(wildcards):
    """The description of this machine, where a strategy takes a link and no machine is named."""
    takes = STRATEGIES[wildcards.strategy].links
    return [LINK] if takes and SETTINGS.linked is None else []


def linked_machine(wildcards, input):
    """Names the machine whose link a strategy takes as options of a stage."""
    takes = STRATEGIES[wildcards.strategy].links
    named = [SETTINGS.linked] if takes and SETTINGS.linked else input.machine
    return [word for file in named for word in ("--machine", file)]


def described_link(wildcards):
    """The digest of a machine's description, "" where a strategy takes none that is named."""
    return linked_digest() if STRATEGIES[wildcards.strategy].links else ""


@cache
def linked_digest():
    """The digest of the description of a machine with a link, "" where none is named."""
    from tightfit.schemas.store import file_digest

    return f"machine {file_digest(SETTINGS.linked)}" if SETTINGS.linked else ""


def source(wildcards):
    """Names the factory of a model as options of a stage."""
    model = model_of(wildcards)
    return [
        "--factory",
        model.factory,
        "--arguments",
        model.arguments_json,
        *search_path(),
    ]


def ones(wildcards):
    """Whether a plan may rest on inputs of nothing but ones, as an option of a stage."""
    return "--assume-all-ones-masks" if model_of(wildcards).ones else ""


def loss_room(wildcards):
    """The bytes that plans leave to a loss, as the configuration says it."""
    return model_of(wildcards).loss_room


def channels_last(wildcards):
    """Where kernels are fused convolutions run on such tensors, as an option of a stage."""
    return "--channels-last" if wildcards.model in FUSED else ""


def search_path():
    """Names the folders in which modules are looked for as options of a stage."""
    return [
        word for folder in SETTINGS.search_path for word in ("--search-path", folder)
    ]


def operators(wildcards):
    """Names the operators that are not PyTorch's own as options of a stage."""
    words = [f"{name}={module}" for name, module in SETTINGS.operators.items()]
    return [option for word in words for option in ("--operators", word)]


@cache
def operators_code():
    """The fingerprints of the code that registers operators."""
    return [code_behind(f"{module}:") for module in SETTINGS.operators.values()]


def costs_from(wildcards):
    """Says as options of a stage where costs come from: the device, or its description."""
    if SETTINGS.machine:
        return ["--source", "roofline", "--machine", SETTINGS.machine]
    return ["--device", SETTINGS.device, "--library", SETTINGS.store]


def threads_of_cpu(rule):
    """Says as options of a stage how many threads a step runs with, which are those of a rule. Its
    bytes depend on that on the CPU: with another number costs are measured, plans made and
    validated anew. Snakemake does not see that of a function of `threads`."""
    asked = workflow.resource_settings.overwrite_threads.get(rule)
    threads = workflow.cores if asked is None else min(int(asked.raw), workflow.cores)
    return ["--threads", str(threads)] if SETTINGS.device == "cpu" else []


@cache
def training_allocator():
    """The settings under which a process trains with tcmalloc, where that is installed, as a prefix
    of a command: what is measured holds for it. Jobs elsewhere take what they find there.
    """
    if SETTINGS.device != "cpu" or APART:
        return ""
    found = preload_settings(os.environ.get("LD_PRELOAD", ""))
    return (
        " ".join(["env", *(f"{name}={value}" for name, value in found.items())])
        if found
        else ""
    )


@cache
def description():
    """The digest of the description of the device, "" where the device is here."""
    from tightfit.schemas.store import file_digest

    return f"machine {file_digest(SETTINGS.machine)}" if SETTINGS.machine else ""


def source_code(wildcards):
    """The fingerprint of the code that builds a model."""
    return code_behind(model_of(wildcards).factory)


@cache
def code_behind(factory):
    """The fingerprint of the code of a factory."""
    return f"source {factory_fingerprint(factory, SETTINGS.search_path)}"


@cache
def code_of(stage):
    """The fingerprint of the code of a stage."""
    return f"code of {stage} {stage_fingerprint(stage)}"
