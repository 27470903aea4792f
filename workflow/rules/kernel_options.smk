# What the rules share about fused kernels, what modules carry, and joint budgets.


def given_rival(wildcards, input, output):
    """Names what is planned with eager's kernels beside fused ones as options of a stage."""
    names = ("graph", "costs", "frontier", "blocks", "options", "hierarchy")
    files = [(f"--eager-{name}", input.get(f"eager_{name}")) for name in names]
    plan = output.get("eager_plan")
    files.append(("--eager-out", plan and Path(plan).parent))
    return [word for name, file in files if file for word in (name, file)]


def required_rival(wildcards):
    """Says as an option of a stage that a module carries a plan of eager's kernels."""
    return ["--eager-required"] if carries(wildcards, "with_eager") else []


def joint_plans(wildcards):
    """The keep-all plans of the samples that share the bytes of a budget."""
    shared = [] if wildcards.budget == NO_BUDGET else model_of(wildcards).joint
    return expand(f"{KEEP_ALL_POINT}/plan.json", model=shared)


def given_joint(wildcards, input):
    """Names those plans as options of a stage."""
    return ["--joint", *input.joint] if input.joint else []


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
    """Names as options of a stage the plan of eager's kernels that a module carries."""
    beside = [input.graph[1], *input.beside] if input.beside else []
    files = zip(("graph", "schedule", "plan"), beside)
    return [word for name, file in files for word in (f"--eager-{name}", file)]


def given_libraries(wildcards):
    """Says as an option of a stage that a module carries libraries."""
    return ["--libraries"] if carries(wildcards, "with_libraries") else []


def kernels_keep_all(wildcards):
    """The module that runs fused kernels and keeps everything, which plans of them are compared with."""
    fused = wildcards.model in FUSED
    return expand(f"{KEEP_ALL_POINT}/module", model=wildcards.model) if fused else []


def given_keep_all(wildcards, input):
    """Names that module as options of a stage."""
    return [word for folder in input.keep_all for word in ("--keep-all", folder)]
