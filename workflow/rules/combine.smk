# What searches runs compiled code, which is made once, meanwhile models are traced. Without it the
# first job that searches makes it.
rule compile_search:
    output:
        touch(COMPILED),
    log:
        f"{SETTINGS.results}/logs/search.txt",
    priority: len(SETTINGS.models) + 1
    params:
        code=code_of("combine"),
    message:
        "compiling the search, where that was not done"
    shell:
        "python -m tightfit.stages.combine.local_search.precompile 2>{log:q}"


# The strategy's own plans, from which those for the budgets that are asked are searched.
rule own_plans:
    input:
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
        blocks=f"{MODEL}/blocks.arrow",
        options=options_for,
        hierarchy=clusters_for,
        machine=measured_link,
        search=compiled_search,
    output:
        f"{STRATEGY}/candidates.arrow",
    log:
        f"{STRATEGY}/logs/candidates.txt",
    priority: before_frontiers
    params:
        hierarchy=given_clusters,
        machine=linked_machine,
        link=described_link,
        engine=of_model("step_engine"),
        slots=of_model("slots"),
        effort="--no-local-search",
        shown=[],
        code=code_of("combine"),
    message:
        "{wildcards.model}: planning with {wildcards.strategy}"
    shell:
        "python -m tightfit combine --graph {input.graph:q} --costs {input.costs:q}"
        " --blocks {input.blocks:q} --options {input.options:q} --strategy {wildcards.strategy}"
        " {params.hierarchy:q} {params.machine:q} --solver {params.engine:q} --slots {params.slots} {params.effort:q} {params.shown:q} --out {output:q} --error-file {log:q}"


# The plans for all budgets, one frontier a strategy: reports show it, those of baselines are taken.
use rule own_plans as frontier with:
    output:
        f"{STRATEGY}/frontier.arrow",
    log:
        f"{STRATEGY}/logs/frontier.txt",
    priority: 0
    threads: share_of_cores
    params:
        hierarchy=given_clusters,
        machine=linked_machine,
        link=described_link,
        engine=of_model("step_engine"),
        slots=of_model("slots"),
        effort=lambda wildcards, threads: ["--workers", str(threads)],
        shown=budgets_shown,
        span=span_of,
        code=code_of("combine"),
    message:
        "{wildcards.model}: planning with {wildcards.strategy}{params.span}"


# Where own plans lead to none that is near to its bound the whole frontier is made here, too.
rule select:
    input:
        frontier=plans_of,
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
        blocks=f"{MODEL}/blocks.arrow",
        options=options_for,
        hierarchy=clusters_for,
        machine=measured_link,
        joint=joint_plans,
    output:
        sequence=f"{POINT}/sequence.arrow",
        schedule=f"{POINT}/schedule.arrow",
        plan=f"{POINT}/plan.json",
    log:
        f"{POINT}/logs/select.txt",
    wildcard_constraints:
        model=one_of(EAGER),
    priority: before_frontiers
    params:
        hierarchy=given_clusters,
        machine=linked_machine,
        link=described_link,
        rival=given_rival,
        required=required_rival,
        joint=given_joint,
        budget=lambda wildcards: SETTINGS.budget(wildcards.model, wildcards.budget),
        folder=subpath(output.plan, parent=True),
        engine=of_model("step_engine"),
        slots=of_model("slots"),
        code=code_of("combine"),
    message:
        "{wildcards.model}: choosing {wildcards.strategy} for {params.budget}"
    shell:
        "python -m tightfit select --frontier {input.frontier:q} --graph {input.graph:q}"
        " --costs {input.costs:q} --blocks {input.blocks:q} --options {input.options:q}"
        " {params.hierarchy:q} {params.machine:q} {params.rival:q} {params.required:q} {params.joint:q}"
        " --budget {params.budget:q}"
        " --solver {params.engine:q} --slots {params.slots} --out {params.folder:q} --error-file {log:q}"


# Where kernels are fused, the plan is one of eager's where these are better or alone fit.
use rule select as select_kernels with:
    input:
        frontier=plans_of,
        graph=f"{MODEL}/graph.arrow",
        costs=f"{MODEL}/costs.arrow",
        blocks=f"{MODEL}/blocks.arrow",
        options=options_for,
        hierarchy=clusters_for,
        machine=measured_link,
        joint=joint_plans,
        eager_frontier=lambda wildcards: plans_of(wildcards, RIVAL),
        eager_graph=f"{RIVAL}/graph.arrow",
        eager_costs=f"{RIVAL}/costs.arrow",
        eager_blocks=f"{RIVAL}/blocks.arrow",
        eager_options=lambda wildcards: options_for(wildcards, RIVAL),
        eager_hierarchy=lambda wildcards: clusters_for(wildcards, RIVAL),
    output:
        sequence=f"{POINT}/sequence.arrow",
        schedule=f"{POINT}/schedule.arrow",
        plan=f"{POINT}/plan.json",
        eager_sequence=f"{RIVAL}/{{strategy}}/{{budget}}/sequence.arrow",
        eager_schedule=f"{RIVAL}/{{strategy}}/{{budget}}/schedule.arrow",
        eager_plan=f"{RIVAL}/{{strategy}}/{{budget}}/plan.json",
    wildcard_constraints:
        model=one_of(FUSED),
