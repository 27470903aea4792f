# What the rules for chains share: folders, files and settings.

from tightfit.schemas.config_chains import CHAINS_FOLDER
from tightfit.util.strategies import ALLOCATORS, CHAIN_STRATEGIES, OFFLOADERS

CHAIN = f"{SETTINGS.results}/{CHAINS_FOLDER}/{{chain}}"
CHAIN_PLAN = f"{CHAIN}/{{strategy}}/{{budget}}"
WITHOUT_LINK = [
    name for name in CHAIN_STRATEGIES if name not in {*ALLOCATORS, *OFFLOADERS}
]
FURTHER_PAGES += expand(f"{CHAIN}/report.html", chain=SETTINGS.chains)


def plans_of_chain(chain):
    """The plans of a chain."""
    return [
        f"{SETTINGS.results}/{request.folder}/plan.json" for request in chain.requests()
    ]


for each in SETTINGS.chains.values():
    FURTHER_PLANS += plans_of_chain(each)


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
    return (
        [chain.options]
        if chain.options
        else expand(f"{MODEL}/options.arrow", model=chain.model)
    )


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
    return "" if machine is None else f"chain machine {file_digest(machine)}"


def chain_file_digests(wildcards):
    """The digests of the files that a configuration names, which may be replaced by older ones."""
    from tightfit.schemas.store import file_digest

    chain = chain_of(wildcards)
    options = [chain.options] if chain.options and chain_options(wildcards) else []
    return [f"chain file {file_digest(path)}" for path in [*chain.files, *options]]


def chain_plan_files(chain):
    """What the plans of a chain do: their sequences, the streams of those with a link, and the
    patterns of pipelines."""
    files = []
    for request in chain.requests():
        plan = f"{SETTINGS.results}/{request.folder}"
        files.append(f"{plan}/sequence.arrow")
        files += [f"{plan}/streams.arrow"] if request.strategy in OFFLOADERS else []
        files += [f"{plan}/pattern.arrow"] if request.strategy in ALLOCATORS else []
    return files
