# The options of stages that rules share: links, machines, factories, costs, threads, and fingerprints
# of code.


def measured_line(wildcards):
    """The line of the memory of a measured step, none where a model's device is described."""
    return measured(name_of(wildcards), f"{POINT}/memory_timeline.arrow")


def given_line(wildcards, input):
    """Names that line as options of a stage."""
    return ["--timeline", input.line] if input.line else []


def measured_link(wildcards):
    """The description of this machine, where a strategy takes a link and no machine is named."""
    takes = STRATEGIES[wildcards.strategy].links
    return link_of_device(wildcards) if takes else []


def link_of_device(wildcards):
    """The description of this machine with the link of a model's device, where no machine is
    named."""
    model = model_of(wildcards)
    return [] if model.link_machine else expand(LINK, device=model.device)


def linked_machine(wildcards, input):
    """Names the machine whose link a strategy takes as options of a stage."""
    return (
        machine_with_link(wildcards, input)
        if STRATEGIES[wildcards.strategy].links
        else []
    )


def machine_with_link(wildcards, input):
    """Names the machine with a model's link as options of a stage."""
    return ["--machine", model_of(wildcards).link_machine or input.machine]


def described_link(wildcards):
    """The digest of a machine's description, "" where a strategy takes none that is named."""
    return link_digest(wildcards) if STRATEGIES[wildcards.strategy].links else ""


def link_digest(wildcards):
    """The digest of the description of a model's machine with a link, "" where none is named."""
    return machine_digest(model_of(wildcards).link_machine)


def description(wildcards):
    """The digest of the description of a model's device, "" where the device is here."""
    return machine_digest(model_of(wildcards).machine)


@cache
def machine_digest(path):
    """The digest of the description of a machine, "" for none."""
    from tightfit.schemas.store import file_digest

    return f"machine {file_digest(path)}" if path else ""


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


def dynamic(wildcards):
    """Names the sizes of inputs that differ from call to call as options of a stage."""
    found = model_of(wildcards).dynamic
    return found.options if found else []


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
    model = model_of(wildcards)
    if model.machine:
        return ["--source", "roofline", "--machine", model.machine]
    return ["--device", model.device, "--library", SETTINGS.store]


def threads_of_cpu(rule):
    """Says as options of a stage how many threads a step runs with, which are those of a rule. Its
    bytes depend on that on the CPU: with another number costs are measured, plans made and
    validated anew. Snakemake does not see that of a function of `threads`."""
    asked = workflow.resource_settings.overwrite_threads.get(rule)
    threads = workflow.cores if asked is None else min(int(asked.raw), workflow.cores)
    return lambda wildcards: (
        ["--threads", str(threads)] if model_of(wildcards).device == "cpu" else []
    )


def training_allocator(wildcards):
    """The settings under which a process trains with tcmalloc, where that is installed, as a prefix
    of a command: what is measured on the CPU holds for it. Jobs elsewhere take what they find there.
    """
    return preload_prefix() if model_of(wildcards).device == "cpu" and not APART else ""


def step_settings(wildcards):
    """The settings of a process that compares steps of a plan and of its model: those of training,
    and threads that sleep while they wait for others, as `validate` sets them by itself.
    """
    if model_of(wildcards).device != "cpu":
        return ""
    waiting = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return f"{training_allocator(wildcards) or 'env'} OMP_WAIT_POLICY={waiting}"


@cache
def preload_prefix():
    """These settings, "" without tcmalloc."""
    found = preload_settings(os.environ.get("LD_PRELOAD", ""))
    return " ".join(
        ["env", *(f"{name}={value}" for name, value in found.items())] if found else ""
    )


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
