rule report:
    input:
        lambda wildcards: points(wildcards.model, "measurement.arrow"),
    output:
        f"{MODEL}/report.html",
    params:
        folder=MODEL,
        error=f"{MODEL}/error.txt",
        code=stage_fingerprint("report"),
    message:
        "{wildcards.model}: writing the report"
    shell:
        "python -m stages report --model-dir {params.folder} --out {output}"
        " --error-file {params.error}"


rule index:
    input:
        expand(f"{MODEL}/report.html", model=SETTINGS.models),
    output:
        INDEX,
    params:
        folder=SETTINGS.results,
        code=stage_fingerprint("report"),
    message:
        "writing the index"
    shell:
        "python -m stages report --index {params.folder} --out {output}"


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
