"""The one command, tried here on tiny models and the CPU: every step, going on, and its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from tests.gpu import __main__ as command
from tests.gpu import contestant, prepare
from tests.gpu.bundle_size import MOST, sizes
from tests.gpu.compare_costs import compared
from tests.gpu.estimates import contestant as seconds_of
from tests.gpu.model_sizes import GRAPHS, PLAN, SIZES, WAYS
from tests.gpu.models import llama
from tests.gpu.optimizer_steps import measured
from tests.gpu.record import DONE, FAILED, LACKS, LATE, WAITS, Record, apart, markdown
from tests.gpu.steps import ROOT, Asked, Step, steps
from tests.stages.runtime.fake_cuda_graphs import stand_in
from tightfit.__main__ import main
from tightfit.schemas.costs import Costs
from tightfit.schemas.machine import MACHINES
from tightfit.stages.profile.roofline import roofline
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.load import load_package

ABOUT = {"device": "cpu", "size": "tiny"}


def shell(
    folder: Path, *words: str, python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    given = ("--out", str(folder), "--device", "cpu", "--size", "tiny")
    waiting = {"OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"]}
    return subprocess.run(
        ["bash", str(ROOT / "tests" / "gpu" / "run.sh"), *given, *words],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python), "HOME": str(folder), **waiting},
        check=False,
    )


def test_packages_can_be_brought_along_as_wheels(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "brought-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought.py", "FOUND = 'it is here'\n")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$2" = zipfile ] && exec {sys.executable} "$@"\n'
        f"exec {sys.executable} -c 'import brought, tests.gpu; print(brought.FOUND)'\n"
    )
    python.chmod(0o755)
    for _ in range(2):
        done = subprocess.run(
            ["bash", str(ROOT / "tests" / "gpu" / "run.sh")],
            capture_output=True,
            text=True,
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHON": str(python),
                "WHEELS": str(wheels),
                "SITE": str(tmp_path / "site"),
            },
            check=True,
        )
        assert done.stdout == "it is here\n"
    assert [path.name for path in wheels.iterdir()] == ["brought-1-py3-none-any.whl"]


def test_where_there_is_no_such_device_a_sentence_says_so(tmp_path: Path) -> None:
    done = shell(tmp_path, "--device", "cuda:99")
    assert done.returncode == 1
    assert done.stderr.strip() == "the device 'cuda:99' is not on this machine"


def run_here(commands: Sequence[Sequence[object]], log: IO[str]) -> bool:
    """Runs commands of tightfit in this process, where the search is brief."""
    return all(main([*map(str, words)]) == 0 for _, _, _, *words in commands)


def planned(folder: Path, size: str = "tiny") -> Asked:
    """What the steps are for, with the plans of one model."""
    asked = Asked(folder, "cpu", size, folder / "plans")
    case = prepare.Case("gpt2", "tiny", {"half": "50%"})
    assert prepare.prepared(asked.plans, case, "cpu", "rotor", 1)
    return asked


@pytest.mark.usefixtures("brief_search")
def test_one_model_from_trace_to_table(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs: Path,
    request: pytest.FixtureRequest,
) -> None:
    asks = [str(programs / "python"), "-c", "import torch; print(torch.get_num_threads())"]
    threads = int(subprocess.run(asks, capture_output=True, text=True, check=True).stdout)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # a plan holds for as many as its contestants have
    request.addfinalizer(lambda: torch.set_num_threads(before))
    monkeypatch.setattr(prepare, "ran", run_here)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(command, "machine", lambda device: {"device": device})
    assert command.run(planned(tmp_path), 20, "3 gpt2") == 0, (tmp_path / "gpu.md").read_text()
    steps = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    eager, plan = (steps[f"3 gpt2: {way}"]["result"] for way in ("eager", "plan half"))
    assert plan["gradients"] == eager["gradients"]
    assert plan["peak"] == plan["predicted"]["peak"] < eager["peak"]
    assert steps["3 gpt2: compile 0.0"]["result"]["compiling"] > 0
    text = (tmp_path / "gpu.md").read_text()
    assert "| gpt2: plan half |" in text and "| equal |" in text


@pytest.mark.long
def test_a_plan_as_cuda_graphs_gives_the_gradients_of_plain_calls(tmp_path: Path) -> None:
    """On doubles of CUDA graphs, of a model without dropout: a plan that draws again refuses
    graphs."""
    case = prepare.Case("llama", "tiny", {"half": "50%"})
    assert prepare.prepared(tmp_path, case, "cpu", "rotor", 1)
    module = tmp_path / case.folder / "half" / "module"
    plain, graphs = launched("llama", module)
    assert graphs["gradients"] == plain["gradients"]


def launched(name: str, module: Path) -> list[dict[str, Any]]:
    """What is measured of a plan that runs as plain calls and as CUDA graphs, doubles of these."""
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        wrapping = sys.modules[f"{load_package(module).__name__}.runtime.planned_module"]
        patch.setattr(wrapping, "cuda_graph_obstacle", lambda step, interface: "")
        return [
            contestant.measured(name, "tiny", way, "cpu", 1.0, str(module), 2)
            for way in (PLAN, GRAPHS)
        ]


@pytest.mark.long
def test_the_whole_run_on_tiny_models(tmp_path: Path) -> None:
    """All plans, then all steps, as on a machine with a GPU."""
    out = tmp_path / "report"
    words = ["--device", "cpu", "--size", "tiny"]
    making = ["-m", "tests.gpu.prepare", *words, "--strategy", "rotor", "--jobs", "1"]
    subprocess.run([sys.executable, *making, "--out", str(out / "plans")], cwd=ROOT, check=True)
    done = shell(out, "--minutes", "60")
    record = json.loads((out / "gpu.json").read_text())
    failed = {name: each for name, each in record["steps"].items() if each["state"] != DONE}
    assert not failed and done.returncode == 0, done.stdout + done.stderr
    again = shell(out)
    assert "begins" not in again.stdout


@pytest.mark.parametrize("way", [way for way in WAYS if way not in (PLAN, GRAPHS, "compile")])
def test_each_way_to_train_gives_the_gradients_of_eager(way: str) -> None:
    eager = contestant.measured("llama3", "tiny", "eager", "cpu", 1.0, "", 1)
    found = contestant.measured("llama3", "tiny", way, "cpu", 1.0, "", 1)
    assert found["gradients"] == eager["gradients"]
    if way in ("full", "selective"):
        assert found["peak"] < eager["peak"]


def test_selective_checkpointing_keeps_more_than_full() -> None:
    full, selective = (
        contestant.measured("llama", "tiny", way, "cpu", 1.0, "", 1)["peak"]
        for way in ("full", "selective")
    )
    assert selective > full


def test_every_step_of_each_part_is_there(tmp_path: Path) -> None:
    names = [step.name for step in steps(Asked(tmp_path, "cuda", "full", tmp_path / "plans"))]
    assert [name[0] for name in names] == sorted(name[0] for name in names)
    assert {
        "1 gpt2: bits, bytes",
        "1 llama: graphs most",
        "2 llama: compile 0.05",
        "3 gpt2: compile 0.0",
        "4 llama3: plan selective",
        "4 llama3: graphs full",
        "5 resnet: plan fifth",
        "6 gpt2: saved on the host",
        "7 llama: AdamW of torchao on the host",
        "8 gpt2: costs",
    } <= set(names)


def test_two_calls_are_likely_to_have_room_for_the_parts(tmp_path: Path) -> None:
    """Eight minutes for parts 1 to 4, and five for what comes before measured costs."""
    found = steps(Asked(tmp_path, "cuda", "full", tmp_path / "plans"))
    seconds = {part: 0.0 for part in "12345678"}
    for step in found:
        assert step.estimate > 0
        seconds[step.name[0]] += step.estimate / step.width
    assert sum(seconds[part] for part in "1234") < 8 * 60
    assert sum(seconds[part] for part in "567") < 5 * 60
    assert seconds_of("llama3", "full", "full", 5, False) > seconds_of(
        "llama3", "full", "eager", 5, False
    )


def test_every_plan_that_is_run_is_prepared(tmp_path: Path) -> None:
    for size in ("full", "tiny"):
        asked = Asked(tmp_path, "cuda", size, tmp_path / "plans")
        made = {
            asked.plans / case.folder / name / "module"
            for case in prepare.cases(size)
            for name in case.budgets
        }
        read = {path for step in steps(asked) for path in step.reads if path.name == "module"}
        assert read == made
        assert all(case.name in SIZES for case in prepare.cases(size))


def test_what_travels_is_counted(tmp_path: Path) -> None:
    """The checkout leaves room for what goes with it."""
    assert sizes()["checkout"] < MOST // 4
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "one.whl").write_bytes(bytes(100))
    (tmp_path / ".gitignore").write_text("wheels/\n")
    assert sizes(tmp_path) == {"checkout": 8, "wheels": 100, "gpu-report/plans": 0}


def test_costs_that_are_described_far_off_are_listed() -> None:
    """Those first that take most of the measured step."""
    graph = trace(check_factory_result(llama(), "llama"), "llama")
    described = roofline(graph, MACHINES / "h100.json")
    rows = [replace(row, seconds=1.0) for row in described.rows.values()]
    described = Costs(rows, described.device)
    slow = graph.ops[1]
    key = described.of(graph, slow).key
    measured = [replace(row, seconds=2.0 if row.key == key else 1.1) for row in rows]
    found = compared(graph, Costs(measured, described.device), described)
    assert [row["target"] for row in found["off"]] == [slow.target]


def doing(name: str, code: str, **fields: Any) -> Step:
    return Step(name, [[sys.executable, "-c", code]], fields.pop("limit", 60), (), **fields)


def outcomes(monkeypatch: pytest.MonkeyPatch, folder: Path, *listed: Step) -> dict[str, Any]:
    """What a run makes of some steps, on a machine that is described."""
    monkeypatch.setattr(command, "steps", lambda asked: list(listed))
    monkeypatch.setattr(command, "machine", lambda device: {"device": device})
    command.run(Asked(folder, "cpu", "tiny", folder / "plans"), 20)
    return Record(folder, ABOUT).steps


def test_what_comes_of_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = tmp_path / "made" / "result.json"
    writes = f"import pathlib; pathlib.Path({str(result)!r}).write_text('[1]')"
    found = outcomes(
        monkeypatch,
        tmp_path,
        doing("good", writes, result=result),
        doing("bad", "raise SystemExit('it is broken')"),
        doing("slow", "import time; time.sleep(60)", limit=0.5),
        doing("after", "", after=["bad"]),
        Step("poor", [["false"]], 5, ("no_such_package",)),
    )
    states = {name: step["state"] for name, step in found.items()}
    assert states == {"good": DONE, "bad": FAILED, "slow": LATE, "after": WAITS, "poor": LACKS}
    assert found["good"]["result"] == [1]
    assert found["bad"]["said"] == "it is broken"
    assert found["poor"]["said"] == "no_such_package"


def test_steps_of_a_group_run_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each waits until the other has begun; a step after them waits for its files."""
    one, other = tmp_path / "one", tmp_path / "other"
    meets = (
        "import pathlib, time\n"
        "pathlib.Path({!r}).touch()\n"
        "while not pathlib.Path({!r}).exists(): time.sleep(0.01)"
    )
    found = outcomes(
        monkeypatch,
        tmp_path,
        doing("early", "", reads=[one]),
        doing("first", meets.format(str(one), str(other)), group="both", width=2),
        doing("second", meets.format(str(other), str(one)), group="both", width=2),
        doing("late", "", reads=[one]),
    )
    assert {name: step["state"] for name, step in found.items()} == {
        "early": WAITS,
        "first": DONE,
        "second": DONE,
        "late": DONE,
    }


