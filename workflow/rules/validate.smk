# Measures, so it takes all cores and runs alone.
rule validate:
    input:
        graph=f"{MODEL}/graph.arrow",
        plan=f"{POINT}/plan.json",
        module=f"{POINT}/module",
    output:
        measurement=f"{POINT}/measurement.arrow",
        line=f"{POINT}/line.arrow",
    log:
        f"{POINT}/logs/validate.txt",
    threads: workflow.cores
    resources:
        measuring=1,
    params:
        source=source,
        device=SETTINGS.device,
        pairs=SETTINGS.pairs,
        code=stage_fingerprint("validate"),
    message:
        "{wildcards.model}: running {wildcards.strategy} {wildcards.budget} against the model"
    shell:
        "python -m stages validate {params.source:q} --graph {input.graph} --plan {input.plan}"
        " --module {input.module} --device {params.device} --pairs {params.pairs}"
        " --line {output.line} --out {output.measurement} --error-file {log}"
