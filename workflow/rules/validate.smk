# Measures, so it takes all cores and runs alone. Nothing asks for it where the device is described.
rule validate:
    input:
        graph=graphs,
        plan=f"{POINT}/plan.json",
        module=f"{POINT}/module",
        unplanned=kernels_unplanned,
    output:
        measurement=f"{POINT}/measurement.arrow",
        line=f"{POINT}/line.arrow",
    log:
        f"{POINT}/logs/validate.txt",
    priority: 1
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        source=source,
        operators=operators,
        operators_code=operators_code(),
        device=SETTINGS.device,
        pairs=SETTINGS.pairs,
        unplanned=given_unplanned,
        code=code_of("validate"),
    message:
        "{wildcards.model}: running {wildcards.strategy} {wildcards.budget} against the model"
    shell:
        "python -m stages validate {params.source:q} {params.operators:q} --graph {input.graph:q}"
        " --plan {input.plan:q} --module {input.module:q} {params.unplanned:q} --device {params.device:q} --pairs {params.pairs:q}"
        " --line {output.line:q} --out {output.measurement:q} --error-file {log:q}"
