"""Parameters that live on disk: the same objects and bits, and one sentence where that fails."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tightfit.stages.runtime.offload import disk_target as disks
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE, DiskTarget
from tightfit.stages.runtime.offload.parameter_store import ParameterStore
from tightfit.stages.runtime.offload.setup import OffloadSpec, offload_parameters
from tightfit.stages.runtime.offload.target import TargetSlice
from tightfit.stages.runtime.offload.worker_thread import WorkerFuture
from tightfit.stages.torch_utils.memory_meter import measure_call_memory

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(30, 40), nn.Conv2d(3, 5, 3), nn.Linear(40, 6))
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def store_of(module: nn.Module, there: Any = ()) -> ParameterStore:
    paths, parameters = zip(*module.named_parameters(), strict=True)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    disk = DiskTarget(size + 64)
    return ParameterStore(
        parameters,
        paths,
        there,
        TargetSlice(disk, 0, size),
        TargetSlice(disk, size, 64),
        torch.device("cpu"),
    )


def test_values_come_back_as_they_were_in_the_same_objects() -> None:
    module = model()
    objects = list(module.parameters())
    values = [(parameter.detach().clone(), parameter.stride()) for parameter in objects]
    store = store_of(module, there=[2])
    assert [parameter.stride() for parameter in objects] == [stride for _, stride in values]
    assert objects[2].is_contiguous() is False and isinstance(objects[0], nn.Parameter)
    for number in range(len(objects)):
        found = store.read(number)
        assert torch.equal(found, values[number][0]) and found.stride() == values[number][1]
    store.close()
    assert all(mine is its for mine, its in zip(objects, module.parameters(), strict=True))
    for parameter, (value, stride) in zip(objects, values, strict=True):
        assert type(parameter) is nn.Parameter and parameter.stride() == stride
        assert torch.equal(parameter, value)


def test_bytes_are_on_the_device_where_the_order_of_issue_says() -> None:
    module = model()
    store = store_of(module)
    size = store.layouts[0].bytes

    def use() -> None:
        store.prefetch(0)
        store.prefetch(4)
        store.wait(0)
        store.wait(4)
        store.free(0)
        store.free(4)

    use()
    usage, _ = measure_call_memory("cpu", use)
    assert (usage.peak, usage.net) == (size + store.layouts[4].bytes, 0)


def test_changes_are_sent_back_by_whoever_makes_them() -> None:
    module = model()
    store = store_of(module, there=[1])
    with torch.no_grad():
        for number in (0, 1):
            with store.modify_parameter(number) as own:
                own.fill_(number + 2)
    store.settle()
    store.free(1)
    store.settle()
    with store.gathered():
        assert module[0].weight.eq(2).all() and module[0].bias.eq(3).all()  # type: ignore[operator]
        with torch.no_grad():
            module[0].weight.fill_(5)  # type: ignore[operator]
        module[0].bias.data = torch.full((40,), 7.0)
        with store.gathered():
            pass
        assert type(module[0].weight) is nn.Parameter
    assert store.read(0).eq(5).all() and store.read(1).eq(7).all()


@pytest.mark.parametrize("there", [(), range(6)])
def test_what_was_computed_within_gathered_has_its_backward_there(there: Any) -> None:
    module = model()
    store = store_of(module, there)
    with store.gathered():
        for parameter in module.parameters():
            parameter.square().sum().backward()
            parameter.grad = None
        late = [parameter.square().sum() for parameter in module.parameters()]
    for each in late:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            each.backward()
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_wait_that_is_interrupted_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = model()
    store = store_of(module)
    value = store.read(0)
    begun = threading.Event()

    def later(move: Any) -> Any:
        def run(*args: Any) -> None:
            begun.wait()
            move(*args)

        return run

    def interrupted(self: WorkerFuture, timeout: float = -1) -> None:
        raise KeyboardInterrupt

    for name in ("_read", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(disks, name, later(getattr(disks, name)))
            if name == "_read":
                store.prefetch(0)
            else:
                store.wait(0)
                store.tensor(0).mul_(2)
                store.offload(0)
            patch.setattr(WorkerFuture, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.wait(0)
        [ticket] = store.memory.memory.moving  # type: ignore[attr-defined]
        assert ticket.tensor is not None and store.moving[0] is ticket
        begun.set()
    store.settle()
    assert not store.moving and torch.equal(store.read(0), 2 * value)
    store.close()


def test_changes_within_gathered_outlast_an_interrupted_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = model()
    store = store_of(module, there=[5])
    waited = store.memory.memory.wait
    left = [2]

    def interrupted(ticket: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        waited(ticket)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), store.gathered():
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(3)
        patch.setattr(store.memory.memory, "wait", interrupted)
    with store.gathered():
        assert all(parameter.eq(3).all() for parameter in module.parameters())
    store.close()
    assert all(parameter.eq(3).all() for parameter in module.parameters())


def test_another_layout_is_refused_and_changes_nothing() -> None:
    module = model()
    store = store_of(module)
    before = store.read(0)
    with (
        pytest.raises(RuntimeError, match=r"0\.weight was given another shape, dtype"),
        store.gathered(),
    ):
        module[0].weight.data = torch.zeros(2, 2)
    assert torch.equal(store.read(0), before)
    store.close()
    assert torch.equal(module[0].weight, before)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["alias", "part", "kind", "integers"])
def test_what_cannot_live_elsewhere_is_named(how: str) -> None:
    module = model()
    kept = None
    if how == "alias":
        kept = module[2].weight.detach()  # type: ignore[operator]
    elif how == "part":
        module[2].weight = nn.Parameter(torch.zeros(12, 40)[:6])
    elif how == "integers":
        whole = torch.zeros(6, 40, dtype=torch.int64)
        module[2].weight = nn.Parameter(whole, requires_grad=False)
        del whole
    else:
        module[2].weight = nn.parameter.UninitializedParameter()
    paths, parameters = zip(*module.named_parameters(), strict=True)
    with pytest.raises(
        RuntimeError, match=r"2\.weight (shares its memory|is a Unin|is of torch\.int)"
    ):
        ParameterStore(
            parameters,
            paths,
            (),
            TargetSlice(DiskTarget(1 << 20), 0, 1 << 20),
            TargetSlice(DiskTarget(1), 0, 1),
            torch.device("cpu"),
        )
    assert type(module[0].weight) is nn.Parameter
    del kept


def test_a_file_that_was_cut_off_is_told_and_nothing_is_read_as_zeros(tmp_path: Path) -> None:
    module = model()
    store = store_of(module)
    disk: Any = store.memory.memory
    os.ftruncate(disk.file.fileno(), 100)
    with pytest.raises(RuntimeError, match="the file is shorter than what was written"):
        store.read(0)
    for use in (lambda: store.read(0), store.gathered().__enter__, store.states().__enter__):
        with pytest.raises(RuntimeError, match=rf"has failed, and some .* in files of {tmp_path}"):
            use()


def test_what_is_written_behind_a_cut_does_not_hide_it() -> None:
    disk = DiskTarget(4096)
    disk.wait(disk.write(torch.ones(8), 0))
    os.ftruncate(disk.file.fileno(), 0)
    with pytest.raises(RuntimeError, match="shorter than what was written"):
        disk.wait(disk.write(torch.ones(8), 4000))
    assert not disk.healthy


def offload_plan(module: nn.Module, **other: Any) -> OffloadSpec:
    paths = tuple(path for path, _ in module.named_parameters())
    sizes = [parameter.numel() * 4 for parameter in module.parameters()]
    states = sum(2 * -(-size // 64) * 64 for size in sizes)
    facts = {
        "optimizer": "AdamW", "paths": paths, "resident": (), "updated": paths,
        "piece_bytes": 1 << 20, "staging_bytes": 8 * -(-max(sizes) // 64) * 64,
        "parameter_bytes": sum(sizes), "state_bytes": states,
        "activation_bytes": 0, "peak": 0, "first_peak": 0,
    }  # fmt: skip
    return OffloadSpec(**{**facts, **other})


def test_parameters_stay_where_the_disk_is_full_or_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = model()
    values = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(module.parameters())
    with monkeypatch.context() as full:
        full.setattr(
            os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(28, "No space"))
        )
        with pytest.raises(RuntimeError, match=r"does not give the \d+ bytes .* \(No space\)"):
            offload_parameters(module, optimizer, offload_plan(module))
    with monkeypatch.context() as broken:
        written = disks.os.pwrite
        left = [2]

        def fail(*args: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "Input/output error")
            return written(*args)

        broken.setattr(os, "pwrite", fail)
        with pytest.raises(RuntimeError, match=r"\(Input/output error\): name a folder"):
            offload_parameters(module, optimizer, offload_plan(module))
    with pytest.raises(RuntimeError, match="cannot wait in files of /nowhere"):
        offload_parameters(module, optimizer, offload_plan(module), "/nowhere")
    with pytest.raises(RuntimeError, match="of other sizes or dtypes"):
        offload_parameters(module, optimizer, offload_plan(module, parameter_bytes=7))
    assert all(map(torch.equal, values, module.parameters()))
    assert all(type(parameter) is nn.Parameter for parameter in module.parameters())
    _, stepping = offload_parameters(module, optimizer, offload_plan(module))
    stepping.close()


def test_states_that_are_no_longer_those_of_the_parameters_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> int:
        raise OSError(5, "Input/output error")

    module = model()
    store, optimizer = offload_parameters(
        module, torch.optim.AdamW(module.parameters()), offload_plan(module)
    )
    states = optimizer.state_dict()
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", fail)
        store.prefetch(0)
        store.wait(0)
        store.offload(0)
        with pytest.raises(RuntimeError, match="Input/output error"):
            store.wait(0)
    optimizer._updates.keys[0] = ("step",)
    parameter: Any = next(module.parameters())
    parameter.grad = torch.ones(parameter.shape)
    for use in (optimizer.state_dict, lambda: optimizer.load_state_dict(states), optimizer.step):
        with pytest.raises(RuntimeError, match="has failed, and some of them may be lost"):
            use()


@pytest.mark.parametrize("known", [False, True])
def test_what_is_closed_behind_a_failed_disk_has_no_values_and_says_so(
    known: bool, tmp_path: Path
) -> None:
    module = model()
    store, optimizer = offload_parameters(
        module, torch.optim.AdamW(module.parameters()), offload_plan(module)
    )
    disk = store.memory.memory
    os.ftruncate(disk.file.fileno(), 100)  # type: ignore[attr-defined]
    if known:
        with pytest.raises(RuntimeError, match="the file is shorter than what was written"):
            store.read(0)
        optimizer.close()
    else:
        with pytest.raises(RuntimeError, match="the file is shorter than what was written"):
            optimizer.close()
    optimizer.close()
    assert disk.file.closed and not list(tmp_path.iterdir())  # type: ignore[attr-defined]
    weight = module[0].weight
    for use in (module, copy.deepcopy):
        with pytest.raises(
            RuntimeError, match=r"not to be had: the memory that parameters live in"
        ):
            use(module if use is copy.deepcopy else torch.zeros(2, 30))
    with pytest.raises(RuntimeError, match="has failed, and some of them may be lost"):
        optimizer.gathered().__enter__()
    weight.grad = torch.ones(40, 30)
    with pytest.raises(RuntimeError, match="has failed, and some of them may be lost"):
        optimizer.step()


def test_nothing_is_left_of_a_process_that_is_killed_and_two_never_meet(tmp_path: Path) -> None:
    code = """
import os, signal, sys, torch
from tests.stages.runtime.offload.test_parameter_store import store_of, model
module = model()
store = store_of(module)
with store.gathered(), torch.no_grad():
    module[0].weight.fill_(float(sys.argv[1]))
print(store.read(0).unique().tolist(), flush=True)
sys.stdin.read(1)
print(store.read(0).unique().tolist(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(number)], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for number in (1, 2)
    ]  # fmt: skip
    said = [run.stdout.readline() for run in runs if run.stdout]
    for run in runs:
        said.append(run.communicate("x")[0].strip())
    assert [each.strip() for each in said] == ["[1.0]", "[2.0]", "[1.0]", "[2.0]"]
    assert [run.returncode for run in runs] == [-9, -9]
    assert list(tmp_path.iterdir()) == []
