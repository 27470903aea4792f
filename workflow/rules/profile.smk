# Measures, so it takes all cores and runs alone; a described device takes seconds of one core.
rule profile:
    input:
        graph=f"{MODEL}/graph.arrow",
    output:
        f"{MODEL}/costs.arrow",
    log:
        f"{MODEL}/logs/profile.txt",
    priority: before_frontiers
    threads: lambda wildcards: workflow.cores if measures(wildcards) else 1
    resources:
        **MEASURING,
    params:
        source=source,
        operators=operators,
        operators_code=operators_code(),
        costs_from=costs_from,
        description=description,
        threads=threads_of_cpu("profile"),
        doing=lambda wildcards: (
            "measuring each distinct op"
            if measures(wildcards)
            else "reading each distinct op off the description of the device"
        ),
        code=code_of("profile"),
        allocator=training_allocator,
    message:
        "{wildcards.model}: {params.doing}"
    shell:
        "{params.allocator} python -m tightfit profile {params.source:q} {params.operators:q} --graph {input.graph:q}"
        " {params.costs_from:q} {params.threads:q} ${{TIGHTFIT_REMEASURE:+--remeasure}} --out {output:q} --error-file {log:q}"


# Where a strategy takes a link and no machine is named. What the store has is not measured again,
# here and above, unless --remeasure asks for that.
rule link:
    output:
        LINK,
    log:
        f"{SETTINGS.results}/logs/link_{{device}}.txt",
    threads: workflow.cores
    resources:
        gpu=lambda wildcards: 1 if wildcards.device != "cpu" else None,
        slurm_extra=lambda wildcards: (
            "--exclusive" if wildcards.device == "cpu" else None
        ),
        measuring=1,
    params:
        store=SETTINGS.store,
        disk=os.getenv("TIGHTFIT_DISK", ""),
        code=code_of("profile"),
    message:
        "measuring the link of {wildcards.device} to its offload target"
    shell:
        "python -m tightfit machine --device {wildcards.device:q} --library {params.store:q}"
        " --disk={params.disk:q} ${{TIGHTFIT_REMEASURE:+--remeasure}} --out {output:q} --error-file {log:q}"
