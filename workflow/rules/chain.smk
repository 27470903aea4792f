# Chains of blocks, from files or of a model: planned and simulated, and not run.
rule model_chain:
    input:
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
    output:
        f"{MODEL}/chain.arrow",
    log:
        f"{MODEL}/logs/chain.txt",
    priority: 1
    params:
        code=code_of("partition"),
    message:
        "{wildcards.model}: writing the chain of its blocks"
    shell:
        "python -m tightfit partition --graph {input.graph:q} --costs {input.costs:q}"
        " --chain {output:q} --error-file {log:q}"


rule chain:
    input:
        files=chain_files,
        options=chain_options,
    output:
        plan=f"{CHAIN_PLAN}/plan.json",
        sequence=f"{CHAIN_PLAN}/sequence.arrow",
    log:
        f"{CHAIN_PLAN}/logs/chain.txt",
    wildcard_constraints:
        strategy=one_of(WITHOUT_LINK),
    priority: 1
    params:
        files=given_files,
        settings=given_settings,
        budget=lambda wildcards: chain_request(wildcards).budget,
        machine=chain_machine,
        digests=chain_file_digests,
        folder=subpath(output.plan, parent=True),
        code=code_of("combine"),
    message:
        "chains/{wildcards.chain}: planning with {wildcards.strategy} for {params.budget}"
    shell:
        "python -m tightfit chain {params.files:q} {params.settings:q} --out {params.folder:q}"
        " --error-file {log:q}"


# The same with a link to an offload target, whose streams are kept.
use rule chain as chain_offload with:
    output:
        plan=f"{CHAIN_PLAN}/plan.json",
        sequence=f"{CHAIN_PLAN}/sequence.arrow",
        streams=f"{CHAIN_PLAN}/streams.arrow",
    wildcard_constraints:
        strategy=one_of(OFFLOADERS),


# The same over several devices. The pattern has no rows if the chain does not fit them, the sequence
# none unless stages recompute.
use rule chain as chain_pipeline with:
    output:
        plan=f"{CHAIN_PLAN}/plan.json",
        pattern=f"{CHAIN_PLAN}/pattern.arrow",
        sequence=f"{CHAIN_PLAN}/sequence.arrow",
    wildcard_constraints:
        strategy=one_of(ALLOCATORS),


rule chain_report:
    input:
        plans=lambda wildcards: plans_of_chain(chain_of(wildcards)),
        files=lambda wildcards: chain_plan_files(chain_of(wildcards)),
    output:
        f"{CHAIN}/report.html",
    log:
        f"{CHAIN}/logs/report.txt",
    params:
        code=code_of("report"),
    message:
        "chains/{wildcards.chain}: writing the report"
    shell:
        "python -m tightfit report --chain-plans {input.plans:q} --out {output:q} --error-file {log:q}"
