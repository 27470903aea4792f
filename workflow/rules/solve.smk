# One job a model, with a process a core; blocks solved before come from the store.
rule solve:
    input:
        f"{MODEL}/blocks.arrow",
    output:
        f"{MODEL}/options.arrow",
    log:
        f"{MODEL}/logs/solve.txt",
    threads: workflow.cores
    params:
        engine=SETTINGS.engine,
        peaks=SETTINGS.peaks,
        saves=SETTINGS.saves,
        store=SETTINGS.store,
        code=code_of("solve"),
    message:
        "{wildcards.model}: finding the options of each distinct block"
    shell:
        "python -m stages solve --blocks {input:q} --store {params.store:q} --engine {params.engine:q}"
        " --peaks {params.peaks:q} --saves {params.saves:q} --jobs {threads}"
        " --out {output:q} --error-file {log:q}"
