"""Compiled groups: close to ATen, the same bits each time, refused in a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.errors import ArtifactError, ModelError
from schemas.graph import Graph
from schemas.groups import Body, GroupCall, Leaf, body_digest, body_text, is_group
from stages.device import groups as device_groups
from stages.device import kernels as device_kernels
from stages.device.evaluate import evaluate
from stages.device.groups import compile_body, kernel
from stages.device.kernels import Kernel, build_key
from stages.fuse import compiling
from stages.fuse.compiling import GroupError, check_compiler, compile_group, fuse_compiled
from stages.fuse.fusing import fuse
from tests.stages.fuse.test_fusing import blocks
from tests.stages.generate.plans import traced

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


def test_without_a_compiler_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    def absent() -> None:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", absent)
    with pytest.raises(ModelError, match="use kernels: eager") as raised:
        check_compiler(CPU)
    assert not isinstance(raised.value, GroupError)


def test_a_folder_that_cannot_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{__file__}/cache")
    with pytest.raises(ModelError, match=r"which cannot be made \(Not a directory\): name another"):
        check_compiler(CPU)


def failing(*given: Any) -> None:
    raise RuntimeError("no kernel\nfor this")


def test_a_group_that_does_not_compile_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_kernels, "inductor", lambda: (failing, {}))
    monkeypatch.setattr(device_groups, "_kernels", {})
    with pytest.raises(GroupError, match=r"RuntimeError: no kernel$"):
        compile_group(BODY, CPU)


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


def test_a_body_that_writes_over_an_input_is_refused_before_it_runs() -> None:
    arguments = '{"args":[{"value":0},{"value":1}],"kwargs":{"out":{"value":0}}}'
    body = Body([LEAF, LEAF], [GroupCall("aten.add.out", arguments, [2])], [2], [LEAF])
    given = inputs()
    before = given[0].clone()
    with pytest.raises(ArtifactError, match="writes over"):
        evaluate(body, given)
    assert torch.equal(given[0], before)
