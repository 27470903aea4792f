rule generate:
    input:
        graph=graphs,
        schedule=f"{POINT}/schedule.arrow",
        plan=f"{POINT}/plan.json",
        beside=plan_beside,
        microbatch=microbatch_schedule,
    output:
        directory(f"{POINT}/module"),
    log:
        f"{POINT}/logs/generate.txt",
    priority: before_frontiers
    threads: of_libraries
    params:
        carried=given_carried,
        libraries=given_libraries,
        operators=operators,
        operators_code=operators_code(),
        search_path=search_path(),
        code=code_of("generate"),
    message:
        "{wildcards.model}: writing the module of {wildcards.strategy} {wildcards.budget}"
    shell:
        "python -m tightfit generate --graph {input.graph:q} --schedule {input.schedule:q}"
        " --plan {input.plan:q} {params.carried:q} {params.libraries:q} {params.operators:q}"
        " {params.search_path:q} --out {output:q} --error-file {log:q}"
