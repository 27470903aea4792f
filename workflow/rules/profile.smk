# Measures, so it takes all cores and runs alone.
rule profile:
    input:
        graph=f"{MODEL}/graph.arrow",
    output:
        f"{MODEL}/costs.arrow",
    log:
        f"{MODEL}/logs/profile.txt",
    threads: workflow.cores
    resources:
        **ALONE,
        measuring=1,
    params:
        source=source,
        device=SETTINGS.device,
        store=SETTINGS.store,
        code=code_of("profile"),
    message:
        "{wildcards.model}: measuring each distinct op"
    shell:
        "python -m stages profile {params.source:q} --graph {input.graph:q} --device {params.device:q}"
        " --library {params.store:q} --out {output:q} --error-file {log:q}"