def test_the_traceback_of_a_failure_is_kept_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "def deep():\n    raise ValueError('it is broken')\ndeep()"
    found = outcomes(monkeypatch, tmp_path, doing("bad", code))["bad"]
    assert found["state"] == FAILED and found["said"] == "ValueError: it is broken"
    assert found["log"].startswith("Traceback") and "in deep" in found["log"]


def test_it_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = tmp_path / "count"
    adds = f"open({str(count)!r}, 'a').write('x')"
    first = doing("first", adds)
    ended = doing("second", "import time; time.sleep(60)", limit=0.5)
    assert outcomes(monkeypatch, tmp_path, first, ended)["second"]["state"] == LATE
    found = outcomes(monkeypatch, tmp_path, first, doing("second", adds))
    assert found["second"]["state"] == DONE
    assert count.read_text() == "xx"


def test_what_is_ended_takes_along_what_it_has_started(tmp_path: Path) -> None:
    """As when the time of a machine is up: nothing goes on beside the next run."""
    code = (
        "import os, pathlib, sys, time\n"
        "from tests.gpu import __main__ as command\n"
        "from tests.gpu.steps import Step\n"
        f"pid = pathlib.Path({str(tmp_path / 'pid')!r})\n"
        "slow = f'import os, pathlib, time; p = pathlib.Path({str(pid)!r});'\n"
        "slow += 'p.write_text(str(os.getpid())); time.sleep(60)'\n"
        "command.steps = lambda asked: [Step('slow', [[sys.executable, '-c', slow]], 50, ())]\n"
        f"sys.argv = ['run', '--out', {str(tmp_path)!r}, '--device', 'cpu', '--size', 'tiny']\n"
        "command.main()\n"
    )
    running = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.terminate()
    assert running.wait(20) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_both_files_land_where_reports_are(tmp_path: Path) -> None:
    record = Record(tmp_path / "out", ABOUT, tmp_path / "reports")
    record.note("one", {"state": DONE})
    for name in ("gpu.json", "gpu.md"):
        text = (tmp_path / "out" / name).read_text()
        assert text and text == (tmp_path / "reports" / name).read_text()


