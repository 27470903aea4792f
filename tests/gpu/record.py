"""The record of a run on a machine with a GPU: one JSON file to go on from, one Markdown file.

It needs nothing but Python, so that a machine that lacks a package can say so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gpu.steps import COMPILER, FUSED, NAMES, SHARES, TIGHT

DONE, FAILED, LACKS, LATE, WAITS = "done", "failed", "lacks", "too long", "waits"

Result = dict[str, Any]

HEADS = (
    *("way", "peak MB", "predicted", "reserved MB", "predicted", "on new inputs", "predicted"),
    *("context MB", "ms", "/ eager", "gradients"),
    *("ms as CUDA graphs", "reserved MB", "gradients"),
)
WHOLE = (
    *("AdamW", "AdamW at a third", "AdamW, parameters away"),
    "AdamW of torchao on the host",
)
"""Ways to make whole steps."""


class Record:
    """What is known of each step, by its name, kept in FOLDER/gpu.json after each change; both
    files are also put into the folder `reports` where there is one."""

    def __init__(self, folder: Path, about: dict[str, Any], reports: Path | None = None) -> None:
        """Goes on with the record of a folder where there is one. Raises SystemExit where that was
        made with other settings."""
        self.folder = folder
        self.folders = [folder, *([] if reports is None else [reports])]
        self.data: dict[str, Any] = {"about": about, "machines": [], "steps": {}}
        path = folder / "gpu.json"
        if path.exists():
            self.data = json.loads(path.read_text())
            if self.data["about"] != about:
                raise SystemExit(f"{path} is of {self.data['about']}, not of {about}: use --out")

    @property
    def steps(self) -> dict[str, Result]:
        """What is known of the steps."""
        return self.data["steps"]

    def on(self, machine: dict[str, Any]) -> None:
        """Notes the machine of a run, once."""
        if machine not in self.data["machines"]:
            self.data["machines"].append(machine)
        self.write()

    def note(self, name: str, found: Result) -> None:
        """Notes what came of a step."""
        self.steps[name] = {**found, "machine": len(self.data["machines"]) - 1}
        self.write()

    def is_done(self, name: str) -> bool:
        """Whether a step ended well."""
        return self.steps.get(name, {}).get("state") == DONE

    def write(self) -> None:
        """Writes both files, whole or not at all."""
        texts = (json.dumps(self.data, indent=1) + "\n", markdown(self.data))
        for number, path in enumerate(self.files):
            path.parent.mkdir(parents=True, exist_ok=True)
            made = path.with_name(f".{path.name}")
            made.write_text(texts[number % 2])
            made.replace(path)

    @property
    def files(self) -> list[Path]:
        """The files that are written."""
        return [folder / name for folder in self.folders for name in ("gpu.json", "gpu.md")]


def markdown(data: dict[str, Any]) -> str:
    """The record for people."""
    steps: dict[str, Result] = data["steps"]
    lines = ["# On a GPU", ""]
    for number, machine in enumerate(data["machines"]):
        told = ", ".join(f"{key} {value}" for key, value in machine.items())
        lines += [f"Machine {number}: {told}.", ""]
    for name in NAMES:
        rows = _rows(name, steps)
        if rows:
            lines += [f"## {name}, {data['about']['size']}", "", f"| {' | '.join(HEADS)} |"]
            lines += ["|---" * len(HEADS) + "|"]
            lines += [*rows, ""]
    lines += _whole_steps(steps)
    lines += ["## Steps", "", "| step | | seconds | |", "|---|---|---|---|"]
    for name, found in steps.items():
        said = str(found.get("said", "")).replace("|", "/").replace("\n", " ")
        lines.append(f"| {name} | {found['state']} | {found.get('seconds', 0):.0f} | {said} |")
    return "\n".join(lines) + "\n"


def _rows(name: str, steps: dict[str, Result]) -> list[str]:
    """A row for each way to train a model that was measured. A peak is that of the step, without
    parameters and inputs; reserved is all that the process took, on the same inputs and on new ones
    for each step."""
    eager = steps.get(f"{name}: eager", {}).get("result")
    plans = [f"at a {share}" for share in SHARES]
    linked = [f"at a {share} with the link" for share in TIGHT]
    ways = [(name, way) for way in ("eager", "checkpoint", *plans, *linked)]
    ways += [(f"{name}{FUSED}", way) for way in plans]
    ways += [(name, f"compile {budget}") for budget in COMPILER]
    rows = []
    for model, way in ways:
        result = steps.get(f"{model}: {way}", {}).get("result")
        if not result:
            continue
        told = way if model == name else f"fused, {way}"
        if "peak" not in result:
            said = result.get("infeasible") or "does not fit"
            rows.append(f"| {told} | {said} {'| ' * (len(HEADS) - 2)}|")
            continue
        plan = steps.get(f"{model}: plan {way}", {}).get("result") or {}
        gpu = plan.get("gpu") or {}
        cells = [told, _mb(result["peak"]), _foretold(plan.get("peak"), result["peak"])]
        for what in ("reserved", "renewed"):
            cells += [_mb(result[what]), _foretold(gpu.get(what), result[what])]
        cells.append(_mb(result["context"]))
        cells += [f"{result['seconds'] * 1e3:.1f}", *_beside(result, eager)]
        cells += _as_graphs(steps.get(f"{model}: {way} as CUDA graphs", {}), result)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _whole_steps(steps: dict[str, Result]) -> list[str]:
    """Steps with AdamW, plain and with their states in the other memory: the peak of a step above
    parameters and states of the device, and these."""
    rows = []
    for name in NAMES:
        plain = steps.get(f"{name}: AdamW", {}).get("result")
        for way in WHOLE:
            result = steps.get(f"{name}: {way}", {}).get("result")
            if not result:
                continue
            if "peak" not in result:
                said = result.get("infeasible") or "does not fit"
                rows.append(f"| {name}: {way} | {said} | | | | |")
                continue
            ratio, equal = "", "not compared"
            if plain and "peak" in plain:
                ratio = f"{result['seconds'] / plain['seconds']:.3f}"
                equal = "equal" if result["parameters"] == plain["parameters"] else "other bits"
            sizes = f"{_mb(result['peak'])} | {_mb(result['there'])}"
            rows.append(f"| {name}: {way} | {sizes} | {1e3 * result['seconds']:.1f} | {ratio} | "
                        f"{equal} |")  # fmt: skip
    head = "| whole steps | peak MB | always there MB | ms | / plain | parameters |"
    return ["## Whole steps", "", head, "|---" * 6 + "|", *rows, ""] if rows else []


def _as_graphs(step: Result, plain: Result) -> list[str]:
    """A plan that is launched as CUDA graphs: its time, what it takes of the device, and its
    gradients beside those of the same plan without."""
    found = step.get("result")
    if not found:
        return ["", "", str(step.get("said", "")).replace("|", "/")]
    if "peak" not in found:
        return ["does not fit", "", ""]
    gradients = _beside(found, plain)[1]
    return [f"{found['seconds'] * 1e3:.1f}", _mb(found["reserved"]), gradients]


def _beside(result: Result, eager: Result | None) -> list[str]:
    """The time and the gradients of a way, relative to eager's."""
    if not eager or "peak" not in eager:
        return ["", "not compared"]
    mine, other = result["gradients"], eager["gradients"]
    ratio = f"{result['seconds'] / eager['seconds']:.3f}"
    return [ratio, "equal" if mine["bits"] == other["bits"] else f"{apart(mine, other):.1e} apart"]


def apart(mine: Result, other: Result) -> float:
    """How far two sets of gradients are apart, relative to the norm of the second: an estimate. The
    root mean square of the products of a difference with random vectors is its norm."""
    pairs = list(zip(mine["products"], other["products"], strict=True))
    mean = sum((one - two) ** 2 for one, two in pairs) / len(pairs)
    return float(mean**0.5 / other["norm"]) if other["norm"] else 0.0


def _foretold(size: int | None, measured: int | None) -> str:
    """A prediction, and by how much of it more or less was measured."""
    if not size or measured is None:
        return _mb(size)
    return f"{_mb(size)} ({measured / size - 1:+.1%})"


def _mb(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"
