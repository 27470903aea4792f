# Measures, so it takes all cores and runs alone; a described device takes seconds of one core.
rule profile:
    input:
        graph=f"{MODEL}/graph.arrow",
    output:
        f"{MODEL}/costs.arrow",
    log:
        f"{MODEL}/logs/profile.txt",
    priority: before_frontiers
    threads: 1 if SETTINGS.machine else workflow.cores
    resources:
        **MEASURING,
    params:
        source=source,
        operators=operators,
        operators_code=operators_code(),
        costs_from=costs_from,
        description=description(),
        threads=threads_of_cpu("profile"),
        doing=(
            "reading each distinct op off the description of the device"
            if SETTINGS.machine
            else "measuring each distinct op"
        ),
        code=code_of("profile"),
        allocator=training_allocator(),
    message:
        "{wildcards.model}: {params.doing}"
    shell:
        "{params.allocator} python -m tightfit profile {params.source:q} {params.operators:q} --graph {input.graph:q}"
        " {params.costs_from:q} {params.threads:q} ${{TIGHTFIT_REMEASURE:+--remeasure}} --out {output:q} --error-file {log:q}"


# Where a strategy takes a link and no machine is named. What the store has is not measured again,
# here and above, unless REMEASURE of plan.sh asks for that.
rule link:
    output:
        LINK,
    log:
        f"{SETTINGS.results}/logs/link.txt",
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        device=SETTINGS.device,
        store=SETTINGS.store,
        disk=os.getenv("TIGHTFIT_DISK", ""),
        code=code_of("profile"),
    message:
        "measuring the link of {params.device} to its slow memory"
    shell:
        "python -m tightfit machine --device {params.device:q} --library {params.store:q}"
        " --disk={params.disk:q} ${{TIGHTFIT_REMEASURE:+--remeasure}} --out {output:q} --error-file {log:q}"
