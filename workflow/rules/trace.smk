rule trace:
    output:
        f"{MODEL}/graph.arrow",
    log:
        f"{MODEL}/logs/trace.txt",
    wildcard_constraints:
        model=one_of(EAGER + RIVALS + SAMPLES),
    priority: before_frontiers
    resources:
        **GPU,
    params:
        name=name_of,
        source=source,
        operators=operators,
        operators_code=operators_code(),
        source_code=source_code,
        ones=ones,
        loss_room=loss_room,
        dynamic=dynamic,
        channels_last=channels_last,
        device=of_model("here"),
        code=code_of("trace"),
    message:
        "{wildcards.model}: tracing the training step"
    shell:
        "python -m tightfit trace {params.source:q} {params.operators:q} {params.dynamic:q} {params.ones} {params.channels_last} --name {params.name}"
        " --loss-room {params.loss_room:q}"
        " --device {params.device:q} --out {output:q} --error-file {log:q}"


# What is traced anew, or was lost, while plans of it are there: they are redone only if it changed,
# which Snakemake sees in a run of its own.
rule traced_again:
    input:
        [graph for graph in TRACED if Path(graph).exists()],
        lambda wildcards: [path for path in lost_files() if was_made(Path(path))],
