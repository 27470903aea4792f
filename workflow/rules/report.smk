# The schedule as a trace that ui.perfetto.dev opens.
rule perfetto:
    input:
        graph=f"{MODEL}/graph.arrow",
        schedule=f"{POINT}/schedule.arrow",
    output:
        f"{POINT}/trace.json",
    log:
        f"{POINT}/logs/perfetto.txt",
    params:
        code=stage_fingerprint("report"),
    message:
        "{wildcards.model}: writing the trace of {wildcards.strategy} {wildcards.budget}"
    shell:
        "python -m stages report --perfetto {input.schedule} --graph {input.graph}"
        " --out {output} --error-file {log}"


rule report:
    input:
        lambda wildcards: points(wildcards.model, "measurement.arrow"),
        lambda wildcards: points(wildcards.model, "trace.json"),
    output:
        page=f"{MODEL}/report.html",
        done=touch(f"{MODEL}/report.done"),
    log:
        f"{MODEL}/logs/report.txt",
    params:
        folder=subpath(output.page, parent=True),
        code=stage_fingerprint("report"),
    message:
        "{wildcards.model}: writing the report"
    shell:
        "python -m stages report --model-dir {params.folder} --out {output.page}"
        " --error-file {log}"


rule index:
    input:
        expand(f"{MODEL}/report.done", model=SETTINGS.models),
    output:
        page=f"{SETTINGS.results}/index.html",
        done=touch(DONE),
    log:
        f"{SETTINGS.results}/logs/index.txt",
    params:
        folder=subpath(output.page, parent=True),
        code=stage_fingerprint("report"),
    message:
        "writing the index"
    shell:
        "python -m stages report --index {params.folder} --out {output.page} --error-file {log}"


# What failed has a page too, without the mark that it is done: the next run tries again.
onerror:
    shell(
        f"python -m stages report --failed {SETTINGS.results}"
        f" --out {SETTINGS.results}/index.html"
    )
