# Measures, so it takes all cores and runs alone.
rule validate:
    input:
        graph=f"{MODEL}/graph.arrow",
        plan=f"{POINT}/plan.json",
        module=f"{POINT}/module",
    output:
        f"{POINT}/measurement.arrow",
    params:
        source=source,
        pairs=SETTINGS.pairs,
        error=f"{POINT}/error.txt",
        code=stage_fingerprint("validate"),
    threads: workflow.cores
    resources:
        measuring=1,
    message:
        "{wildcards.model}: running {wildcards.strategy} {wildcards.budget} against the model"
    shell:
        "python -m stages validate {params.source:q} --graph {input.graph} --plan {input.plan}"
        " --module {input.module} --pairs {params.pairs}"
        " --out {output} --error-file {params.error}"
