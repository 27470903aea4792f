rule trace:
    output:
        f"{MODEL}/graph.arrow",
    log:
        f"{MODEL}/logs/trace.txt",
    params:
        source=source,
        source_code=source_code,
        device=SETTINGS.device,
        code=stage_fingerprint("trace"),
    message:
        "{wildcards.model}: tracing the training step"
    shell:
        "python -m stages trace {params.source:q} --name {wildcards.model} --device {params.device}"
        " --out {output} --error-file {log}"
