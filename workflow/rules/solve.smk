# One job a model, with a process a core; blocks solved before come from the store.
rule solve:
    input:
        blocks=f"{MODEL}/blocks.arrow",
    output:
        f"{MODEL}/options.arrow",
    log:
        f"{MODEL}/logs/solve.txt",
    priority: before_frontiers
    threads: workflow.cores
    params:
        engine=of_model("engine"),
        peaks=of_model("peaks"),
        saves=of_model("saves"),
        store=SETTINGS.store,
        machine=[],
        code=code_of("solve"),
    message:
        "{wildcards.model}: finding the options of each distinct block"
    shell:
        "python -m tightfit solve --blocks {input.blocks:q} --store {params.store:q} --solver {params.engine:q}"
        " --peaks {params.peaks:q} --saves {params.saves:q} --jobs {threads} {params.machine:q}"
        " --out {output:q} --error-file {log:q}"


# The same for a link, for strategies that take options of which something may leave over it.
use rule solve as solve_linked with:
    input:
        blocks=f"{MODEL}/blocks.arrow",
        machine=link_of_device,
    output:
        f"{MODEL}/linked_options.arrow",
    log:
        f"{MODEL}/logs/solve_linked.txt",
    priority: before_frontiers
    params:
        engine=of_model("engine"),
        peaks=of_model("peaks"),
        saves=of_model("saves"),
        store=SETTINGS.store,
        machine=machine_with_link,
        link=link_digest,
        code=code_of("solve"),
    message:
        "{wildcards.model}: finding the options of each distinct block with a link"
