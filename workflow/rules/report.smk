# The schedule as a trace that ui.perfetto.dev opens.
rule perfetto:
    input:
        graph=f"{MODEL}/graph.arrow",
        schedule=f"{POINT}/schedule.arrow",
    output:
        f"{POINT}/trace.json",
    log:
        f"{POINT}/error.txt",
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
        f"{MODEL}/report.html",
    log:
        f"{MODEL}/error.txt",
    params:
        folder=subpath(output[0], parent=True),
        code=stage_fingerprint("report"),
    message:
        "{wildcards.model}: writing the report"
    shell:
        "python -m stages report --model-dir {params.folder} --out {output}"
        " --error-file {log}"


rule index:
    input:
        expand(f"{MODEL}/report.html", model=SETTINGS.models),
    output:
        INDEX,
    log:
        f"{SETTINGS.results}/error.txt",
    params:
        folder=subpath(output[0], parent=True),
        code=stage_fingerprint("report"),
    message:
        "writing the index"
    shell:
        "python -m stages report --index {params.folder} --out {output} --error-file {log}"


# A model that failed has a page too. The index looks old, so that the next run makes it again.
onerror:
    for model in SETTINGS.models:
        if any(Path(SETTINGS.results, model).rglob("error.txt")):
            shell(
                f"python -m stages report --model-dir {SETTINGS.results}/{model}"
                f" --out {SETTINGS.results}/{model}/report.html"
                f" && touch -d @0 {SETTINGS.results}/{model}/report.html || true"
            )
    shell(
        f"python -m stages report --index {SETTINGS.results} --out {INDEX}"
        f" && touch -d @0 {INDEX} || true"
    )