def test_a_record_of_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    Record(tmp_path, ABOUT).on({"PyTorch": "2.11"})
    with pytest.raises(SystemExit, match=r"is of .*tiny.*, not of .*full.*: use --out"):
        Record(tmp_path, ABOUT | {"size": "full"})


def test_whole_steps_are_told_beside_plain_ones() -> None:
    plain = {"peak": 5_000_000, "there": 9_000_000, "seconds": 0.1, "parameters": "a"}
    ours = {"peak": 2_000_000, "there": 3_000_000, "seconds": 0.12, "parameters": "a"}
    steps: dict[str, Any] = {
        "7 llama: AdamW": {"state": DONE, "result": plain},
        "7 llama: AdamW at a third": {"state": DONE, "result": ours},
        "7 llama: AdamW of torchao": {"state": DONE, "result": ours | {"parameters": "b"}},
    }
    text = markdown({"about": ABOUT, "machines": [], "steps": steps})
    assert "| llama: AdamW | 5.0 | 9.0 | 100.0 | 1.000 | equal |" in text
    assert "| llama: AdamW at a third | 2.0 | 3.0 | 120.0 | 1.200 | equal |" in text
    assert "| llama: AdamW of torchao | 2.0 | 3.0 | 120.0 | 1.200 | other bits |" in text
    missing = {"state": DONE, "result": {"infeasible": "torchao is not installed"}}
    text = markdown({"about": ABOUT, "machines": [], "steps": {"7 llama: torchao": missing}})
    assert "llama: torchao: torchao is not installed" in text


