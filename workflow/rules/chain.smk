# Chains of blocks, from files or of a model: planned and simulated, and not run.

from tightfit.schemas.config_chains import CHAINS_FOLDER
from tightfit.util.strategies import ALLOCATORS, CHAIN_STRATEGIES, OFFLOADERS

CHAIN = f"{SETTINGS.results}/{CHAINS_FOLDER}/{{chain}}"
CHAIN_PLAN = f"{CHAIN}/{{strategy}}/{{budget}}"
WITHOUT_LINK = [
    name for name in CHAIN_STRATEGIES if name not in {*ALLOCATORS, *OFFLOADERS}
]
FURTHER_PAGES += expand(f"{CHAIN}/report.html", chain=SETTINGS.chains)
FURTHER_PLANS += [
    f"{SETTINGS.results}/{request.folder}/plan.json"
    for chain in SETTINGS.chains.values()
    for request in chain.requests()
]


wildcard_constraints:
    chain=one_of(SETTINGS.chains),


def chain_of(wildcards):
    """A chain as the configuration has it."""
    return SETTINGS.chains[wildcards.chain]


def chain_files(wildcards):
    """The files of a chain: those that are named, or that of the blocks of its model."""
    chain = chain_of(wildcards)
    return chain.files or expand(f"{MODEL}/chain.arrow", model=chain.model)


def chain_options(wildcards):
    """The options of a chain's blocks, where a strategy takes them."""
    chain = chain_of(wildcards)
    if not chain.needs_options(wildcards.strategy):
        return []
    return chain.options or expand(f"{MODEL}/options.arrow", model=chain.model)


def given_files(wildcards, input):
    """Names what is planned as options of a stage."""
    files = [("--chain", path) for path in input.files]
    files += [("--options", path) for path in input.options]
    return [word for option in files for word in option]


def given_settings(wildcards):
    """Says how it is planned as options of a stage. Snakemake does not see what changes in a
    function of files."""
    return chain_of(wildcards).command_options(chain_request(wildcards))


def chain_request(wildcards):
    """The plan of a chain that a folder is for."""
    asked = (wildcards.strategy, wildcards.budget)
    return next(
        request
        for request in chain_of(wildcards).requests()
        if (request.strategy, request.directory) == asked
    )


def chain_machine(wildcards):
    """The digest of the description of the machine that a strategy is given, "" for none."""
    from tightfit.schemas.store import file_digest

    machine = chain_of(wildcards).machine_of(wildcards.strategy)
    return "" if machine is None else f"machine {file_digest(machine)}"


def chain_plans(wildcards):
    """The plans of a chain."""
    return [
        f"{SETTINGS.results}/{request.folder}/plan.json"
        for request in chain_of(wildcards).requests()
    ]


def chain_sequences(wildcards):
    """What the plans of a chain do: their sequences, and the streams of those with a link."""
    plans = [
        (request.strategy, f"{SETTINGS.results}/{request.folder}")
        for request in chain_of(wildcards).requests()
    ]
    sequences = [
        f"{plan}/sequence.arrow" for name, plan in plans if name not in ALLOCATORS
    ]
    return sequences + [
        f"{plan}/streams.arrow" for name, plan in plans if name in OFFLOADERS
    ]


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


# The same over several devices. There is pattern.arrow beside where the chain fits them, and
# sequence.arrow where stages compute again.
use rule chain as chain_pipeline with:
    output:
        plan=f"{CHAIN_PLAN}/plan.json",
    wildcard_constraints:
        strategy=one_of(ALLOCATORS),


rule chain_report:
    input:
        plans=chain_plans,
        sequences=chain_sequences,
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
