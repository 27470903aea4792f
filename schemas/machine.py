"""`tightfit.machine/1`: devices that need not be here, with the memories and links beside them.

A JSON file: sizes are bytes, times seconds, speeds operations or bytes a second. `sources` says
where each figure is from.

    {"artifact": "tightfit.machine/1", "name": "...",
     "devices": [{"name": "cuda:0", "memory": 80000000000, "flops": {"bfloat16": 9.8e14, ...},
                  "bandwidth": 3.35e12, "latency": 4e-6}],
     "memories": [{"name": "host", "memory": 64000000000, "bandwidth": 3e11}],
     "links": [{"between": ["cuda:0", "host"], "bandwidth": 2e10, "latency": 1e-5,
                "overhead": 2e-5, "overhead_per_byte": 0, "shared": false}],
     "sources": {"memory": "..."}}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tightfit.schemas.config_errors import find_closest
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.util.errors import ArtifactError, ConfigError

MACHINE_ARTIFACT = "tightfit.machine/1"
MACHINES = Path(__file__).parent / "machines"
"""The folder of the descriptions that come with tightfit, each named like its machine."""

_MOST_BYTES = 1 << 20
_MOST_ITEMS = 4096
_LOCAL_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_RESOURCE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*(:\d+)?")

NumberRange = tuple[float, float]
_SIZES: NumberRange = (1, 1e18)
_FLOPS: NumberRange = (1e6, 1e21)
_BANDWIDTHS: NumberRange = (1e3, 1e18)
_LINKS: NumberRange = (0, 1e18)
_LATENCIES: NumberRange = (0, 1)
_PER_BYTE: NumberRange = (0, 1e-3)


@dataclass(frozen=True)
class MachineDevice:
    """A device: bytes of memory and, where its times are to be predicted, operations a second by
    dtype, bytes a second to its memory and seconds that any call takes. `flops` has the key ""
    where one figure holds for all dtypes."""

    name: str
    memory: int
    flops: dict[str, float] = field(default_factory=dict)
    bandwidth: float | None = None
    latency: float = 0.0

    @property
    def kind(self) -> str:
        """The type of the device: "cuda" of "cuda:0"."""
        return self.name.partition(":")[0]

    def speed(self, dtype: str) -> float:
        """Operations a second on numbers of a dtype: those of float32 where it is not named, the
        least of all where that is not named either."""
        common = self.flops.get("", self.flops.get("float32", min(self.flops.values())))
        return self.flops.get(dtype, common)


@dataclass(frozen=True)
class MachineMemory:
    """A memory that belongs to no device, such as the host's or a disk, in bytes; `bandwidth` are
    the bytes a second that a processor beside it reads and writes, None where nothing computes."""

    name: str
    memory: int
    bandwidth: float | None = None


@dataclass(frozen=True)
class MachineLink:
    """A way between two devices or memories; `shared` where both directions share the bandwidth. A
    `bandwidth` of 0 is a way that nothing takes. A transfer takes `overhead` seconds of what
    computes on the device, and `overhead_per_byte` more for each byte."""

    between: tuple[str, str]
    bandwidth: float
    latency: float = 0.0
    shared: bool = False
    overhead: float = 0.0
    overhead_per_byte: float = 0.0


@dataclass(frozen=True)
class Machine:
    """A machine; `sources` are texts that say where its figures are from."""

    name: str
    devices: list[MachineDevice]
    memories: list[MachineMemory] = field(default_factory=list)
    links: list[MachineLink] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)

    def single_device(self, path: Path | str) -> MachineDevice:
        """The one device that a step is planned for. Raises ConfigError, which names the file,
        where there are several or its speeds are not said."""
        if len(self.devices) != 1:
            raise ConfigError(
                f"{path}: describes {len(self.devices)} devices, and a step is planned for one"
            )
        device = self.devices[0]
        if not device.flops or device.bandwidth is None:
            lacking = "bandwidth" if device.flops else "flops"
            raise ConfigError(f"{path}: {device.name} has no {lacking}, so that no time is known")
        if device.kind not in ("cpu", "cuda"):
            raise ConfigError(f"{path}: plans are made for cpu and cuda, and not for {device.name}")
        return device


def resolve_machine_file(device: str) -> Path | None:
    """The description that a device's name in a configuration stands for: one of `MACHINES`, or a
    path that ends with ".json"; None for "cpu", "cuda" and "cuda:1", which are here. Raises
    ConfigError for any other name."""
    if _LOCAL_DEVICE.fullmatch(device):
        return None
    if device.endswith(".json"):
        return Path(device)
    if device in machine_names():
        return MACHINES / f"{device}.json"
    known = ", ".join(machine_names())
    described = f", a described device ({known})" if known else ""
    raise ConfigError(
        f"{json.dumps(device)} was found, expected cpu, cuda, cuda:NUMBER{described} or the path "
        "of a description (.json)"
    )


def machine_path(given: str) -> Path:
    """The description that an option names: one of `MACHINES` by its name, or a path. Raises
    ConfigError for what is neither."""
    if given in machine_names():
        return MACHINES / f"{given}.json"
    if "/" not in given and "." not in given and not Path(given).exists():
        raise ConfigError(
            f"there is no description {given!r}, expected {', '.join(machine_names())} or the path "
            "of one (.json)"
        )
    return Path(given)


def machine_names() -> list[str]:
    """The names of the descriptions that come with tightfit."""
    return sorted(path.stem for path in MACHINES.glob("*.json"))


def read_machine(path: Path | str) -> Machine:
    """Reads a description; raises ArtifactError, which names the file and all figures that are
    amiss."""
    from tightfit.schemas import store

    document = store.read_json(path, _MOST_BYTES)
    return _MachineReader(str(path)).machine(document)


class _FigureError(Exception):
    """What one figure of a description has wrong, in a sentence."""


class _MachineReader:
    """Reads a description, and goes on behind a figure that is amiss, so that all are told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[str] = []

    def machine(self, document: dict[str, Any]) -> Machine:
        found = document.get("artifact")
        if found != MACHINE_ARTIFACT:
            self.problems.append(
                f"artifact is {_format_value(found)}, expected {MACHINE_ARTIFACT!r}"
            )
            self.raise_problems()
        names = ("devices", "memories", "links", "sources")
        self.check_keys(document, "the machine", ("artifact", "name", "devices"), names[1:])
        machine = Machine(
            name=self.value(document, "", "name", _parse_text),
            devices=[self.device(*item) for item in self.items(document, "devices")],
            memories=[self.memory(*item) for item in self.items(document, "memories")],
            links=[self.link(*item) for item in self.items(document, "links")],
            sources=self.value(document, "", "sources", _parse_sources, {}),
        )
        self.raise_problems()
        self.problems += _find_place_problems(machine)
        self.raise_problems()
        return machine

    def device(self, where: str, given: dict[str, Any]) -> MachineDevice:
        self.check_keys(given, where, ("name", "memory"), ("flops", "bandwidth", "latency"))
        bandwidth = None
        if given.get("bandwidth") is not None:
            bandwidth = self.number(given, where, "bandwidth", _BANDWIDTHS)
        return MachineDevice(
            name=self.value(given, where, "name", _parse_place),
            memory=self.value(given, where, "memory", _parse_size),
            flops=self.value(given, where, "flops", _parse_flops, {}),
            bandwidth=bandwidth,
            latency=self.number(given, where, "latency", _LATENCIES, 0.0),
        )

    def memory(self, where: str, given: dict[str, Any]) -> MachineMemory:
        self.check_keys(given, where, ("name", "memory"), ("bandwidth",))
        bandwidth = None
        if given.get("bandwidth") is not None:
            bandwidth = self.number(given, where, "bandwidth", _BANDWIDTHS)
        return MachineMemory(
            self.value(given, where, "name", _parse_place),
            self.value(given, where, "memory", _parse_size),
            bandwidth,
        )

    def link(self, where: str, given: dict[str, Any]) -> MachineLink:
        times = {"latency": _LATENCIES, "overhead": _LATENCIES, "overhead_per_byte": _PER_BYTE}
        self.check_keys(given, where, ("between", "bandwidth"), (*times, "shared"))
        return MachineLink(
            between=self.value(given, where, "between", _parse_ends),
            bandwidth=self.number(given, where, "bandwidth", _LINKS),
            shared=self.value(given, where, "shared", _parse_truth, False),
            **{
                name: self.number(given, where, name, within, 0.0) for name, within in times.items()
            },
        )

    def items(self, document: dict[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The mappings of a list, each with where it stands."""
        given = document.get(key, [])
        if not isinstance(given, list) or len(given) > _MOST_ITEMS:
            self.problems.append(f"{key} is no list")
            return
        if key == "devices" and key in document and not given:
            self.problems.append("has no devices")
        for index, item in enumerate(given):
            where = f"{key}[{index}]"
            if isinstance(item, dict):
                yield where, item
            else:
                self.problems.append(f"{where} is {_format_value(item)}, not a mapping")

    def check_keys(
        self,
        given: dict[str, Any],
        where: str,
        needed: tuple[str, ...],
        others: tuple[str, ...] = (),
    ) -> None:
        """Notes the keys that are not known, with those that may be meant, and those missing."""
        known, meant = (*needed, *others), []
        for key in given:
            if key not in known:
                close = find_closest(key, (name for name in known if name not in given))
                meant.append(close)
                hint = f"did you mean {close}" if close else f"expected {', '.join(known)}"
                self.problems.append(f"{where} has the unknown key {_format_value(key)}, {hint}")
        missing = (key for key in needed if key not in given and key not in meant)
        self.problems += [f"{where} has no {key}" for key in missing]

    def value(
        self,
        given: dict[str, Any],
        where: str,
        key: str,
        parse: Callable[[Any, str], Any],
        default: Any = None,
    ) -> Any:
        """What a key has, as it is parsed; the default where it is missing or amiss."""
        if key not in given:
            return default
        try:
            return parse(given[key], f"{where}.{key}" if where else key)
        except _FigureError as error:
            self.problems.append(str(error))
            return default

    def number(
        self,
        given: dict[str, Any],
        where: str,
        key: str,
        within: NumberRange,
        default: float | None = None,
    ) -> Any:
        """The number that a key has."""
        parse = partial(_parse_number, within=within)
        return self.value(given, where, key, parse, default)

    def raise_problems(self) -> None:
        """Raises ArtifactError with all that is wrong, if anything is."""
        if self.problems:
            raise ArtifactError(f"{self.path}: {'; '.join(dict.fromkeys(self.problems))}")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise _FigureError(sentence)


def _find_place_problems(machine: Machine) -> Iterator[str]:
    """What is wrong where each name has to stand for one place, and links lead from place to
    place."""
    names = [device.name for device in machine.devices]
    names += [memory.name for memory in machine.memories]
    yield from (f"names {name} twice" for name in names if names.count(name) > 1)
    for link in machine.links:
        for end in link.between:
            if end not in names:
                yield f"has a link to {end}, which is no device or memory"


def _parse_flops(given: Any, where: str) -> dict[str, float]:
    if not isinstance(given, Mapping):
        return {"": _parse_number(given, where, _FLOPS)}
    _require(bool(given), f"{where} names no dtype")
    for dtype in given:
        _require(dtype in DTYPE_BYTES, f"{where}: {_format_value(dtype)} is no dtype")
    return {
        dtype: _parse_number(figure, f"{where}.{dtype}", _FLOPS) for dtype, figure in given.items()
    }


def _parse_ends(given: Any, where: str) -> tuple[str, str]:
    two = isinstance(given, list) and len(given) == 2
    _require(two, f"{where} is {_format_value(given)}, expected two names")
    one, other = (_parse_place(end, where) for end in given)
    link = where.rpartition(".")[0]
    _require(one != other, f"{link} leads from {one} to itself, expected the names of two places")
    return one, other


def _parse_sources(given: Any, where: str) -> dict[str, str]:
    plain = isinstance(given, dict) and len(given) <= _MOST_ITEMS
    _require(plain, f"{where} is no mapping from figures to texts")
    return {key: _parse_text(source, f"{where}.{key}") for key, source in given.items()}


def _parse_text(given: Any, where: str) -> str:
    good = isinstance(given, str) and given.strip() and given.isprintable()
    _require(bool(good), f"{where} is {_format_value(given)}, not a text")
    return str(given)


def _parse_truth(given: Any, where: str) -> bool:
    _require(isinstance(given, bool), f"{where} is {_format_value(given)}, not a truth")
    return bool(given)


def _parse_place(given: Any, where: str) -> str:
    good = isinstance(given, str) and _RESOURCE_NAME.fullmatch(given) is not None
    _require(good, f"{where} is {_format_value(given)}, not a name such as cuda:0 or host")
    return str(given)


def _parse_size(given: Any, where: str) -> int:
    figure = _parse_number(given, where, _SIZES)
    whole = figure == int(figure)
    _require(whole, f"{where} is {_format_value(given)}, not a number of bytes")
    return int(given)


def _parse_number(given: Any, where: str, within: NumberRange) -> float:
    plain = isinstance(given, int | float) and not isinstance(given, bool)
    _require(plain, f"{where} is {_format_value(given)}, not a number")
    low, high = within
    possible = (isinstance(given, int) or math.isfinite(given)) and low <= given <= high
    said = f"{where} is {_format_value(given)}, expected a number from {low:g} to {high:g}"
    _require(possible, said)
    return float(given)


def _format_value(given: Any) -> str:
    """A value in a sentence, short and on one line."""
    if given is None:
        return "nothing"
    text = repr(given) if not isinstance(given, int) or given < 10**40 else "a very large number"
    return text if len(text) <= 60 else f"{text[:57]}..."
