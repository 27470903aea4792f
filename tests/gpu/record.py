"""The record of a run on a machine with a GPU: one JSON file to go on from, one Markdown file.

It needs nothing but Python, so that a machine that lacks a package can say so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DONE, FAILED, LACKS, LATE, WAITS = "done", "failed", "lacks", "too long", "waits"

Result = dict[str, Any]

HEADS = (
    *("way", "peak MB", "predicted", "requested MB", "predicted", "reserved MB", "predicted"),
    *(
        "on new inputs",
        "asked",
        "context MB",
        "ms",
        "/ eager",
        "samples or tokens / s",
        "gradients",
    ),
)
PARTS = {
    "1": "It runs: small models, planned elsewhere",
    "2": "Budgets: TinyLlama, 4 x 2048 tokens, bfloat16",
    "3": "Gradients: GPT2-large with dropout",
    "4": "Speed: eight layers of Llama 3 8B, 1 x 8192 tokens, bfloat16",
    "5": "Time at half and a fifth of the activations",
    "6": "Activations on the host",
    "7": "Whole steps with AdamW",
    "8": "Measured costs, tests",
}
"""What the names of steps begin with."""


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
    for part, title in PARTS.items():
        own = {name[2:]: found for name, found in steps.items() if name.startswith(f"{part} ")}
        if own:
            lines += [f"## {part}. {title}", "", *_tables(own), *_states(own), ""]
    return "\n".join(lines) + "\n"


def _tables(steps: dict[str, Result]) -> list[str]:
    """The tables of what was measured in a part."""
    results = {name: found["result"] for name, found in steps.items() if found.get("result")}
    trained = {
        name: each for name, each in results.items() if "gradients" in each or "plans" in each
    }
    whole = {name: each for name, each in results.items() if "parameters" in each}
    lines = []
    if trained:
        lines += [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
        for name, each in trained.items():
            eager = results.get(f"{name.partition(':')[0]}: eager")
            lines.append(f"| {name} | {' | '.join(_row(each, eager))} |")
        lines.append("")
    if whole:
        lines += [
            "| whole step | peak MB | always there MB | ms | / plain | parameters |",
            "|---" * 6 + "|",
        ]
        plain = next((each for name, each in whole.items() if name.endswith(": AdamW")), None)
        lines += [
            f"| {name} | {' | '.join(_whole(each, plain))} |" for name, each in whole.items()
        ] + [""]
    for name, each in results.items():
        if name not in trained and name not in whole:
            said = each.get("sentence") or each.get("infeasible") or each.get("told")
            said = said or ("does not fit" if "out_of_memory" in each else "")
            lines += [f"{name}: {said}", ""] if said else []
    return lines


def _states(steps: dict[str, Result]) -> list[str]:
    """A row for each step: how long it took, of how long it was likely to take, and what it said
    last."""
    lines = ["| step | | seconds | estimate | |", "|---|---|---|---|---|"]
    for name, found in steps.items():
        said = str(found.get("said", "")).replace("|", "/").replace("\n", " ")
        seconds, estimate = found.get("seconds", 0), found.get("estimate", 0)
        lines.append(f"| {name} | {found['state']} | {seconds:.0f} | {estimate:.0f} | {said} |")
    return lines


def _row(result: Result, eager: Result | None) -> list[str]:
    """What was measured of a way to train, each beside what was predicted. A peak is that of the
    step, without parameters and inputs; requested and reserved is all that the process took, on the
    same inputs and on new ones for each step, without CUDA's context."""
    plan = result.get("predicted") or {}
    gpu = plan.get("gpu") or {}
    cells = [_mb(result["peak"]), _foretold(plan.get("peak"), result["peak"])]
    for what in ("requested", "reserved"):
        cells += [_mb(result[what]), _foretold(gpu.get(what), result[what])]
    cells += [_mb(result["renewed"]), _mb(plan.get("budget_bytes")), _mb(result["context"])]
    pace = f"{result['samples'] / result['seconds']:.0f}"
    return [*cells, f"{result['seconds'] * 1e3:.1f}", *_beside(result, eager, pace)]


def _beside(result: Result, eager: Result | None, pace: str) -> list[str]:
    """The time and the gradients of a way, relative to eager's; equal by their bits where these
    were compared."""
    if not eager or "gradients" not in eager:
        return ["", pace, "not compared"]
    mine, other = result["gradients"], eager["gradients"]
    ratio = f"{result['seconds'] / eager['seconds']:.3f}"
    if mine["bits"] and mine["bits"] == other["bits"]:
        return [ratio, pace, "equal"]
    return [ratio, pace, f"{apart(mine, other):.1e} apart"]


def _whole(result: Result, plain: Result | None) -> list[str]:
    """The peak of a whole step above parameters and states of the device, and these."""
    ratio, equal = "", "not compared"
    if plain:
        ratio = f"{result['seconds'] / plain['seconds']:.3f}"
        equal = "equal" if result["parameters"] == plain["parameters"] else "other bits"
    return [
        _mb(result["peak"]),
        _mb(result["there"]),
        f"{1e3 * result['seconds']:.1f}",
        ratio,
        equal,
    ]


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
