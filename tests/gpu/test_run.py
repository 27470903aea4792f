"""The one command, tried here on tiny models and the CPU: every step, going on, and its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.validate.load import load_package
from tests.gpu import __main__ as command
from tests.gpu import contestant
from tests.gpu.record import DONE, FAILED, LACKS, LATE, WAITS, Record, apart, markdown
from tests.gpu.steps import NAMES, ROOT, Asked, Step, steps
from tests.gpu.whole import measured
from tests.stages.generate.captures import stand_in

ABOUT = {"device": "cpu", "size": "tiny", "strategy": "rotor"}


def shell(
    folder: Path, *words: str, python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    given = ("--out", str(folder), "--device", "cpu", "--size", "tiny", "--strategy", "rotor")
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
            env={"PATH": "/usr/bin:/bin", "PYTHON": str(python), "WHEELS": str(wheels)},
            check=True,
        )
        assert done.stdout == "it is here\n"


def test_where_there_is_no_such_device_a_sentence_says_so(tmp_path: Path) -> None:
    done = shell(tmp_path, "--device", "cuda:99")
    assert done.returncode == 1
    assert done.stderr.strip() == "the device 'cuda:99' is not on this machine"


@pytest.mark.long
def test_one_model_from_trace_to_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    python = programs / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    first = shell(tmp_path, "--only", "gpt2", "--minutes", "0", python=python)
    assert first.returncode == 2, first.stdout + first.stderr
    [machine] = json.loads((tmp_path / "gpu.json").read_text())["machines"]
    monkeypatch.setattr(command, "machine", lambda device: machine)
    asked = Asked(tmp_path, "cpu", "tiny", "rotor")
    assert command.run(asked, 20, "gpt2") == 2
    assert command.run(asked, 20, "link") == 2
    assert command.run(asked, 20, "plans") == 1, "two of three models are not there"
    done = shell(tmp_path, "--only", "gpt2", python=python)
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert {step["state"] for name, step in record["steps"].items() if "gpt2" in name} == {DONE}, (
        done.stdout + done.stderr + (tmp_path / "gpu.md").read_text()
    )
    results = {name: found.get("result") for name, found in record["steps"].items()}
    eager = results["gpt2: eager"]
    for share in ("half", "third", "fifth"):
        plan, measured = results[f"gpt2: plan at a {share}"], results[f"gpt2: at a {share}"]
        if plan["verdict"] == "infeasible":
            assert share != "half" and measured == {"infeasible": plan["sentence"]}
            continue
        assert measured["gradients"]["bits"] == eager["gradients"]["bits"]
        assert measured["peak"] == plan["peak"] <= eager["peak"]
    plain, whole = results["gpt2: AdamW"], results["gpt2: AdamW at a third"]
    if "infeasible" not in whole:
        assert whole["parameters"] == plain["parameters"] and whole["there"] < plain["there"]
    text = (tmp_path / "gpu.md").read_text()
    for row in ("| eager |", "| checkpoint |", "| at a fifth |", "| compile 0.5 |",
                "| at a fifth with the link |", "| gpt2: AdamW at a third |"):  # fmt: skip
        assert row in text
    plain, graphs = launched("gpt2", tmp_path / "gpt2" / "half" / "module")
    assert graphs["gradients"] == plain["gradients"]
    again = shell(tmp_path, "--only", "gpt2", python=python)
    assert "gpt2" not in again.stdout.replace(str(tmp_path), "")


def launched(name: str, module: Path) -> list[dict[str, Any]]:
    """What is measured of a plan that runs as plain calls and as CUDA graphs, doubles of these."""
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        wrapping = sys.modules[f"{load_package(module).__name__}.wrap"]
        patch.setattr(wrapping, "refusal", lambda step, interface: "")
        return [
            contestant.measured(name, "tiny", way, "cpu", 1.0, str(module), 2)
            for way in (contestant.PLAN, contestant.GRAPHS)
        ]


@pytest.mark.long
def test_the_tests_and_the_battery_are_steps(tmp_path: Path) -> None:
    """Without a GPU the tests are skipped, which is no failure."""
    asked = Asked(tmp_path, "cpu", "tiny")
    wanted = "tests tests/stages/replay/test_allocator.py"
    assert command.run(asked, 20, only=wanted) == 0
    assert command.run(asked, 20, only="battery") == 0
    found = Record(tmp_path, {"device": "cpu", "size": "tiny", "strategy": "rockmate"}).steps
    assert "skipped" in found[wanted]["said"]
    assert "equal" in found["battery"]["said"]


def test_every_file_with_tests_for_a_gpu_is_a_step(tmp_path: Path) -> None:
    names = {step.name for step in steps(Asked(tmp_path, "cuda", "full"))}
    for file in ("gpu/test_on_gpu", "stages/device/test_operators", "stages/generate/test_cuda"):
        assert f"tests tests/{file}.py" in names
    assert {f"{name}{kernels}: at a {share}" for name in ("gpt2", "llama", "resnet")
            for kernels in ("", "-fused")
            for share in ("half", "third", "fifth")} <= names  # fmt: skip
    graphs = {name for name in names if name.endswith("as CUDA graphs")}
    assert len(graphs) == 18 and "gpt2-fused: at a half as CUDA graphs" in graphs
    assert not any("CUDA graphs" in step.name for step in steps(Asked(tmp_path, "cpu", "tiny")))


def test_plans_of_fused_kernels_are_measured_beside_the_compiler(tmp_path: Path) -> None:
    found = {step.name: step for step in steps(Asked(tmp_path, "cuda", "full"))}
    traced, fused = found["gpt2-fused: trace"].commands
    assert "tests.gpu.models:gpt2" in traced and "--channels-last" in traced
    assert fused[3] == "fuse" and traced[traced.index("--out") + 1] in fused
    [measured] = found["gpt2-fused: at a half"].commands
    assert measured[measured.index("--model") + 1] == "gpt2"
    assert str(tmp_path / "gpt2-fused" / "half" / "module") in measured
    assert not any("fused" in step.name for step in steps(Asked(tmp_path, "cpu", "tiny")))


def doing(name: str, code: str, **fields: Any) -> Step:
    return Step(name, [[sys.executable, "-c", code]], fields.pop("limit", 60), (), **fields)


def outcomes(monkeypatch: pytest.MonkeyPatch, folder: Path, *listed: Step) -> dict[str, Any]:
    """What a run makes of some steps."""
    monkeypatch.setattr(command, "steps", lambda asked: list(listed))
    command.run(Asked(folder, "cpu", "tiny", "rotor"), 20)
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


def test_commands_at_a_time_share_their_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What one of them made is there, also where another was ended; a step waits for its files."""
    made = tmp_path / "made"
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    quick = [sys.executable, "-c", f"open({str(made)!r}, 'w')"]
    found = outcomes(
        monkeypatch,
        tmp_path,
        doing("early", "", reads=[made]),
        Step("both", [slow, quick, slow], 3, (), together=True),
        doing("late", "", reads=[made]),
    )
    assert {name: step["state"] for name, step in found.items()} == {
        "early": WAITS, "both": LATE, "late": DONE,
    }  # fmt: skip
    assert found["both"]["seconds"] < 6


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
    steps: dict[str, Any] = {"gpt2: AdamW": {"state": DONE, "result": plain}}
    ours = {"peak": 2_000_000, "there": 3_000_000, "seconds": 0.12, "parameters": "a"}
    steps["gpt2: AdamW at a third"] = {"state": DONE, "result": ours}
    steps["llama: AdamW"] = {"state": DONE, "result": {"out_of_memory": True}}
    steps["llama: AdamW at a third"] = {"state": DONE, "result": ours | {"parameters": "b"}}
    text = markdown({"about": ABOUT, "machines": [], "steps": steps})
    assert "| gpt2: AdamW | 5.0 | 9.0 | 100.0 | 1.000 | equal |" in text
    assert "| gpt2: AdamW at a third | 2.0 | 3.0 | 120.0 | 1.200 | equal |" in text
    assert "| llama: AdamW | does not fit |" in text
    assert "| llama: AdamW at a third | 2.0 | 3.0 | 120.0 |  | not compared |" in text
    steps["llama: AdamW"] = {"state": DONE, "result": plain}
    assert "| other bits |" in markdown({"about": ABOUT, "machines": [], "steps": steps})
    missing = {"infeasible": "torchao is not installed"}
    steps["gpt2: AdamW of torchao on the host"] = {"state": DONE, "result": missing}
    text = markdown({"about": ABOUT, "machines": [], "steps": steps})
    assert "| gpt2: AdamW of torchao on the host | torchao is not installed |" in text


