"""Opens compiled libraries. The file travels with a generated package and needs only PyTorch.

A library is native code: whoever opens one has looked at the digest of its file before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def open_library(file: Path, name: str) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """What runs the library of a name in a file (.pt2), which is not read again afterwards; raises
    RuntimeError, in one sentence, where it cannot be loaded here."""
    loader: Any = getattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader", None)
    if loader is None:
        raise RuntimeError(f"PyTorch {torch.__version__} loads no compiled libraries")
    try:
        run: Callable[[list[Tensor]], Sequence[Tensor]] = loader(
            str(file), name, False, 1, -1
        ).boxed_run
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or [""])[0]
        raise RuntimeError(f"the compiled library {name} does not load: {said}") from error
    return run
