rule partition:
    input:
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
    output:
        f"{MODEL}/blocks.arrow",
    log:
        f"{MODEL}/logs/partition.txt",
    priority: before_frontiers
    params:
        code=code_of("partition"),
    message:
        "{wildcards.model}: cutting the graph into blocks"
    shell:
        "python -m tightfit partition --graph {input.graph:q} --costs {input.costs:q}"
        " --out {output:q} --error-file {log:q}"


# For strategies that plan with clusters.
rule hierarchy:
    input:
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
    output:
        f"{MODEL}/hierarchy.arrow",
    log:
        f"{MODEL}/logs/hierarchy.txt",
    priority: before_frontiers
    params:
        limits=[
            word
            for name, most in SETTINGS.hierarchy.items()
            for word in (f"--{name}", most)
        ],
        code=code_of("partition"),
    message:
        "{wildcards.model}: cutting the graph into clusters"
    shell:
        "python -m tightfit partition --graph {input.graph:q} --costs {input.costs:q}"
        " --hierarchy {output:q} {params.limits} --error-file {log:q}"
