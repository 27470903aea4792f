"""`python -m tests.gpu.cuda_stubs FOLDER`: see `tests.gpu.cuda_stubs`."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent
DRIVER, RUNTIME = "libcuda.so.1", "libcudart.so.13"
LIBRARIES = {
    "libcublas.so.13": "cublas(?!Lt)",
    "libcublasLt.so.13": "cublasLt",
    "libcudnn.so.9": "cudnn",
    "libcusparse.so.12": "cusparse(?!Lt)",
    "libcusparseLt.so.0": "cusparseLt",
    "libcufft.so.12": "cufft",
    "libcurand.so.10": "curand",
    "libcusolver.so.12": "cusolver",
    "libnccl.so.2": "nccl",
    "libnvshmem_host.so.3": "nvshmem",
    "libcufile.so.0": "cuFile",
    "libcupti.so.13": "cupti",
    "libnvrtc.so.13": "nvrtc",
    RUNTIME: "_*cuda[A-Z]",
}
"""Libraries that PyTorch is linked with, and how the names of their functions begin."""
VERSIONS = {"libnvshmem_host.so.3": "NVSHMEM"}
DEFINED = re.compile(r"^\w[\w* ]*?[ *](_*cu\w+|nccl\w+)\(", re.MULTILINE)


def main(folder: Path) -> None:
    """Compiles a stub of each library into a folder."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{sys.executable} has no PyTorch")
    torch = Path(spec.submodule_search_locations[0])
    folder.mkdir(parents=True, exist_ok=True)
    wanted = undefined(torch / "lib")
    headers = (
        torch.parent / "nvidia" / "cu13" / "include",
        torch.parent / "triton" / "backends" / "nvidia" / "include",
    )
    for name, prefix in LIBRARIES.items():
        functions = {symbol for symbol in wanted if re.match(prefix, symbol)}
        compile_stub(
            folder, name, functions, "cudart.c" if name == RUNTIME else "libraries.c", headers
        )
    declared = subprocess.run(
        [
            "gcc",
            "-E",
            *(f"-I{path}" for path in headers),
            "-include",
            "cuda.h",
            "-x",
            "c",
            "/dev/null",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    compile_stub(
        folder,
        DRIVER,
        set(re.findall(r"\bCUresult (?:__\w+ )?(cu[A-Z]\w+)\(", declared)),
        "cuda.c",
        headers,
    )
    # The linker's flags of RPATH go before LD_LIBRARY_PATH, so that all of them are loaded before
    # PyTorch. libraries = ":".join(str(folder / name) for name in (*LIBRARIES, DRIVER)) (folder /
    # "env").write_text(f'export LD_PRELOAD="{libraries}" LD_LIBRARY_PATH="{folder}"\n')


def undefined(folder: Path) -> set[str]:
    """The functions that PyTorch's libraries take from others."""
    found = set()
    for path in folder.glob("lib*.so"):
        command = ["nm", "-D", "--undefined-only", str(path)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found |= {line.split()[-1].split("@")[0] for line in told.splitlines()}
    return found


def compile_stub(
    folder: Path, name: str, functions: set[str], source: str, headers: tuple[Path, ...]
) -> None:
    """A library whose functions are those of a source, and others that say that they are done."""
    text = (SOURCES / source).read_text()
    defined = set(DEFINED.findall(text))
    if source == "libraries.c":
        parts = re.split(r"^(?=\w[\w* ]*\()", text, flags=re.MULTILINE)
        text = "".join(
            part for part in parts if not (match := DEFINED.match(part)) or match[1] in functions
        )
    rest = "".join(
        f"long {function}(void) {{ return 0; }}\n" for function in sorted(functions - defined)
    )
    version = folder / f"{name}.map"
    version.write_text(f"{VERSIONS.get(name, name)} {{ *; }};\n")
    made = folder / f"{name}.c"
    made.write_text(text)
    others = folder / f"{name}.others.c"
    others.write_text(rest)
    subprocess.run(
        [
            "gcc",
            "-O1",
            "-w",
            "-fPIC",
            "-fno-builtin",
            "-shared",
            "-o",
            folder / name,
            f"-Wl,-soname,{name}",
            f"-Wl,--version-script,{version}",
            *(f"-I{path}" for path in headers),
            made,
            others,
            "-lpthread",
        ],
        check=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
