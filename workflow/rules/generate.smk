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
        code=code_of("generate"),
    message:
        "{wildcards.model}: writing the module of {wildcards.strategy} {wildcards.budget}"
    shell:
        "python -m stages generate --graph {input.graph:q} --schedule {input.schedule:q}"
        " --plan {input.plan:q} --out {output:q} --error-file {log:q}"
