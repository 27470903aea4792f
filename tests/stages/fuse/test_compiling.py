"""Compiled groups: close to ATen, the same bits each time, refused in a sentence."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.fuse.compilers import failing_compiler, without_compiler
from tests.stages.fuse.test_fusing import blocks
from tests.stages.generate.plans import traced
from tightfit.schemas.errors import ArtifactError, ModelError
from tightfit.schemas.graph import Graph
from tightfit.schemas.groups import Body, GroupCall, Leaf, body_digest, body_of, body_text, is_group
from tightfit.stages.device import groups as device_groups
from tightfit.stages.device import kernels as device_kernels
from tightfit.stages.device.check import check_program
from tightfit.stages.device.evaluate import evaluate
from tightfit.stages.device.groups import compile_body, filled, forms_of, kernel
from tightfit.stages.device.kernels import (
    Kernel,
    Over,
    build_key,
    checked_kernel,
    kernel_folder,
    traced_function,
)
from tightfit.stages.device.libraries import compile_libraries
from tightfit.stages.device.opened import open_library
from tightfit.stages.fuse import compiling
from tightfit.stages.fuse.compiling import GroupError, check_compiler, compile_group, fuse_compiled
from tightfit.stages.fuse.fusing import fuse

CPU = torch.device("cpu")
LEAF = Leaf([3, 4], [1, 3], 0, "float32")


def call(name: str, arguments: str, made: int) -> GroupCall:
    return GroupCall(f"aten.{name}", f'{{"args":[{arguments}],"kwargs":{{}}}}', [made])


BODY = Body(
    [LEAF, LEAF],
    [
        call("mul.Tensor", '{"value":0},{"value":1}', 2),
        call("t.default", '{"value":2}', 3),
        call("_softmax.default", '{"value":3},1,false', 4),
    ],
    [2, 4],
    [Leaf([3, 4], [1, 3], 0, "float32"), Leaf([4, 3], [3, 1], 0, "float32")],
)


@pytest.fixture(scope="module")
def run() -> Kernel:
    return kernel(BODY, CPU)


def inputs() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(4, 3).t() for _ in range(2)]


def test_a_kernel_is_close_to_aten_and_repeats_its_bits(run: Kernel) -> None:
    one, other, aten = run(inputs()), run(inputs()), evaluate(BODY, inputs())
    torch.testing.assert_close(one, aten)
    assert all(map(torch.equal, one, other))
    assert [made.stride() for made in one] == [made.stride() for made in aten]


def test_a_body_is_compiled_once(run: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_groups, "compile_body", None)
    assert kernel(BODY, CPU) is run


def test_another_number_of_threads_is_another_key() -> None:
    threads, before = torch.get_num_threads(), build_key(CPU)
    try:
        torch.set_num_threads(threads + 1)
        assert build_key(CPU) != before
    finally:
        torch.set_num_threads(threads)
    assert build_key(CPU) == before


def test_without_a_compiler_there_is_one_sentence() -> None:
    with without_compiler(), pytest.raises(ModelError, match="use kernels: eager") as raised:
        check_compiler(CPU)
    assert not isinstance(raised.value, GroupError)


def test_a_folder_that_cannot_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{__file__}/cache")
    with pytest.raises(ModelError, match=r"cannot be written \(Not a directory\): name another"):
        check_compiler(CPU)


def test_a_folder_that_is_only_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def only_read(**where: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", only_read)
    with pytest.raises(
        ModelError, match=r"cannot be written \(Read-only file system\): name another"
    ):
        check_compiler(CPU)


def test_what_another_build_has_compiled_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with kernel_folder(CPU) as mine:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(mine)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    for module, name, other in (
        (torch, "__version__", "2.13.0+other"),
        (device_kernels, "_instructions", lambda: ["avx2"]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, other)
            with kernel_folder(CPU) as theirs:
                assert theirs != mine
                assert theirs.parent == mine.parent == tmp_path


def failing(*given: Any) -> None:
    raise RuntimeError("no kernel\nfor this")


def test_a_group_that_does_not_compile_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_kernels, "inductor", lambda: (failing, {}))
    monkeypatch.setattr(device_groups, "_kernels", {})
    with pytest.raises(GroupError, match=r"RuntimeError: no kernel$"):
        compile_group(BODY, CPU)


def test_states_of_the_caller_are_not_those_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a plan is made, or a package loaded, under autocast."""
    seen = []

    def compiler(*given: Any) -> Any:
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_default_dtype()))
        return failing

    monkeypatch.setattr(device_kernels, "inductor", lambda: (compiler, {}))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            compile_body(BODY, CPU)
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before)
    assert seen == [(False, torch.float32)]


def test_outputs_of_another_form_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [torch.zeros(3, 4), torch.zeros(4, 3)]
    monkeypatch.setattr(device_kernels, "inductor", lambda: (lambda *given: lambda at: wrong, {}))
    with pytest.raises(RuntimeError, match="another form"):
        compile_body(BODY, CPU)(inputs())


def test_outputs_that_share_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = torch.zeros(2, 12)
    shared = [both[0].view(4, 3).t(), both[0].view(4, 3)]
    monkeypatch.setattr(device_kernels, "inductor", lambda: (lambda *given: lambda at: shared, {}))
    with pytest.raises(RuntimeError, match="share memory"):
        compile_body(BODY, CPU)(inputs())


