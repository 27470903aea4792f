# Configuration, folders and fingerprints that the rules share.

import os
import sys
from functools import cache
from pathlib import Path

CHECKOUT = Path(workflow.basedir)
sys.path.insert(0, str(CHECKOUT))

from schemas.config import parse_config, require_folders
from schemas.errors import ConfigError
from schemas.fingerprint import factory_fingerprint, stage_fingerprint

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

MODEL = f"{SETTINGS.results}/{{model}}"
STRATEGY = f"{MODEL}/{{strategy}}"
POINT = f"{STRATEGY}/{{budget}}"
DONE = f"{SETTINGS.results}/index.done"

# What running a model asks a cluster for: a GPU, or, to measure, a node without other jobs.
GPU = {} if SETTINGS.device == "cpu" else {"gpu": 1}
ALONE = GPU or {"slurm_extra": "--exclusive"}

# Jobs in containers see what is declared and nothing else. Elsewhere a report is made from a folder,
# and what is in it is left out of a graph of jobs that has enough to look at.
APART = workflow.storage_settings.default_storage_provider is not None


wildcard_constraints:
    model="|".join(map(re.escape, SETTINGS.models)),
    strategy="[a-z_]+",
    budget="[A-Za-z0-9.]+",


def of_plans(model, *files):
    """The paths of files of every plan of a model."""
    return [
        f"{SETTINGS.results}/{request.model}/{request.strategy}/{request.directory}/{file}"
        for request in SETTINGS.requests(model)
        for file in files
    ]


def compared(model):
    """What the index reads of a model, where it has to be declared."""
    strategies = SETTINGS.models[model].strategies
    frontiers = expand(f"{STRATEGY}/frontier.arrow", model=model, strategy=strategies)
    return (
        frontiers + of_plans(model, "plan.json", "measurement.arrow") if APART else []
    )


def reported(model):
    """What a report reads of a model besides, where it has to be declared."""
    files = [
        f"{MODEL}/{name}.arrow" for name in ("graph", "costs", "blocks", "options")
    ]
    made = of_plans(model, "sequence.arrow", "schedule.arrow", "line.arrow")
    return compared(model) + expand(files, model=model) + made if APART else []


def source(wildcards):
    """Names the factory of a model as options of a stage."""
    model = SETTINGS.models[wildcards.model]
    words = ["--factory", model.factory, "--arguments", model.arguments_json]
    for folder in SETTINGS.search_path:
        words += ["--search-path", folder]
    return words


def source_code(wildcards):
    """The fingerprint of the code that builds a model."""
    return code_behind(SETTINGS.models[wildcards.model].factory)


@cache
def code_behind(factory):
    """The fingerprint of the code of a factory."""
    return f"source {factory_fingerprint(factory, SETTINGS.search_path)}"


@cache
def code_of(stage):
    """The fingerprint of the code of a stage."""
    return f"code of {stage} {stage_fingerprint(stage)}"
