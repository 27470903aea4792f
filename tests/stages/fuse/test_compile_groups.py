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
from tests.stages.fuse.test_fuse_graph import blocks
from tests.stages.generate.plans import traced
from tightfit.schemas.graph.fused_groups import (
    GroupBody,
    GroupCall,
    GroupTensor,
    group_body_digest,
    is_fused_group,
    read_group_body,
    serialize_group_body,
)
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.fuse import compile_groups
from tightfit.stages.fuse.compile_groups import (
    GroupCompileError,
    check_compiler,
    compile_group,
    fuse_and_compile,
)
from tightfit.stages.fuse.fuse_graph import fuse
from tightfit.stages.runtime.kernels import compile as device_kernels
from tightfit.stages.runtime.kernels.aot_libraries import load_aot_library
from tightfit.stages.runtime.kernels.compile import (
    InPlaceKernel,
    Kernel,
    build_key,
    kernel_folder,
    kernel_with_checks,
    trace_function,
)
from tightfit.stages.torch_utils import fused_group_operators as device_groups
from tightfit.stages.torch_utils.aot_inductor import compile_libraries
from tightfit.stages.torch_utils.fused_group_operators import (
    compile_body,
    evaluate_body,
    fill_form,
    group_kernel,
    tensor_forms,
)
from tightfit.stages.torch_utils.graph_check import check_graph_program
from tightfit.util.errors import ArtifactError, ModelError

CPU = torch.device("cpu")
LEAF = GroupTensor([3, 4], [1, 3], 0, "float32")


def call(name: str, arguments: str, made: int) -> GroupCall:
    return GroupCall(f"aten.{name}", f'{{"args":[{arguments}],"kwargs":{{}}}}', [made])


BODY = GroupBody(
    [LEAF, LEAF],
    [
        call("mul.Tensor", '{"value":0},{"value":1}', 2),
        call("t.default", '{"value":2}', 3),
        call("_softmax.default", '{"value":3},1,false', 4),
    ],
    [2, 4],
    [GroupTensor([3, 4], [1, 3], 0, "float32"), GroupTensor([4, 3], [3, 1], 0, "float32")],
)


@pytest.fixture(scope="module")
def run() -> Kernel:
    return group_kernel(BODY, CPU)


def inputs() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(4, 3).t() for _ in range(2)]


def test_a_kernel_is_close_to_aten_and_repeats_its_bits(run: Kernel) -> None:
    one, other, aten = run(inputs()), run(inputs()), evaluate_body(BODY, inputs())
    torch.testing.assert_close(one, aten)
    assert all(map(torch.equal, one, other))
    assert [made.stride() for made in one] == [made.stride() for made in aten]


def test_a_body_is_compiled_once(run: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_groups, "compile_body", None)
    assert group_kernel(BODY, CPU) is run


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
    assert not isinstance(raised.value, GroupCompileError)


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
        (device_kernels, "_cpu_instructions", lambda: ["avx2"]),
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
    monkeypatch.setattr(device_kernels, "load_inductor", lambda: (failing, {}))
    monkeypatch.setattr(device_groups, "_kernels", {})
    with pytest.raises(GroupCompileError, match=r"RuntimeError: no kernel$"):
        compile_group(BODY, CPU)