def test_a_kernel_with_other_strides_than_are_asked_for_is_refused() -> None:
    body = replace(BODY, forms=[BODY.forms[0], Leaf([4, 3], [1, 4], 0, "float32")])
    with pytest.raises(GroupError, match="outputs of another form"):
        compile_group(body, CPU)


def test_a_kernel_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_kernels, "inductor", lambda: (lambda *given: failing, {}))
    monkeypatch.setattr(device_groups, "_kernels", {})
    with pytest.raises(GroupError, match=r"does not run: RuntimeError: no kernel$"):
        compile_group(BODY, CPU)


def test_other_shapes_than_the_calls_make_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(BODY, forms=[BODY.forms[1], BODY.forms[1]])
    with pytest.raises(GroupError, match="other shapes or dtypes"):
        compile_group(wrong, CPU)


def groups(graph: Graph) -> list[str]:
    return [op.target for op in graph.ops if is_group(op.target)]


def test_a_group_that_fails_stays_aten_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = traced(blocks(1))
    bad = groups(fuse(graph))[0]

    def compile_group(body: Body, device: torch.device) -> Any:
        if body_digest(body_text(body)) in bad:
            raise GroupError("the group cannot be compiled")
        return evaluate

    monkeypatch.setattr(compiling, "compile_group", compile_group)
    monkeypatch.setattr(compiling, "slower_than_aten", lambda body, device: False)
    monkeypatch.setattr(compiling, "exact_and_smaller", lambda body, over, device: False)
    told: list[str] = []
    fused = fuse_compiled(graph, CPU, told.append)
    assert bad not in groups(fused)
    assert groups(fused)
    assert told == ["the group cannot be compiled; it stays ATen"]


def test_statistics_of_half_precision_are_those_of_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8)).bfloat16()
    graph, _ = traced((model, ((torch.randn(4, 8, dtype=torch.bfloat16),), {})))
    fused = fuse(graph)
    assert {at.dtype for op in fused.ops if is_group(op.target) for at in body_of(op).forms} == {
        "bfloat16"
    }
    check_program(fused, "fused")


class Mixed(nn.Module):
    """Norms of half precision with weights of single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.one, self.two = nn.Linear(8, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.line(self.two(torch.tanh(self.one(self.line(x)))).sigmoid() * 2)
        return made


def test_norms_under_autocast_are_traced_with_the_dtypes_that_aten_gives() -> None:
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph, _ = traced((Mixed(), ((torch.randn(4, 8),), {})))
    bodies = [body_of(op) for op in fuse(graph).ops if is_group(op.target)]
    norms = [body for body in bodies if "_norm.default" in body_text(body)]
    assert any(form.dtype == "float32" for body in norms for form in body.forms)
    for body in norms:
        forms = forms_of(body.inputs), forms_of(body.forms)
        function, _ = traced_function(lambda *given: evaluate(body, given), *forms, CPU)  # noqa: B023
        given = [filled(form, torch.Tensor.normal_, CPU) for form in forms[0]]
        for mine, aten in zip(function(*given), evaluate(body, given), strict=True):
            torch.testing.assert_close(mine, aten)


def test_a_compiler_that_fails_leaves_groups_aten(tmp_path: Path) -> None:
    graph, _ = traced(blocks(1))
    told: list[str] = []
    with failing_compiler(tmp_path):
        fused = fuse_compiled(graph, CPU, told.append)
    assert not groups(fused)
    assert told
    for said in told:
        assert re.fullmatch(
            r"the group \w+ cannot be compiled: .*CppCompileError.*; it stays ATen", said
        )


def test_a_library_in_place_has_the_bits_of_its_kernel() -> None:
    """What `compile_libraries` compares; here a library is opened and writes over its input."""
    body = Body([LEAF, LEAF], [BODY.calls[0]], [2], [BODY.forms[0]])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "libraries.pt2"
        file.write_bytes(compile_libraries({"group_a": (body, Over(0, 0))}, CPU))
        library = open_library(file, "group_a")
    given = inputs()
    wanted = given[0] * given[1]
    [made] = checked_kernel("group_a", library, forms_of(body.forms), Over(0, 0))(given)
    assert torch.equal(made, wanted)
    assert made.data_ptr() == given[0].data_ptr()


def test_what_is_done_never_becomes_less() -> None:
    told: list[tuple[int, int]] = []
    tell = compiling._growing(lambda *counts: told.append(counts), 3)
    for count in (2, 0, 1, 3):
        tell(count)
    assert told == [(2, 3), (2, 3), (2, 3), (3, 3)]


def test_a_body_that_writes_over_an_input_is_refused_before_it_runs() -> None:
    arguments = '{"args":[{"value":0},{"value":1}],"kwargs":{"out":{"value":0}}}'
    body = Body([LEAF, LEAF], [GroupCall("aten.add.out", arguments, [2])], [2], [LEAF])
    given = inputs()
    before = given[0].clone()
    with pytest.raises(ArtifactError, match="writes over"):
        evaluate(body, given)
    assert torch.equal(given[0], before)
