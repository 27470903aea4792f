"""A package runs from the bytes that were read, and with the constants that it was made with."""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, load_package
from tightfit.stages.generate.package import add_lineage_file, write_directory
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.load import load_planned_module, package_files
from tightfit.util.errors import ArtifactError


class Shifted(nn.Module):
    """Reads a tensor that belongs to the program itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).tanh() * torch.tensor([1.0, 2.0, 3.0], device=x.device)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    graph = trace(BuiltModel(Shifted(), [((torch.ones(2, 3),), {})], label="shifted"), "shifted")
    generated(graph, tmp_path / "module")
    shutil.rmtree(tmp_path / "module/__pycache__", ignore_errors=True)
    assert (tmp_path / "module/constants.bin").is_file()
    return tmp_path / "module"


def plant(package: Path, name: str, source: str) -> None:
    """Puts bytecode of another source where Python would take it for that of a file."""
    path = package / name
    place = Path(importlib.util.cache_from_source(str(path)))
    place.parent.mkdir(exist_ok=True)
    state = path.stat()
    head = importlib.util.MAGIC_NUMBER + (0).to_bytes(4, "little")
    head += int(state.st_mtime).to_bytes(4, "little") + state.st_size.to_bytes(4, "little")
    place.write_bytes(head + marshal.dumps(compile(source, str(path), "exec")))


def test_planted_bytecode_does_not_run(package: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for name in ("__init__.py", "step.py", "runtime/guards/check.py", "runtime/pytree.py"):
        plant(package, name, f"open({str(ran)!r}, 'w')")
    before = sorted((package / "__pycache__").iterdir())
    model, x = Shifted(), torch.ones(2, 3)
    planned = load_planned_module(package, model)
    assert torch.equal(planned(x), model(x))
    assert not ran.exists()
    assert sorted((package / "__pycache__").iterdir()) == before
    with pytest.raises(AttributeError):  # Python's own import is the one that is fooled
        load_package(package).load(model)
    assert ran.exists()


def test_nothing_is_written_beside_the_files(package: Path) -> None:
    before = sorted(package.iterdir())
    load_planned_module(package, Shifted())
    assert sorted(package.iterdir()) == before


def test_a_package_is_imported_once_and_anew_when_it_changed(package: Path) -> None:
    first = type(load_planned_module(package, Shifted())).forward.__code__
    assert type(load_planned_module(package, Shifted())).forward.__code__ is first
    text = (package / "step.py").read_text()
    (package / "step.py").write_text(text + "\n")
    loaded = len(sys.modules)
    load_planned_module(package, Shifted())
    assert len(sys.modules) > loaded


@pytest.mark.parametrize("data", [b"", bytes(16), bytes(32), None])
def test_other_constants_are_refused(package: Path, data: bytes | None) -> None:
    planned = load_planned_module(package, Shifted())
    file = package / "constants.bin"
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    words = "constants.bin is not the file of constants that the plan was made of$"
    with pytest.raises(ArtifactError, match=words):
        load_planned_module(package, Shifted())
    with pytest.raises(RuntimeError, match=words):
        planned(torch.ones(2, 3))


@pytest.mark.parametrize("source", ["x = (", "\0", "raise ValueError('no')", "from .none import x"])
def test_what_cannot_be_imported_leaves_nothing(package: Path, source: str) -> None:
    loaded = set(sys.modules)
    (package / "runtime/interface.py").write_text(source)
    with pytest.raises(ArtifactError, match=r"^[^\n]*importing it fails, [^\n]*$"):
        load_planned_module(package, Shifted())
    assert not [name for name in set(sys.modules) - loaded if name.startswith("tightfit_module")]


@pytest.mark.parametrize("name", ["step.py", "__init__.py"])
def test_files_that_are_none_are_refused(package: Path, name: str) -> None:
    path = package / name
    path.unlink()
    for make, remove in (
        (os.mkfifo, os.unlink),
        (os.mkdir, os.rmdir),
        (lambda path: path.symlink_to("/dev/zero"), os.unlink),
    ):
        make(path)
        with pytest.raises(ArtifactError, match="is no regular file"):
            load_planned_module(package, Shifted())
        remove(path)


def test_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_directory(tmp_path / "empty", {})
    for name in ("none", "file", "empty"):
        with pytest.raises(ArtifactError, match="there is no generated package"):
            load_planned_module(tmp_path / name, Shifted())
    with pytest.raises(ArtifactError, match=r"given a Shifted .* load\(FOLDER, model\)"):
        package_files(Shifted())  # type: ignore[arg-type]


def test_a_package_that_was_changed_does_not_run(package: Path) -> None:
    """The manifest is that of a plan's packages; one without it says nothing of its files."""
    files = add_lineage_file(package_files(package), *["0" * 64] * 3)
    chain, aliasing = "runtime/autograd_chain.py", "runtime/guards/aliasing.py"
    changed = {**files, chain: files[chain].replace(b"reversed(", b"sorted(")}
    cut = {name: data for name, data in files.items() if name != aliasing}
    assert changed[chain] != files[chain]
    for broken, said in ((changed, "autograd_chain.py was changed"), (cut, f"lacks {aliasing}")):
        write_directory(package, broken)
        with pytest.raises(ArtifactError, match=said):
            load_planned_module(package, Shifted())
    write_directory(package, files)
    assert isinstance(load_planned_module(package, Shifted()), Shifted)
