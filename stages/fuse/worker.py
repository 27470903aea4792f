"""Compiles a share of the kernels of a graph in a process of its own.

It reads the task as JSON from standard input, and writes a line for each kernel that it is done
with.

What is compiled stays in inductor's folder. Whoever asked finds it there, or compiles what failed
here once more, and says why.
"""

from __future__ import annotations

import contextlib
import json
import sys


def main() -> None:
    """Compiles the kernels of the task."""
    task = json.load(sys.stdin)
    import torch

    from tightfit.schemas.errors import ModelError
    from tightfit.schemas.groups import read_body
    from tightfit.stages.device.kernels import Over
    from tightfit.stages.fuse.compiling import compile_group

    torch.set_num_threads(task["threads"])
    for text, over in task["kernels"]:
        with contextlib.suppress(ModelError):
            place = None if over is None else Over(*over)
            compile_group(read_body(text), torch.device(task["device"]), place)
        print("done", flush=True)


if __name__ == "__main__":
    main()
