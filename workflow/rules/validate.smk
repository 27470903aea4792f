# The model's own step, once for all of its plans: each of these is compared with what is found here,
# in a process of its own as this one is. Measures, so it takes all cores and runs alone. Nothing
# asks for it where the device is described.
rule reference:
    input:
        graph=f"{MODEL}/graph.arrow",
    output:
        reference=f"{MODEL}/reference.arrow",
        line=f"{MODEL}/memory_timeline.arrow",
    log:
        f"{MODEL}/logs/reference.txt",
    priority: before_frontiers
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        source=source,
        operators=operators,
        operators_code=operators_code(),
        device=of_model("device"),
        threads=threads_of_cpu("reference"),
        pairs=of_model("pairs"),
        settings=step_settings,
        code=code_of("validate"),
    message:
        "{wildcards.model}: running the model"
    shell:
        "{params.settings} python -m tightfit reference {params.source:q} {params.operators:q} --graph {input.graph:q}"
        " --device {params.device:q} {params.threads:q} --pairs {params.pairs:q}"
        " --timeline {output.line:q} --out {output.reference:q} --error-file {log:q}"


# Measures, too. Nothing asks for it where the device is described.
rule validate:
    input:
        graph=graphs,
        plan=f"{POINT}/plan.json",
        module=f"{POINT}/module",
        reference=f"{MODEL}/reference.arrow",
        own_line=f"{MODEL}/memory_timeline.arrow",
        keep_all=kernels_keep_all,
    output:
        measurement=f"{POINT}/measurement.arrow",
        line=f"{POINT}/memory_timeline.arrow",
    log:
        f"{POINT}/logs/validate.txt",
    priority: before_frontiers
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        source=source,
        operators=operators,
        operators_code=operators_code(),
        device=of_model("device"),
        threads=threads_of_cpu("validate"),
        pairs=of_model("pairs"),
        settings=step_settings,
        keep_all=given_keep_all,
        code=code_of("validate"),
    message:
        "{wildcards.model}: running {wildcards.strategy} {wildcards.budget} against the model"
    shell:
        "{params.settings} python -m tightfit validate {params.source:q} {params.operators:q} --graph {input.graph:q}"
        " --plan {input.plan:q} --module {input.module:q} {params.keep_all:q} --device {params.device:q}"
        " {params.threads:q} --pairs {params.pairs:q} --reference {input.reference:q}"
        " --timeline {output.line:q} --out {output.measurement:q} --error-file {log:q}"
