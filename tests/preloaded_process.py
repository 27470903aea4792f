"""Programs that start at once: a process that has loaded PyTorch, transformers and Snakemake, but
nothing of tightfit, forks where `python -m tightfit`, a module of the tests or `snakemake` is
called, and runs in the fork what the call would run. Workers, which end with the process that began
them, are started as ever.

Its first argument is a folder that the two programs are written to; the fixture `programs` runs it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOADED = (
    "torch",
    "torch._dynamo",
    "torch.profiler",
    "numba",
    "pyarrow.compute",
    "highspy",
    "jsonschema",
    "jinja2",
    "rich.table",
    "transformers.models.gpt2.modeling_gpt2",
    "snakemake.cli",
)
"""What takes long to load."""

PROGRAM = """#!{python} -IS
import array, json, os, socket, sys
words = sys.argv[1:]
name = os.path.basename(sys.argv[0])
if words[:1] == ["-P"] and words[1].endswith("/snakemake_process.py"):
    name, words = "snakemake", words[2:]
ours = words[:1] == ["-m"] and (words[1] == "tightfit" or words[1].startswith("tests."))
if name == "python" and not ours:
    os.execv({python!r}, [{python!r}, *words])
to = socket.socket(socket.AF_UNIX)
to.connect({address!r})
call = [name, words, os.getcwd(), dict(os.environ)]
handles = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
to.sendmsg([b"!"], handles)
to.sendall(json.dumps(call).encode())
to.shutdown(socket.SHUT_WR)
sys.exit(int(to.recv(9) or 1))
"""


def write_programs(folder: Path) -> str:
    """Writes the programs that call, and returns the address that they call at."""
    address = str(folder / "calls")
    for name in ("python", "snakemake"):
        program = folder / name
        program.write_text(PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
    return address


def serve(folder: Path) -> None:
    """Answers calls, each in a process of its own, until it is ended."""
    for name in LOADED:
        importlib.import_module(name)
    calls = socket.socket(socket.AF_UNIX)
    calls.bind(write_programs(folder))
    calls.listen(64)
    sys.executable = str(folder / "python")
    gc.freeze()
    print("ready", flush=True)
    while True:
        caller, _ = calls.accept()
        if os.fork() == 0:
            calls.close()
            _answer(caller)
        caller.close()
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _answer(caller: socket.socket) -> None:
    """Runs what was called for, tells its exit code, and ends this process."""
    _, handles, _, _ = socket.recv_fds(caller, 1, 3)
    with caller.makefile("rb") as sent:
        name, words, folder, environment = json.load(sent)
    for place, handle in enumerate(handles):
        os.dup2(handle, place)
        os.close(handle)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("OMP_NUM_THREADS", "").isdigit():
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    random.seed()
    more = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    here = folder if name == "python" else str(Path(sys.executable).parent)
    sys.path[:0] = [here, *more]
    try:
        code = _code_of(name, words)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        caller.sendall(str(code).encode())
    finally:
        os._exit(0)


def _code_of(name: str, words: Sequence[str]) -> int:
    """The exit code of a program with arguments."""
    try:
        if name == "python":
            sys.argv = ["", *words[2:]]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            return 0
        sys.argv = [name, *words]
        main: Any = importlib.import_module("snakemake.cli").main
        sys.exit(main())
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    return 1


if __name__ == "__main__":
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [path for path in sys.path[1:] if path not in given]
    serve(Path(sys.argv[1]))