def test_torchaos_optimizer_is_a_peer_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A double of it steps as plain AdamW does; without it a sentence says so."""
    given = ("gpt2", "tiny", "cpu", "", 1, None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    assert measured(*given, peer=True) == {"infeasible": "torchao is not installed"}

    class Double(torch.optim.AdamW):
        def __init__(
            self, params: Any, optimizer_class: type, *, offload_gradients: bool, **settings: Any
        ) -> None:
            assert optimizer_class is torch.optim.AdamW and offload_gradients
            super().__init__(params, **settings)

    module = types.ModuleType("torchao.optim")
    monkeypatch.setattr(module, "CPUOffloadOptimizer", Double, raising=False)
    monkeypatch.setitem(sys.modules, "torchao", types.ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.optim", module)
    plain, peer = measured(*given), measured(*given, peer=True)
    assert peer["parameters"] == plain["parameters"] and peer["there"] < plain["there"]


def test_what_does_not_fit_and_what_differs_is_told() -> None:
    def result(seconds: float, bits: str, product: float, **more: Any) -> dict[str, Any]:
        gradients = {"bits": bits, "norm": 2.0, "products": [product] * 8}
        found: dict[str, Any] = {"peak": 3_000_000, "seconds": seconds, "gradients": gradients}
        found |= dict.fromkeys(("requested", "reserved", "renewed", "context"))
        return {"state": DONE, "result": found | {"samples": 100} | more}

    mine, other = result(0.2, "a", 1.0), result(0.3, "b", 1.5)
    assert apart(mine["result"]["gradients"], other["result"]["gradients"]) == 0.25
    steps = {
        "2 llama: eager": mine,
        "2 llama: compile 0.5": other,
        "2 llama: plan half": result(
            0.2, "a", 1.0, reserved=4_000_000, predicted={"gpu": {"reserved": 2_000_000}}
        ),
        "2 llama: full": {"state": DONE, "result": {"out_of_memory": True}},
        "2 llama: plan fifth": {"state": DONE, "result": {"infeasible": "20% is too little"}},
    }
    text = markdown({"about": ABOUT, "machines": [], "steps": steps})
    assert "| 300.0 | 1.500 | 333 | 2.5e-01 apart |" in text
    assert "| 4.0 | 2.0 (+100.0%) |" in text and "| 1.000 | 500 | equal |" in text
    assert "llama: full: does not fit" in text
    assert "llama: plan fifth: 20% is too little" in text
