rule generate:
    input:
        graph=f"{MODEL}/graph.arrow",
        schedule=f"{POINT}/schedule.arrow",
        plan=f"{POINT}/plan.json",
    output:
        directory(f"{POINT}/module"),
    log:
        f"{POINT}/logs/generate.txt",
    params:
        code=stage_fingerprint("generate"),
    message:
        "{wildcards.model}: writing the module of {wildcards.strategy} {wildcards.budget}"
    shell:
        "python -m stages generate --graph {input.graph} --schedule {input.schedule}"
        " --plan {input.plan} --out {output} --error-file {log}"
