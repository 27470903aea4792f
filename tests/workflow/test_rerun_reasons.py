"""What a run says it will do, from the reasons that Snakemake gives."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/progress"))

from snakemake_logger_plugin_tightfit import LogHandler
from snakemake_logger_plugin_tightfit.rerun_reasons import WorkflowJob as Job
from snakemake_logger_plugin_tightfit.rerun_reasons import describe_jobs

from tightfit.schemas.lineage import lineage_path
from tightfit.schemas.package_manifest import PackageManifest, manifest_bytes

CODE = "code of generate 0123456789abcdef"
SOURCE = "source 0123456789abcdef"
FOLLOWS = "Input files updated by another job: results/a/graph.arrow"
MODEL = {"model": "a"}
PIPELINE = {**MODEL, "allocator": "madpipe"}
POINT = {**MODEL, "strategy": "rotor", "budget": "80pct"}


def params(now: str) -> str:
    return (
        "Params have changed since last execution: Union of exclusive params before and now "
        f"across all output: before: 'x' now: {now!r} "
    )


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (Job("trace", MODEL, "Missing output files: a/graph.arrow"), "it is new"),
        (Job("trace", MODEL, params(SOURCE)), "its source, or what that imports, was edited"),
        (Job("trace", MODEL, params("8")), "its settings in the configuration changed"),
        (
            Job("trace", MODEL, params("8"), changed_settings=("pairs changed from 5 to 8",)),
            "pairs changed from 5 to 8",
        ),
        (
            Job("trace", MODEL, params("8") + "; Updated input files: b.arrow"),
            "its settings in the configuration changed; newer than what was made of it: b.arrow",
        ),
        (
            Job("chain", {"chain": "a"}, params(f"chain machine {'0' * 64}")),
            "the description of its machine was edited",
        ),
        (
            Job("chain", {"chain": "a"}, params(f"chain file {'0' * 64}")),
            "its file was replaced",
        ),
        (
            Job("profile", MODEL, params("'--threads', '1'")),
            "the number of threads changed, which --cores sets",
        ),
        (
            Job("profile", MODEL, params(f"machine {'0' * 64}")),
            "the device is described, or its description was edited",
        ),
        (
            Job("allocate", PIPELINE, params(f"pipeline on machine {'0' * 64}")),
            "the description of its pipeline's machine was edited",
        ),
        (Job("allocate", PIPELINE, "Missing output files: p"), "the pipeline by madpipe is new"),
        (Job("generate", POINT, params(CODE)), "the code of the stage generate changed"),
        *(
            (Job(rule, POINT, "Missing output files: f"), "the strategy rotor is new")
            for rule in ("own_plans", "frontier")
        ),
        *(
            (Job(rule, POINT, "Missing output files: p"), "the budget 80% is new for rotor")
            for rule in ("select", "select_kernels")
        ),
        (
            Job("optimizer_offload", {**MODEL, "budget": "min"}, "Missing output files: p"),
            "the budget min is new",
        ),
        (Job("solve", MODEL, "Missing output files: o, x"), "missing: o, x"),
        (
            Job("solve", MODEL, "Updated input files: b.arrow"),
            "newer than what was made of it: b.arrow",
        ),
        (Job("validate", POINT, "Incomplete output files: m"), "a run before was interrupted"),
        (
            Job("report", MODEL, "Set of input files has changed since last execution"),
            "a plan is new or was removed",
        ),
        (
            Job("generate", POINT, "Set of input files has changed since last execution"),
            "its settings in the configuration changed",
        ),
        (Job("solve", MODEL, "Code has changed since last execution"), "the rule solve of the"),
    ],
)
def test_each_reason_has_its_words(job: Job, cause: str) -> None:
    lines = describe_jobs([job])
    assert lines[0] in ("To do: 1 step", "To do: up to 1 step")
    assert f"1 step: {cause}" in lines[1]


def test_what_failed_before_is_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "trace.txt"
    log.write_text("trace: no such luck\n")
    job = Job("trace", MODEL, "Missing output files: a/graph.arrow", (str(log),))
    assert describe_jobs([job])[1] == "  a, 1 step: it failed before and is tried again"


def test_a_step_with_an_empty_log_went_well(tmp_path: Path) -> None:
    log = tmp_path / "allocate.txt"
    log.write_text("")
    job = Job("solve", MODEL, "Missing output files: o", (str(log),))
    assert describe_jobs([job])[1] == "  a, 1 step: missing: o"


def test_what_was_lost_is_named_and_may_change_nothing(tmp_path: Path) -> None:
    module, plan = tmp_path / "module", tmp_path / "plan.json"
    module.mkdir()
    files = {f"part_{number}.py": "0" * 64 for number in range(9)}
    (module / "made_from.json").write_bytes(
        manifest_bytes(PackageManifest("0" * 64, "0" * 64, "0" * 64, files))
    )
    for made in (module, plan):
        lineage_path(made).parent.mkdir(exist_ok=True)
        lineage_path(made).write_text('{"stage": "combine"}')
    jobs = [
        Job("generate", POINT, "Forced execution", outputs=(str(module),)),
        Job("select", POINT, f"Missing output files: {plan}", outputs=(str(plan),)),
        Job("profile", {"model": "b"}, "Forced execution"),
    ]
    named = ", ".join(str(module / f"part_{number}.py") for number in range(8))
    assert describe_jobs(jobs) == [
        "To do: up to 3 steps",
        f"  a, up to 2 steps: lost: {named} and 2 more",
        "  b, 1 step: it is to be measured again",
    ]


def test_the_frontier_of_a_strategy_that_was_planned_is_new_and_not_the_strategy(
    tmp_path: Path,
) -> None:
    job = Job("frontier", POINT, "Missing output files: f", (), (str(tmp_path / "frontier.arrow"),))
    assert describe_jobs([job])[1] == "  a, 1 step: the strategy rotor is new"
    (tmp_path / "candidates.arrow").touch()
    said = "  a, 1 step: the plans of rotor for all budgets are new"
    assert describe_jobs([job])[1] == said


def test_nothing_to_do_says_nothing() -> None:
    assert describe_jobs([]) == []
    assert describe_jobs([Job("all", {}, FOLLOWS)]) == []


def test_what_follows_is_counted_and_not_a_cause_of_its_own() -> None:
    jobs = [
        Job("trace", MODEL, "Missing output files: results/a/graph.arrow"),
        Job("partition", MODEL, f"Missing output files: results/a/blocks.arrow; {FOLLOWS}"),
        Job("select", POINT, f"Missing output files: results/a/x; {FOLLOWS}"),
        Job("index", {}, FOLLOWS),
        Job("all", {}, FOLLOWS),
    ]
    follows = "  the run, 1 step: its inputs are made again"
    assert describe_jobs(jobs) == ["To do: 4 steps", "  a, 3 steps: it is new", follows]


def test_a_chain_of_a_new_model_is_new() -> None:
    reason = f"Missing output files: results/chains/c/x; {FOLLOWS}"
    job = Job("chain", {"chain": "c"}, reason)
    assert describe_jobs([job])[1] == "  chains/c, 1 step: it is new"


def test_a_chain_of_files_is_new_with_its_plans(tmp_path: Path) -> None:
    wildcards = {"chain": "c", "strategy": "rotor", "budget": "25pct"}
    plan = Job("chain", wildcards, "Missing output files: plan.json")
    page = Job("chain_report", {"chain": "c"}, f"Missing output files: report.html; {FOLLOWS}")
    assert describe_jobs([plan, page])[1] == "  chains/c, 2 steps: it is new"
    (tmp_path / "report.html").touch()
    there = Job("chain_report", {"chain": "c"}, FOLLOWS, (), (str(tmp_path / "report.html"),))
    said = "  chains/c, 2 steps: the budget 25% is new for rotor"
    assert describe_jobs([plan, there])[1] == said


def test_an_edited_model_may_need_less() -> None:
    jobs = [Job("trace", MODEL, params(SOURCE)), Job("partition", MODEL, FOLLOWS)]
    assert describe_jobs(jobs)[0] == "To do: up to 2 steps"
    assert describe_jobs(jobs)[1].startswith("  a, up to 2 steps: ")


def test_a_model_with_two_causes_tells_both() -> None:
    other = {**POINT, "budget": "60pct"}
    jobs = [
        Job("select", POINT, "Missing output files: x"),
        Job("select", other, "Missing output files: y"),
    ]
    assert describe_jobs(jobs)[1] == (
        "  a, 2 steps: the budget 80% is new for rotor; the budget 60% is new for rotor"
    )


def logging_to(folder: Path) -> tuple[LogHandler, Path]:
    """What tells of steps, and the log of one that failed."""
    handler = LogHandler.__new__(LogHandler)
    logging.Handler.__init__(handler)
    handler.settings = None
    handler.__post_init__()
    log = folder / "trace.txt"
    log.write_text("trace: no such luck\n")
    return handler, log


def test_the_end_names_each_step_that_failed_and_was_not_done_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler, log = logging_to(tmp_path)

    def tell(event: LogEvent | None, **fields: Any) -> None:
        handler.emit(logging.makeLogRecord({"event": event, "levelno": logging.ERROR, **fields}))

    tell(None, msg="WorkflowError:\nAt least one job did not complete successfully.")
    assert "WorkflowError" in capsys.readouterr().err
    for number, name in enumerate(("a", "b", "c")):
        tell(LogEvent.JOB_INFO, jobid=number, rule_msg=f"{name}: tracing")
        logs = [str(log)] if number else [str(tmp_path / "none.txt")]
        tell(LogEvent.JOB_ERROR, jobid=number, rule_name="trace", log=logs)
    tell(LogEvent.JOB_FINISHED, job_id=2)
    capsys.readouterr()
    tell(None, msg="Exiting because a job execution failed. Look above for error messages")
    tell(None, msg="WorkflowError:\nAt least one job did not complete successfully.")
    handler.close()
    assert capsys.readouterr().err.splitlines() == [
        "Failed: a: tracing (it has left no log)",
        f"Failed: b: tracing ({log} says why)",
    ]


def test_a_step_that_was_interrupted_has_not_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler, log = logging_to(tmp_path)
    for number, name in enumerate(("none", "trace")):
        data = {"jobid": number, "rule_name": name, "log": [str(tmp_path / f"{name}.txt")]}
        handler.emit(logging.makeLogRecord({"event": LogEvent.JOB_ERROR, **data}))
    said = "Terminating processes on user request, this might take some time."
    handler.emit(logging.makeLogRecord({"levelno": logging.INFO, "msg": said}))
    handler.close()
    assert capsys.readouterr().err == f"Failed: trace ({log} says why)\n"


def test_steps_are_counted_as_they_were_told() -> None:
    """The target of the workflow is no step."""
    handler = LogHandler.__new__(LogHandler)
    handler.settings = None
    handler.__post_init__()

    def line(event: LogEvent, **fields: Any) -> str:
        return handler.line(logging.makeLogRecord({"event": event, **fields}))

    assert line(LogEvent.RUN_INFO, stats={"trace": 2, "all": 1, "total": 3}) == ""
    assert line(LogEvent.JOB_INFO, rule_msg="a: tracing") == "[0/2] a: tracing"
    assert line(LogEvent.PROGRESS, done=1, total=3) == ""
    assert line(LogEvent.JOB_INFO, rule_msg="b: tracing") == "[1/2] b: tracing"


@pytest.mark.parametrize(
    ("message", "budget", "expected"),
    [
        ("a: choosing keep_all for none", "none", "choosing keep_all"),
        ("a: running keep_all none beside", "none", "running keep_all beside"),
        ("a: choosing keep_all for 50%", "50pct", "choosing keep_all for 50%"),
    ],
)
def test_a_strategy_without_a_budget_is_named_alone(
    message: str, budget: str, expected: str
) -> None:
    handler = LogHandler.__new__(LogHandler)
    handler.settings = None
    handler.__post_init__()
    wildcards = {"strategy": "keep_all", "budget": budget}
    record = {"event": LogEvent.JOB_INFO, "rule_msg": message, "wildcards": wildcards}
    assert handler.line(logging.makeLogRecord(record)) == f"[0/0] a: {expected}"


@pytest.mark.parametrize(
    ("rule", "plan", "output"),
    [
        ("generate", "plan.json", "module"),
        ("validate", "plan.json", "measurement.arrow"),
        ("split", "plan/plan.json", "ranks/pipeline.json"),
        ("validate_pipeline", "plan/plan.json", "measurement.json"),
    ],
)
def test_a_job_of_an_infeasible_plan_says_so(
    rule: str, plan: str, output: str, tmp_path: Path
) -> None:
    handler = LogHandler.__new__(LogHandler)
    handler.settings = None
    handler.__post_init__()
    path = tmp_path / plan
    path.parent.mkdir(exist_ok=True)
    said = []
    for status in ("optimal", "infeasible"):
        path.write_text(json.dumps({"status": status}))
        record: dict[str, Any] = {"event": LogEvent.JOB_INFO, "rule_name": rule}
        record |= {"rule_msg": "a: running", "output": [str(tmp_path / output)]}
        said.append(handler.line(logging.makeLogRecord(record)))
    assert said == ["[0/0] a: running", "[0/0] a: running (infeasible: there is nothing to run)"]
