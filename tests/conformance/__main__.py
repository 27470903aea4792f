"""`make conformance`: plans the field's suites for `min` and for 50 %, and compares each case with
eager bit for bit; 1 where one is wrong or ends in a raw error.

`equal` has the bits of eager and no more bytes than predicted, `unsupported` is refused in a
sentence of tightfit, `wrong` has other bits or more bytes, `raw` is any other error, a crash or a
hang. What eager itself raises for, or gives otherwise when it is repeated, is `skipped`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.conformance.judge import BAD
from tests.conformance.suite import Selection, Suite
from tests.conformance.summary import describe_run, unequal_groups, write_results
from tests.conformance.workers import CASE_SECONDS, CaseResult, Job, WorkerPool

REPORTED = 50
"""After so many cases a line says how far the run is."""
WRITTEN = 10.0
"""Seconds between two times that results are written."""
OUTPUT = Path("build/conformance.json")


def all_suites() -> dict[str, Suite]:
    """The suites by name, in the order in which they are run."""
    _import_torchvision()
    from tests.conformance.diffusers_suite import DIFFUSERS_SUITES
    from tests.conformance.module_suite import MODULE_SUITES
    from tests.conformance.operator_suites import OPERATOR_SUITES
    from tests.conformance.transformers_suite import TRANSFORMERS_SUITES
    from tests.conformance.vision_suites import VISION_SUITES

    opinfo, *databases = OPERATOR_SUITES
    suites = (
        opinfo,
        *MODULE_SUITES,
        *databases,
        *TRANSFORMERS_SUITES,
        *VISION_SUITES,
        *DIFFUSERS_SUITES,
    )
    return {suite.name: suite for suite in suites}


def _import_torchvision() -> None:
    """Imports torchvision, on which timm, diffusers and parts of transformers depend, where its
    compiled operators are for another build of PyTorch, too: detection then raises when it runs."""
    if not importlib.util.find_spec("torchvision"):
        return
    try:
        import torchvision
    except RuntimeError:
        for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
        import torchvision  # noqa: F401


def main() -> int:
    """Returns 1 where a case is wrong or raw."""
    suites = all_suites()
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(suites)}")
    parser.add_argument("--share", default="1/1", help="N/M: the N-th of M parts of all cases")
    parser.add_argument("--sample", type=int, help="so many cases of each group, at random")
    parser.add_argument("--seed", type=int, default=0, help="decides sample and contents")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", default="", help="groups in whose name this pattern is found")
    parser.add_argument("--again", type=Path, help="groups with a case that was not equal, of this")
    parser.add_argument("--seconds", type=float, default=CASE_SECONDS, help="limit of a case")
    parser.add_argument(
        "--output", type=Path, default=Path("build/conformance.json"), help="results"
    )
    options = parser.parse_args()
    if unknown := set(options.suites) - set(suites):
        parser.error(f"unknown suites {', '.join(sorted(unknown))}: choose of {', '.join(suites)}")
    chosen = [suites[name] for name in options.suites or suites]
    settings: dict[str, object] = {key: str(value) for key, value in vars(options).items()}
    results = run_suites(chosen, options, settings)
    print(describe_run(results))
    write_results(options.output, results, settings)
    return 1 if any(result.judgment.kind in BAD for result in results) else 0


def run_suites(
    suites: list[Suite], options: argparse.Namespace, settings: dict[str, object]
) -> list[CaseResult]:
    """Runs suites, and prints what is wrong or raw as it is found; results are written now
    and then. An interruption ends the run with the results so far."""
    first, _, total = options.share.partition("/")
    selection = Selection(int(first) - 1, int(total), options.sample, options.seed)
    jobs, started, written = [], time.monotonic(), 0.0
    again = unequal_groups(options.again) if options.again else None
    for suite in suites:
        if missing := suite.missing():
            print(f"{suite.name}: skipped, {missing}")
            continue
        groups = [group for group in suite.groups() if re.search(options.only, group.name)]
        jobs += [
            Job(suite.name, group, selection)
            for group in groups
            if again is None or (suite.name, group.name) in again
        ]
    results: list[CaseResult] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        pool = WorkerPool(jobs, Path(folder) / "store", options.jobs, options.seconds)
        for result in pool.results():
            results.append(result)
            if time.monotonic() - written > WRITTEN:
                write_results(options.output, results, settings)
                written = time.monotonic()
            if len(results) % REPORTED == 0:
                print(f"{len(results)} cases in {time.monotonic() - started:.0f} s", flush=True)
            if result.judgment.kind in BAD:
                where = f"{result.suite} | {result.group} | {result.case}"
                print(f"{result.judgment.kind}: {where} | {result.judgment.detail}", flush=True)
    print(f"{len(results)} cases in {time.monotonic() - started:.0f} s\n")
    return results


if __name__ == "__main__":
    sys.exit(main())
