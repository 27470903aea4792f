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

    from tightfit.schemas.graph.fused_groups import parse_group_body
    from tightfit.stages.fuse.compile_groups import compile_group
    from tightfit.stages.runtime.kernels.compile import InPlaceKernel
    from tightfit.util.errors import ModelError

    torch.set_num_threads(task["threads"])
    for text, over in task["kernels"]:
        with contextlib.suppress(ModelError):
            place = None if over is None else InPlaceKernel(*over)
            compile_group(parse_group_body(text), torch.device(task["device"]), place)
        print("done", flush=True)


if __name__ == "__main__":
    main()
