rule partition:
    input:
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
    output:
        f"{MODEL}/blocks.arrow",
    log:
        f"{MODEL}/logs/partition.txt",
    params:
        code=stage_fingerprint("partition"),
    message:
        "{wildcards.model}: cutting the graph into blocks"
    shell:
        "python -m stages partition --graph {input.graph} --costs {input.costs}"
        " --out {output} --error-file {log}"
