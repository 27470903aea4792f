rule trace:
    output:
        f"{MODEL}/graph.arrow",
    params:
        source=source,
        source_code=source_code,
        device=SETTINGS.device,
        error=f"{MODEL}/error.txt",
        code=stage_fingerprint("trace"),
    message:
        "{wildcards.model}: tracing the training step"
    shell:
        "python -m stages trace {params.source:q} --name {wildcards.model} --device {params.device}"
        " --out {output} --error-file {params.error}"
