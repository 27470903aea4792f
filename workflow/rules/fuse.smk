# Where kernels are fused, the graph that was traced is eager.arrow, and graph.arrow has the groups.
use rule trace as trace_eager with:
    output:
        f"{MODEL}/eager.arrow",
    wildcard_constraints:
        model=one_of(FUSED),


rule fuse:
    input:
        f"{MODEL}/eager.arrow",
    output:
        f"{MODEL}/graph.arrow",
    log:
        f"{MODEL}/logs/fuse.txt",
    wildcard_constraints:
        model=one_of(FUSED),
    priority: before_frontiers
    threads: workflow.cores  # kernels are compiled for so many
    resources:
        **GPU,
    params:
        device=of_model("here"),
        code=code_of("fuse"),
    message:
        "{wildcards.model}: compiling each distinct group of ops"
    shell:
        "python -m tightfit fuse --graph {input:q} --device {params.device:q} --jobs {threads} --out {output:q}"
        " --error-file {log:q}"
