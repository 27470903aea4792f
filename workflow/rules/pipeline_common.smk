# What the rules for pipelines share: folders, files and settings.

from tightfit.schemas.config_pipeline import PIPELINE_FOLDER
from snakemake.io import IOFile

from tightfit.schemas.lost_files import find_lost_outputs
from tightfit.schemas.plan_folders import plan_folders
from tightfit.schemas.results_claim import find_claim_time

PIPELINE = f"{MODEL}/{PIPELINE_FOLDER}/{{allocator}}"
PLAN_FOLDERS = [folder.path(SETTINGS.results) for folder in plan_folders(SETTINGS)]


# What lies beside the plan of an allocation.
ALLOCATION_FILES = (
    []
    if APART
    else [f"{PIPELINE}/plan/{name}.arrow" for name in ("pattern", "sequence")]
)


def whole_folder(folder, file):
    """A folder that a job writes: the one file of it that names the others, whose content says
    whether anything changed; the folder where jobs see what is declared alone."""
    return directory(folder) if APART else f"{folder}/{file}"


def folder_of(path):
    """That folder, by what stands for it."""
    return path if APART else str(Path(path).parent)


def stage_options(wildcards):
    """The options of blocks, where stages of a pipeline recompute by them."""
    recompute = model_of(wildcards).pipeline.recompute_of(wildcards.allocator)
    files = expand(f"{MODEL}/options.arrow", model=wildcards.model)
    return files if recompute == "rockmate" else []


def given_stage_options(wildcards, input):
    """Names them as options of a stage."""
    return [word for file in input.options for word in ("--options", file)]


def allocation_settings(wildcards):
    """Says as options of a stage how a pipeline is planned."""
    pipeline = model_of(wildcards).pipeline
    return pipeline.plan_options(wildcards.allocator, model_of(wildcards).step_engine)


def described_pipeline(wildcards):
    """The digest of the description of a pipeline's machine."""
    return f"pipeline on {machine_digest(model_of(wildcards).pipeline.machine)}"


def runs_here(model):
    """Whether the pipeline of a model runs on this machine."""
    return (
        SETTINGS.models[model].pipeline.on_cpus and not SETTINGS.models[model].machine
    )


def measured_pipeline(wildcards):
    """The measurement of a pipeline that runs here."""
    files = expand(f"{PIPELINE}/measurement.json", **wildcards)
    return files if runs_here(wildcards.model) else []


def compared_pipelines():
    """What the index reads of pipelines beside their pages, where it has to be declared."""
    names = {True: ["plan", "ranks", "measurement.json"], False: ["plan", "ranks"]}
    return [
        path
        for model, chosen in SETTINGS.models.items()
        if chosen.pipeline and APART
        for path in expand(
            f"{PIPELINE}/{{file}}",
            model=model,
            allocator=chosen.pipeline.strategies,
            file=names[runs_here(model)],
        )
    ]


def given_measurement(wildcards, input):
    """Names it as options of a stage."""
    return [word for file in input.measurement for word in ("--measurement", file)]


def further_plans(wildcards):
    """The plans of chains and pipelines that the configuration asks for."""
    return [*FURTHER_PLANS, *(f"{folder}/plan/plan.json" for folder in PLAN_FOLDERS)]


FURTHER_PAGES += [f"{folder}/report.html" for folder in PLAN_FOLDERS]
FURTHER_PAGES += compared_pipelines()


def pipeline_files(model, allocator):
    """What a run leaves of a pipeline."""
    names = ["ranks/pipeline.json", "module", "trace.json"]
    names += ["measurement.json"] if runs_here(model) else []
    files = [*ALLOCATION_FILES, *(f"{PIPELINE}/{name}" for name in names)]
    return expand(files, model=model, allocator=allocator)


def kept_files(wildcards):
    """What a run leaves of each plan, and what of that is lost."""
    return list(dict.fromkeys([*named_files(), *lost_files()]))


@cache
def named_files():
    """What a run leaves of each plan. A file that is lost is made again: a job that has nothing to
    do does not look at what its inputs are made of."""
    if APART:
        return []
    files = [
        FURTHER_PAGES,
        further_plans(None),
        expand(f"{MODEL}/report.{{kind}}", model=PAGED, kind=["html", "done"]),
        [f"{SETTINGS.results}/index.html"],
    ]
    for name in PAGED:
        further = ["microbatch.arrow"] if name in STEPS else ["sequence.arrow"]
        modules = [] if name in STEPS else ["module"]
        made = ["trace.json", *(measured(name, "module", *MEASURED) or modules)]
        files.append(of_plans(name, "schedule.arrow", "plan.json", *further, *made))
        files.append(frontiers_of(name))
        own_line = (
            [] if name in STEPS else measured(name, f"{MODEL}/memory_timeline.arrow")
        )
        files.append(expand(own_line, model=name))
    files += [
        pipeline_files(each.model, each.strategy) for each in plan_folders(SETTINGS)
    ]
    files += [chain_plan_files(chain) for chain in SETTINGS.chains.values()]
    return [path for paths in files for path in paths]


def lost_files():
    """The outputs of jobs, among those of a run before, that are gone, not whole or from a run in
    another folder. Snakemake takes what is there for whole unless it is told, and for what the
    configuration asks for where it has no notes on how that was made."""
    lost = lost_outputs()
    workflow.dag.forcefiles.update(path for path in lost if Path(path).exists())
    return lost


def has_notes(path):
    """Whether Snakemake has notes on how a file was made, since these results are of this folder's
    configurations."""
    notes = workflow.persistence.metadata(IOFile(str(path)))
    return notes is not None and (notes["starttime"] or 0) >= results_claim_time()


@cache
def results_claim_time():
    return find_claim_time(Path(SETTINGS.results), Path.cwd())


@cache
def lost_outputs():
    """These outputs, as they are when the jobs are looked for."""
    named = set(named_files())
    found = find_lost_outputs(Path(SETTINGS.results), map(Path, named), has_notes)
    return [
        path
        for path in map(str, found)
        if path in named or any(rule.is_producer(path) for rule in workflow.rules)
    ]
