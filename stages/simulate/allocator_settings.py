"""The settings of PyTorch's allocator on CUDA that change what it takes: `PYTORCH_ALLOC_CONF`.

Options and their meaning are those of the "Memory management" note of PyTorch's documentation
(docs/source/notes/cuda.rst) and of `c10/cuda/CUDAAllocatorConfig.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tightfit.util.command_line import is_integer_text
from tightfit.util.errors import ConfigError

MIB = 1 << 20
MIN_BLOCK_SIZE = 512

ALLOC_CONF_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variables of the environment that hold the settings, the one that counts first."""

_IGNORED_OPTIONS = (
    *("release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads"),
    *("pinned_use_background_threads", "pinned_reserve_segment_size_mb"),
    *("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"),
    *("graph_capture_record_stream_reuse",),
)
"""Options that change neither sizes nor which block is taken."""


@dataclass(frozen=True)
class AllocatorSettings:
    """How memory is handed out, in bytes.

    Blocks of `max_split` or more are not split, and serve requests that large which leave less than
    `non_split` over. `divisions` says into how many equal parts a stretch between powers of two is
    divided, to whose bounds sizes are rounded up: by the exponent of the power of two in MiB, from
    0 to 15. With `expandable`, segments grow by pages.
    """

    max_split: int | None = None
    non_split: int = 20 * MIB
    large_segment: int = 20 * MIB
    divisions: Mapping[int, int] = field(default_factory=dict)
    expandable: bool = False

    def rounded(self, size: int) -> int:
        """The size of the block that is looked for, for a number of bytes of at least 1."""
        exponent = min(max(size.bit_length() - 1 - 20, 0), 15)
        divisions = self.divisions.get(exponent, 0)
        if divisions > 1 and size > MIN_BLOCK_SIZE * divisions:
            return _round_up_to_division(size, divisions)
        return -(-size // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE


def _round_up_to_division(size: int, divisions: int) -> int:
    """The next of the bounds between powers of two."""
    floor = 1 << (size.bit_length() - 1)
    part = floor // divisions
    return size if size == floor else -(-size // part) * part


def settings_build_items(text: str) -> list[str]:
    """Settings as one item of the description of a device's build; none where there are none."""
    return [f"{ALLOC_CONF_VARIABLES[0]}={''.join(text.split())}"] if text else []


def settings_from_build(build: str) -> AllocatorSettings:
    """The settings that the description of a device's build names, PyTorch's own without any.

    Raises ConfigError, by name, for an option that the simulation does not follow.
    """
    start = f"{ALLOC_CONF_VARIABLES[0]}="
    found = [item.removeprefix(start) for item in build.split(", ") if item.startswith(start)]
    return parse_settings(found[0] if found else "")


def parse_settings(text: str) -> AllocatorSettings:
    """The settings that a value of PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF asks for.

    Raises ConfigError, by name, for an option that the simulation does not follow.
    """
    found: dict[str, str] = {}
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text.replace(" ", "")):
        name, colon, value = part.partition(":")
        if not colon:
            raise ConfigError(
                f"the allocator's settings {text!r} have {part!r}, which is no option"
            )
        found[name] = value
    settings: dict[str, object] = {}
    for name, value in found.items():
        settings |= _parse_option(name, value, text)
    return AllocatorSettings(**settings)  # type: ignore[arg-type]


def _parse_option(name: str, value: str, text: str) -> dict[str, object]:
    sizes = {
        "max_split_size_mb": "max_split",
        "max_non_split_rounding_mb": "non_split",
        "large_segment_size_mb": "large_segment",
    }
    if name in _IGNORED_OPTIONS or (name, value) == ("backend", "native"):
        return {}
    if name in sizes and is_integer_text(value):
        return {sizes[name]: int(value) * MIB}
    if name == "expandable_segments" and value in ("True", "False"):
        return {"expandable": value == "True"}
    if name == "roundup_power2_divisions":
        return {"divisions": _parse_divisions(value, text)}
    raise ConfigError(
        f"the allocator's settings {text!r} have {name}:{value}, which the prediction of reserved "
        "memory does not follow: leave it out"
    )


def _parse_divisions(value: str, text: str) -> dict[int, int]:
    """The divisions by exponent: one number for all, or a list of `MiB:number`.

    In a list the first also stands for smaller sizes, each for those up to the next, and `>` for
    all larger ones: where it stands alone, for those above 1 MiB.
    """
    if is_integer_text(value):
        return dict.fromkeys(range(16), int(value))
    made: dict[int, int] = {}
    last = 1
    for item in value.strip("[]").split(","):
        bound, _, number = item.partition(":")
        if not is_integer_text(number) or not (bound == ">" or is_integer_text(bound)):
            raise ConfigError(f"the allocator's settings {text!r} have the divisions {item!r}")
        start = last if bound == ">" else max(int(bound).bit_length() - 1, 0)
        filled = range(start, 16) if bound == ">" else range(0 if not made else start, start + 1)
        made |= dict.fromkeys(filled, int(number))
        last = start + 1
    return made
