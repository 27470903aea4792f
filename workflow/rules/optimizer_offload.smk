# A whole step with its optimizer, for models that declare one: costs of updates and the link of the
# offload target, then a plan for each budget, which is generated as others are and validated by
# itself.


ruleorder: profile_updates > profile
ruleorder: validate_step > validate


# Costs with those of the updates. Measures, so it takes all cores and runs alone.
rule profile_updates:
    input:
        graph=f"{MODEL}/graph.arrow",
    output:
        costs=f"{MODEL}/costs.arrow",
        updates=f"{MODEL}/updates.json",
    log:
        f"{MODEL}/logs/profile.txt",
    wildcard_constraints:
        model=one_of(UPDATED),
    priority: before_frontiers
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        source=source,
        operators=operators,
        operators_code=operators_code(),
        costs_from=costs_from,
        threads=threads_of_cpu("profile_updates"),
        optimizer=described_updates,
        parameters=lambda wildcards: step_of(wildcards).parameters,
        disks=lambda wildcards: given_disks(wildcards, ["disk"]),
        allocator=training_allocator,
        code=code_of("profile"),
    message:
        "{wildcards.model}: measuring each distinct op and update"
    shell:
        "{params.allocator} python -m tightfit profile {params.source:q} {params.operators:q} --graph {input.graph:q}"
        " {params.costs_from:q} {params.threads:q} ${{TIGHTFIT_REMEASURE:+--remeasure}} --out {output.costs:q}"
        " {params.optimizer:q} --parameters {params.parameters} --updates {output.updates:q} {params.disks:q} --error-file {log:q}"


# Where no machine is named. What the store has is not measured again, as other links.
rule offload_link:
    output:
        f"{MODEL}/machine.json",
    log:
        f"{MODEL}/logs/offload_link.txt",
    wildcard_constraints:
        model=one_of(UPDATED),
    priority: before_frontiers
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        device=of_model("device"),
        store=SETTINGS.store,
        disk=os.getenv("TIGHTFIT_DISK", ""),
        disks=given_disks,
        code=code_of("profile"),
    message:
        "{wildcards.model}: measuring the link of {params.device} to its offload target"
    shell:
        "python -m tightfit machine --device {params.device:q} --library {params.store:q}"
        " --disk={params.disk:q} {params.disks:q} ${{TIGHTFIT_REMEASURE:+--remeasure}} --out {output:q} --error-file {log:q}"


# The fastest plan of all samples. The schedule of earlier microbatches has no steps unless there are
# several.
rule optimizer_offload:
    input:
        graphs=graphs,
        costs=step_costs,
        updates=measured_updates,
        machine=offload_link_machine,
        search=[] if APART else COMPILED,
    output:
        schedule=f"{STEP}/schedule.arrow",
        microbatch=f"{STEP}/microbatch.arrow",
        plan=f"{STEP}/plan.json",
    log:
        f"{STEP}/logs/optimizer_offload.txt",
    wildcard_constraints:
        model=one_of(STEPS),
    priority: before_frontiers
    params:
        samples=given_samples,
        microbatches=given_microbatches,
        updates=given_updates,
        optimizer=unmeasured_updates,
        machine=machine_with_link,
        link=link_digest,
        placement=given_placement,
        budget=lambda wildcards: SETTINGS.budget(wildcards.model, wildcards.budget),
        folder=subpath(output.plan, parent=True),
        engine=of_model("step_engine"),
        code=code_of("combine"),
    message:
        "{wildcards.model}: planning the step with its optimizer for {params.budget}"
    shell:
        "python -m tightfit optimizer-offload {params.samples:q} {params.microbatches:q} {params.updates:q}"
        " {params.optimizer:q} {params.machine:q}"
        " {params.placement:q} --budget {params.budget:q} --solver {params.engine:q}"
        " --out {params.folder:q} --error-file {log:q}"


# Measures, too. Nothing asks for it where the device is described.
rule validate_step:
    input:
        graph=graphs,
        plan=f"{STEP}/plan.json",
        module=f"{STEP}/module",
    output:
        measurement=f"{STEP}/measurement.arrow",
        line=f"{STEP}/memory_timeline.arrow",
    log:
        f"{STEP}/logs/validate.txt",
    wildcard_constraints:
        model=one_of(STEPS),
    priority: before_frontiers
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        source=source,
        samples=sample_arguments,
        operators=operators,
        operators_code=operators_code(),
        device=of_model("device"),
        threads=threads_of_cpu("validate_step"),
        pairs=of_model("pairs"),
        disks=given_disks,
        settings=step_settings,
        code=code_of("validate"),
    message:
        "{wildcards.model}: running the step with its optimizer for {wildcards.budget}"
    shell:
        "{params.settings} python -m tightfit validate {params.source:q} {params.samples:q} {params.operators:q}"
        " --graph {input.graph:q} --plan {input.plan:q} --module {input.module:q}"
        " --device {params.device:q} {params.threads:q} --pairs {params.pairs:q} {params.disks:q}"
        " --timeline {output.line:q} --out {output.measurement:q} --error-file {log:q}"
