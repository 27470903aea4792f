# What the rules of whole steps with their optimizer share.

STEP = f"{MODEL}/{OPTIMIZER_OFFLOAD}/{{budget}}"

# Steps whose updates are measured, with the costs of their first sample.
UPDATED = [name for name in STEPS if SETTINGS.models[name].machine is None]


def step_of(wildcards):
    """The step of a model as the configuration has it."""
    return model_of(wildcards).optimizer_step


def described_updates(wildcards):
    """Names the optimizer of a step and its settings as options of a stage."""
    step = step_of(wildcards)
    return [
        *("--optimizer", step.optimizer),
        *("--optimizer-settings", step.settings_json),
    ]


def given_disks(wildcards, names=("disk", "second_disk")):
    """Names the folders of disks of a step as options of a stage."""
    step = step_of(wildcards)
    folders = [(f"--{name.replace('_', '-')}", getattr(step, name)) for name in names]
    return [word for option, folder in folders if folder for word in (option, folder)]


def given_updates(wildcards, input):
    """Names measured updates as options of a stage."""
    return ["--updates", input.updates] if input.updates else []


def unmeasured_updates(wildcards):
    """Names the optimizer as options of a stage, where its updates are not measured."""
    return [] if wildcards.model in UPDATED else described_updates(wildcards)


def given_placement(wildcards):
    """Says where parameters wait, and how many bytes of the offload target a step may take, as
    options of a stage."""
    step = step_of(wildcards)
    limit = ["--limit", step.limit] if step.limit else []
    return ["--parameters", step.parameters, *limit]


def step_costs(wildcards):
    """The costs of each graph of a step, none of other models."""
    samples = samples_of(wildcards.model) if wildcards.model in STEPS else []
    return expand(f"{MODEL}/costs.arrow", model=samples)


def given_step_costs(wildcards, input):
    """Names these costs as options of a stage."""
    return ["--costs", *input.costs] if input.costs else []


def given_samples(wildcards, input):
    """Names the graphs of a step and their costs as options of a stage."""
    words = [("--graph", graph) for graph in input.graphs]
    words += [("--costs", costs) for costs in input.costs]
    return [word for pair in words for word in pair]


def given_microbatches(wildcards):
    """Says how many microbatches of each graph make a step, or from which of these numbers to choose
    for a single graph, as options of a stage."""
    counts = step_of(wildcards).microbatches
    return [word for count in counts for word in ("--microbatches", count)]


def microbatch_schedule(wildcards):
    """The schedule of the earlier microbatches of a step, none of other models."""
    is_step = wildcards.model in STEPS
    return expand(f"{POINT}/microbatch.arrow", **wildcards) if is_step else []


def sample_arguments(wildcards):
    """Names the arguments of each sample of a step as options of a stage."""
    samples = step_of(wildcards).samples.values()
    texts = [json.dumps(arguments, sort_keys=True) for arguments in samples]
    return [word for text in texts for word in ("--sample-arguments", text)]


def measured_updates(wildcards):
    """The costs of updates, where they are measured."""
    measured_here = wildcards.model in UPDATED
    return (
        expand(f"{MODEL}/updates.json", model=wildcards.model) if measured_here else []
    )


def offload_link_machine(wildcards):
    """The description of this machine with the link to the offload target, where none is named."""
    named = model_of(wildcards).link_machine
    return [] if named else expand(f"{MODEL}/machine.json", model=wildcards.model)
