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
