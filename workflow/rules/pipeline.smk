# A model over several devices: blocks -> chain.arrow -> plan/ -> ranks/ -> module/ -> measurement.json.


rule allocate:
    input:
        chain=f"{MODEL}/chain.arrow",
        options=stage_options,
    output:
        ALLOCATION_FILES,
        plan=whole_folder(f"{PIPELINE}/plan", "plan.json"),
    log:
        f"{PIPELINE}/logs/allocate.txt",
    priority: before_frontiers
    params:
        machine=lambda wildcards: model_of(wildcards).pipeline.machine,
        described=described_pipeline,
        settings=allocation_settings,
        options=given_stage_options,
        folder=lambda wildcards, output: folder_of(output.plan),
        code=code_of("combine"),
    message:
        "{wildcards.model}: allocating layers with {wildcards.allocator}"
    shell:
        "python -m tightfit chain --chain {input.chain:q} --machine {params.machine:q}"
        " --strategy {wildcards.allocator} {params.settings:q} {params.options:q} --out {params.folder:q}"
        " --error-file {log:q}"


# What the plan's pattern is made of counts, too: it lies beside plan.json.
rule split:
    input:
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
        blocks=f"{MODEL}/blocks.arrow",
        plan=rules.allocate.output.plan,
        options=stage_options,
    output:
        ranks=whole_folder(f"{PIPELINE}/ranks", "pipeline.json"),
    log:
        f"{PIPELINE}/logs/split.txt",
    priority: before_frontiers
    params:
        described=described_pipeline,
        settings=allocation_settings,
        options=given_stage_options,
        microbatches=lambda wildcards: model_of(wildcards).pipeline.microbatches,
        plan=lambda wildcards, input: folder_of(input.plan),
        folder=lambda wildcards, output: folder_of(output.ranks),
        code=code_of("combine"),
    message:
        "{wildcards.model}: splitting the step over the ranks of {wildcards.allocator}"
    shell:
        "python -m tightfit pipeline --graph {input.graph:q} --costs {input.costs:q}"
        " --blocks {input.blocks:q} --plan {params.plan:q} {params.options:q}"
        " --microbatches {params.microbatches} --out {params.folder:q} --error-file {log:q}"


rule generate_pipeline:
    input:
        graph=f"{MODEL}/graph.arrow",
        plan=rules.allocate.output.plan,
        ranks=rules.split.output.ranks,
    output:
        directory(f"{PIPELINE}/module"),
    log:
        f"{PIPELINE}/logs/generate.txt",
    priority: before_frontiers
    params:
        operators=operators,
        operators_code=operators_code(),
        search_path=search_path(),
        plan=lambda wildcards, input: folder_of(input.plan),
        ranks=lambda wildcards, input: folder_of(input.ranks),
        code=code_of("generate"),
    message:
        "{wildcards.model}: writing the programs of the ranks of {wildcards.allocator}"
    shell:
        "python -m tightfit generate --graph {input.graph:q} --pipeline {params.ranks:q}"
        " --plan {params.plan:q}/plan.json {params.operators:q} {params.search_path:q} --out {output:q}"
        " --error-file {log:q}"


# Measures: each rank has as many threads as the costs were measured with. Nothing asks for it where
# the devices are not here.
rule validate_pipeline:
    input:
        graph=f"{MODEL}/graph.arrow",
        plan=rules.allocate.output.plan,
        ranks=rules.split.output.ranks,
        module=rules.generate_pipeline.output,
    output:
        f"{PIPELINE}/measurement.json",
    log:
        f"{PIPELINE}/logs/validate.txt",
    priority: before_frontiers
    threads: workflow.cores
    resources:
        **MEASURING,
    params:
        source=source,
        operators=operators,
        operators_code=operators_code(),
        threads=threads_of_cpu("profile"),
        plan=lambda wildcards, input: folder_of(input.plan),
        ranks=lambda wildcards, input: folder_of(input.ranks),
        allocator=training_allocator,
        code=code_of("validate"),
    message:
        "{wildcards.model}: running the ranks of {wildcards.allocator} against one process"
    shell:
        "{params.allocator} python -m tightfit validate {params.source:q} {params.operators:q} --graph {input.graph:q}"
        " --pipeline {params.ranks:q} --plan {params.plan:q}/plan.json --module {input.module:q} {params.threads:q}"
        " --out {output:q} --error-file {log:q}"


rule report_pipeline:
    input:
        plan=rules.allocate.output.plan,
        ranks=rules.split.output.ranks,
        module=rules.generate_pipeline.output,
        measurement=measured_pipeline,
    output:
        page=f"{PIPELINE}/report.html",
        trace=f"{PIPELINE}/trace.json",
    log:
        f"{PIPELINE}/logs/report.txt",
    params:
        measurement=given_measurement,
        plan=lambda wildcards, input: folder_of(input.plan),
        ranks=lambda wildcards, input: folder_of(input.ranks),
        code=code_of("report"),
    message:
        "{wildcards.model}: writing the report of {wildcards.allocator}"
    shell:
        "python -m tightfit report --pipeline {params.ranks:q} --plan {params.plan:q}"
        " {params.measurement:q} --trace {output.trace:q} --out {output.page:q} --error-file {log:q}"
