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
        code=stage_fingerprint("solve"),
    message:
        "{wildcards.model}: finding the options of each distinct block"
    shell:
        "python -m stages solve --blocks {input} --store {params.store} --engine {params.engine}"
        " --peaks {params.peaks} --saves {params.saves} --jobs {threads}"
        " --out {output} --error-file {log}"
