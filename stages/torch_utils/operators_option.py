"""The option of a stage that names operators which are not PyTorch's own; needs no PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def add_operators_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names operators which are not PyTorch's own."""
    parser.add_argument(
        "--operators",
        action="append",
        default=[],
        metavar="NAMESPACE=MODULE",
        help="operators that a graph may call beside PyTorch's, and the module that registers them",
    )


def operators_setting(operators: Sequence[str]) -> dict[str, Any]:
    """The option as a setting of the stage; nothing where it is not given."""
    return {"operators": sorted(operators)} if operators else {}