def test_torchaos_optimiser_is_a_peer_where_it_is_installed(
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


def test_the_peer_runs_on_a_gpu_alone(tmp_path: Path) -> None:
    def labels(device: str) -> list[str]:
        asked = Asked(tmp_path, device, "tiny")
        return [step.name for step in steps(asked) if "torchao" in step.name]

    assert not labels("cpu")
    assert labels("cuda") == [f"{name}: AdamW of torchao on the host" for name in NAMES]


def test_what_does_not_fit_and_what_differs_is_told() -> None:
    def result(seconds: float, bits: str, product: float) -> dict[str, Any]:
        gradients = {"bits": bits, "norm": 2.0, "products": [product] * 8}
        found: dict[str, Any] = {"peak": 3_000_000, "seconds": seconds, "gradients": gradients}
        found |= dict.fromkeys(("reserved", "renewed", "context"))
        return {"state": DONE, "result": found}

    mine, other = result(0.2, "a", 1.0), result(0.3, "b", 1.5)
    assert apart(mine["result"]["gradients"], other["result"]["gradients"]) == 0.25
    lost = {"state": DONE, "result": {"out_of_memory": True}}
    small = {"state": DONE, "result": {"infeasible": "33% is too little"}}
    steps = {"gpt2: eager": mine, "gpt2: checkpoint": other, "gpt2: compile 0.5": lost}
    steps["gpt2: at a third"] = small
    text = markdown({"about": ABOUT, "machines": [], "steps": steps})
    assert "| eager | 3.0 |  |  |  |  |  |  | 200.0 | 1.000 | equal |" in text
    assert "| checkpoint | 3.0 |  |  |  |  |  |  | 300.0 | 1.500 | 2.5e-01 apart |" in text
    assert "| compile 0.5 | does not fit |" in text
    assert "| at a third | 33% is too little |" in text
    mine["result"] |= {"reserved": 5_000_000, "renewed": 5_200_000, "context": 300_000_000}
    gpu = {"reserved": 4_900_000, "renewed": 5_100_000}
    plan = {"state": DONE, "result": {"peak": 2_000_000, "gpu": gpu}}
    planned = {"gpt2: at a half": mine, "gpt2: plan at a half": plan, "gpt2: at a fifth": mine}
    planned["gpt2: plan at a fifth"] = plan
    told = markdown({"about": ABOUT, "machines": [], "steps": planned})
    reserved = "5.0 | 4.9 (+2.0%) | 5.2 | 5.1 (+2.0%) | 300.0"
    assert f"| at a fifth | 3.0 | 2.0 (+50.0%) | {reserved} | 200.0 |" in told
    planned["gpt2-fused: at a third"] = mine
    assert "| fused, at a third | 3.0 |" in markdown(
        {"about": ABOUT, "machines": [], "steps": planned}
    )
    graphs = {"state": DONE, "result": mine["result"] | {"seconds": 0.15, "reserved": 6_000_000}}
    planned["gpt2: at a fifth as CUDA graphs"] = graphs
    planned["gpt2: at a half as CUDA graphs"] = {"state": FAILED, "said": "it draws | again"}
    told = markdown({"about": ABOUT, "machines": [], "steps": planned})
    assert "| not compared | 150.0 | 6.0 | equal |" in told
    assert "| not compared |  |  | it draws / again |" in told
    alone = markdown({"about": ABOUT, "machines": [], "steps": {"gpt2: checkpoint": other}})
    assert "| not compared |" in alone