def test_states_of_the_caller_are_not_those_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a plan is made, or a package loaded, under autocast."""
    seen = []

    def compiler(*given: Any) -> Any:
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_default_dtype()))
        return failing

    monkeypatch.setattr(device_kernels, "load_inductor", lambda: (compiler, {}))
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
    monkeypatch.setattr(
        device_kernels, "load_inductor", lambda: (lambda *given: lambda at: wrong, {})
    )
    with pytest.raises(RuntimeError, match="another form"):
        compile_body(BODY, CPU)(inputs())


def test_outputs_that_share_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = torch.zeros(2, 12)
    shared = [both[0].view(4, 3).t(), both[0].view(4, 3)]
    monkeypatch.setattr(
        device_kernels, "load_inductor", lambda: (lambda *given: lambda at: shared, {})
    )
    with pytest.raises(RuntimeError, match="share memory"):
        compile_body(BODY, CPU)(inputs())


def test_a_kernel_with_other_strides_than_are_asked_for_is_refused() -> None:
    body = replace(BODY, forms=[BODY.forms[0], GroupTensor([4, 3], [1, 4], 0, "float32")])
    with pytest.raises(GroupCompileError, match="outputs of another form"):
        compile_group(body, CPU)


def test_a_kernel_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_kernels, "load_inductor", lambda: (lambda *given: failing, {}))
    monkeypatch.setattr(device_groups, "_kernels", {})
    with pytest.raises(GroupCompileError, match=r"does not run: RuntimeError: no kernel$"):
        compile_group(BODY, CPU)


def test_other_shapes_than_the_calls_make_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(BODY, forms=[BODY.forms[1], BODY.forms[1]])
    with pytest.raises(GroupCompileError, match="other shapes or dtypes"):
        compile_group(wrong, CPU)


def groups(graph: Graph) -> list[str]:
    return [op.target for op in graph.ops if is_fused_group(op.target)]


def test_a_group_that_fails_stays_aten_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = traced(blocks(1))
    bad = groups(fuse(graph))[0]

    def compile_group(body: GroupBody, device: torch.device) -> Any:
        if group_body_digest(serialize_group_body(body)) in bad:
            raise GroupCompileError("the group cannot be compiled")
        return evaluate_body

    monkeypatch.setattr(compile_groups, "compile_group", compile_group)
    monkeypatch.setattr(compile_groups, "is_slower_than_aten", lambda body, device: False)
    monkeypatch.setattr(compile_groups, "is_exact_and_smaller", lambda body, over, device: False)
    told: list[str] = []
    fused = fuse_and_compile(graph, CPU, told.append)
    assert bad not in groups(fused)
    assert groups(fused)
    assert told == ["the group cannot be compiled; it stays ATen"]


def test_statistics_of_half_precision_are_those_of_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8)).bfloat16()
    graph, _ = traced((model, ((torch.randn(4, 8, dtype=torch.bfloat16),), {})))
    fused = fuse(graph)
    assert {
        at.dtype
        for op in fused.ops
        if is_fused_group(op.target)
        for at in read_group_body(op).forms
    } == {"bfloat16"}
    check_graph_program(fused, "fused")


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
    bodies = [read_group_body(op) for op in fuse(graph).ops if is_fused_group(op.target)]
    norms = [body for body in bodies if "_norm.default" in serialize_group_body(body)]
    assert any(form.dtype == "float32" for body in norms for form in body.forms)
    for body in norms:
        forms = tensor_forms(body.inputs), tensor_forms(body.forms)
        function, _ = trace_function(lambda *given: evaluate_body(body, given), *forms, CPU)  # noqa: B023
        given = [fill_form(form, torch.Tensor.normal_, CPU) for form in forms[0]]
        for mine, aten in zip(function(*given), evaluate_body(body, given), strict=True):
            torch.testing.assert_close(mine, aten)


def test_a_compiler_that_fails_leaves_groups_aten(tmp_path: Path) -> None:
    graph, _ = traced(blocks(1))
    told: list[str] = []
    with failing_compiler(tmp_path):
        fused = fuse_and_compile(graph, CPU, told.append)
    assert not groups(fused)
    assert told
    for said in told:
        assert re.fullmatch(
            r"the group \w+ cannot be compiled: .*CppCompileError.*; it stays ATen", said
        )


def test_a_library_in_place_has_the_bits_of_its_kernel() -> None:
    """What `compile_libraries` compares; here a library is opened and writes over its input."""
    body = GroupBody([LEAF, LEAF], [BODY.calls[0]], [2], [BODY.forms[0]])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "libraries.pt2"
        file.write_bytes(compile_libraries({"group_a": (body, InPlaceKernel(0, 0))}, CPU))
        library = load_aot_library(file, "group_a")
    given = inputs()
    wanted = given[0] * given[1]
    [made] = kernel_with_checks("group_a", library, tensor_forms(body.forms), InPlaceKernel(0, 0))(
        given
    )
    assert torch.equal(made, wanted)
    assert made.data_ptr() == given[0].data_ptr()


def test_what_is_done_never_becomes_less() -> None:
    told: list[tuple[int, int]] = []
    tell = compile_groups._monotone_progress(lambda done, total, _: told.append((done, total)), 3)
    for count in (2, 0, 1, 3):
        tell(count)
    assert told == [(2, 3), (2, 3), (2, 3), (3, 3)]


def test_a_body_that_writes_over_an_input_is_refused_before_it_runs() -> None:
    arguments = '{"args":[{"value":0},{"value":1}],"kwargs":{"out":{"value":0}}}'
    body = GroupBody([LEAF, LEAF], [GroupCall("aten.add.out", arguments, [2])], [2], [LEAF])
    given = inputs()
    before = given[0].clone()
    with pytest.raises(ArtifactError, match="writes over"):
        evaluate_body(body, given)
    assert torch.equal(given[0], before)
