# One frontier a strategy, whatever the budgets are.
rule frontier:
    input:
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
        blocks=f"{MODEL}/blocks.arrow",
        options=options_for,
        hierarchy=clusters_for,
        machine=measured_link,
    output:
        f"{STRATEGY}/frontier.arrow",
    log:
        f"{STRATEGY}/logs/frontier.txt",
    threads: share_of_cores
    params:
        hierarchy=given_clusters,
        machine=linked_machine,
        link=described_link,
        engine=SETTINGS.engine_of_steps,
        code=code_of("combine"),
    message:
        "{wildcards.model}: planning with {wildcards.strategy}"
    shell:
        "python -m stages combine --graph {input.graph:q} --costs {input.costs:q}"
        " --blocks {input.blocks:q} --options {input.options:q} --strategy {wildcards.strategy}"
        " {params.hierarchy:q} {params.machine:q} --engine {params.engine:q} --workers {threads} --out {output:q} --error-file {log:q}"


rule choose:
    input:
        frontier=f"{STRATEGY}/frontier.arrow",
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
    output:
        sequence=f"{POINT}/sequence.arrow",
        schedule=f"{POINT}/schedule.arrow",
        plan=f"{POINT}/plan.json",
    log:
        f"{POINT}/logs/choose.txt",
    wildcard_constraints:
        model=one_of(EAGER),
    params:
        rival=given_rival,
        budget=lambda wildcards: SETTINGS.budget(wildcards.model, wildcards.budget),
        folder=subpath(output.plan, parent=True),
        engine=SETTINGS.engine_of_steps,
        code=code_of("combine"),
    message:
        "{wildcards.model}: choosing {wildcards.strategy} for {params.budget}"
    shell:
        "python -m stages choose --frontier {input.frontier:q} --graph {input.graph:q}"
        " --costs {input.costs:q} {params.rival:q} --budget {params.budget:q}"
        " --engine {params.engine:q} --out {params.folder:q} --error-file {log:q}"


# Where kernels are fused, the plan is one of eager's where these are better or alone fit.
use rule choose as choose_kernels with:
    input:
        frontier=f"{STRATEGY}/frontier.arrow",
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
        eager_frontier=f"{RIVAL}/{{strategy}}/frontier.arrow",
        eager_graph=f"{RIVAL}/graph.arrow",
        eager_costs=f"{RIVAL}/costs.arrow",
    output:
        sequence=f"{POINT}/sequence.arrow",
        schedule=f"{POINT}/schedule.arrow",
        plan=f"{POINT}/plan.json",
        eager_sequence=f"{RIVAL}/{{strategy}}/{{budget}}/sequence.arrow",
        eager_schedule=f"{RIVAL}/{{strategy}}/{{budget}}/schedule.arrow",
        eager_plan=f"{RIVAL}/{{strategy}}/{{budget}}/plan.json",
    wildcard_constraints:
        model=one_of(FUSED),
