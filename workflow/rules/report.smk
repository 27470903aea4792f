# The schedule as a trace that ui.perfetto.dev opens.
rule perfetto:
    input:
        graph=graphs,
        schedule=f"{POINT}/schedule.arrow",
        costs=step_costs,
        line=measured_line,
    output:
        f"{POINT}/trace.json",
    log:
        f"{POINT}/logs/perfetto.txt",
    params:
        costs=given_step_costs,
        line=given_line,
        code=code_of("report"),
    message:
        "{wildcards.model}: writing the trace of {wildcards.strategy} {wildcards.budget}"
    shell:
        "python -m tightfit report --perfetto {input.schedule:q} --graph {input.graph:q}"
        " {params.costs:q} {params.line:q} --out {output:q} --error-file {log:q}"


rule report:
    input:
        lambda wildcards: checked(wildcards.model),
        lambda wildcards: of_plans(wildcards.model, "trace.json"),
        lambda wildcards: frontiers_of(wildcards.model),
        lambda wildcards: reported(wildcards.model),
    output:
        page=f"{MODEL}/report.html",
        done=f"{MODEL}/report.done",
    log:
        f"{MODEL}/logs/report.txt",
    params:
        folder=subpath(output.page, parent=True),
        points=lambda wildcards: points_of(wildcards.model),
        shown=plans_only,
        code=code_of("report"),
    message:
        "{wildcards.model}: writing the report"
    shell:
        "python -m tightfit report --model-dir {params.folder:q} {params.shown:q} --out {output.page:q}"
        " --points {params.points:q} --done {output.done:q} --error-file {log:q}"


rule index:
    input:
        expand(f"{MODEL}/report.done", model=PAGED),
        expand(f"{MODEL}/report.html", model=PAGED),
        [path for model in SETTINGS.models for path in compared(model)],
        lambda wildcards: [*FURTHER_PAGES, *FURTHER_PLANS],
    output:
        page=f"{SETTINGS.results}/index.html",
        done=touch(DONE),
    log:
        f"{SETTINGS.results}/logs/index.txt",
    params:
        folder=subpath(output.page, parent=True),
        models=list(SETTINGS.models),
        shown=plans_only,
        planned=further_plans,
        code=code_of("report"),
    message:
        "writing the index"
    shell:
        "python -m tightfit report --index {params.folder:q} --models {params.models:q} {params.shown:q}"
        " --planned {params.planned:q} --out {output.page:q} --error-file {log:q}"


# What failed has a page too, without the mark that it is done: the next run tries again.
onerror:
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "tightfit",
                "report",
                "--failed",
                SETTINGS.results,
            ),
            *(
                "--out",
                f"{SETTINGS.results}/index.html",
                *plans_only(None),
                "--planned",
            ),
            *(
                path
                for name in SETTINGS.models
                for path in of_plans(name, "plan.json")
            ),
            *further_plans(None),
        ]
    )
