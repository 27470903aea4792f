# The way of the data, from config.yaml to reports. Each line is a chapter in workflow/rules.


include: "workflow/rules/common.smk"
include: "workflow/rules/common_options.smk"
include: "workflow/rules/kernel_options.smk"
include: "workflow/rules/trace.smk"  # factory -> graph.arrow
include: "workflow/rules/fuse.smk"  # eager.arrow -> graph.arrow, where kernels are fused
include: "workflow/rules/profile.smk"  # graph.arrow -> costs.arrow
include: "workflow/rules/partition.smk"  # graph, costs -> blocks.arrow
include: "workflow/rules/solve.smk"  # blocks.arrow -> options.arrow
include: "workflow/rules/combine.smk"  # options.arrow -> frontier.arrow -> schedule.arrow, plan.json
include: "workflow/rules/step_options.smk"
include: "workflow/rules/generate.smk"  # graph, schedule, plan -> module/
include: "workflow/rules/validate.smk"  # module/ -> measurement.arrow
include: "workflow/rules/chain_common.smk"
include: "workflow/rules/chain.smk"  # chain.arrow, machine -> sequence.arrow, streams.arrow or pattern.arrow, plan.json
include: "workflow/rules/pipeline_common.smk"
include: "workflow/rules/pipeline.smk"  # blocks.arrow -> plan/, ranks/, module/ of several devices
include: "workflow/rules/optimizer_offload.smk"  # a whole step: graph, costs, updates -> plan.json
include: "workflow/rules/report.smk"  # all of it -> report.html, index.html


rule all:
    default_target: True
    input:
        DONE,
        kept_files,


# While jobs wait, a limit on jobs a second has Snakemake look for jobs to start once more a second
# for each that has ended: after hundreds of them that takes a third of a core. The usual limit, of
# 100, goes; another one is somebody's wish.
onstart:
    limit = workflow.scheduling_settings.max_jobs_per_timespan
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None
