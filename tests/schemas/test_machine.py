"""Descriptions of devices: what is read of a sound one, and the sentence for each that is amiss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schemas.machine_descriptions import DEVICE, MACHINE, described
from tightfit.schemas.link import read_host_link
from tightfit.schemas.machine import MACHINES, machine_names, read_machine, resolve_machine_file
from tightfit.util.errors import ArtifactError, ConfigError

HOST = {"name": "host", "memory": 64_000_000_000}
LINK = {"between": ["cuda:0", "host"], "bandwidth": 2e10}


def written(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_the_machines_that_come_along_are_whole() -> None:
    assert machine_names() == ["a100", "h100", "rtx3060", "rtx4090", "t4"]
    for name in machine_names():
        path = resolve_machine_file(name)
        assert path is not None and path.parent == MACHINES
        machine = read_machine(path)
        device = machine.single_device(path)
        assert (machine.name, device.kind) == (name, "cuda")
        figures = {"memory", "bandwidth", "latency", *(f"flops.{dtype}" for dtype in device.flops)}
        assert set(machine.sources) == figures
        assert device.speed("float64") <= device.speed("float32") <= device.speed("float16")


def test_a_machine_with_a_memory_and_a_link(tmp_path: Path) -> None:
    several = [DEVICE, {"name": "cuda:1", "memory": 8}]
    document = {**MACHINE, "devices": several, "memories": [HOST], "links": [LINK]}
    machine = read_machine(written(tmp_path / "m.json", document))
    assert [device.name for device in machine.devices] == ["cuda:0", "cuda:1"]
    [link] = machine.links
    assert link.between == ("cuda:0", "host") and not link.shared
    assert (link.overhead, link.overhead_per_byte) == (0.0, 0.0)
    dear = {**LINK, "overhead": 2e-5, "overhead_per_byte": 1e-10}
    path = written(tmp_path / "n.json", {**MACHINE, "memories": [HOST], "links": [dear]})
    found = read_host_link(read_machine(path), path)
    assert (found.overhead, found.overhead_per_byte) == (2e-5, 1e-10)
    with pytest.raises(ConfigError, match="describes 2 devices, and a step is planned for one"):
        machine.single_device("m.json")


def test_a_dtype_that_is_not_named_is_as_fast_as_float32(tmp_path: Path) -> None:
    flops = {"float32": 2e12, "float16": 8e12}
    device = read_machine(described(tmp_path / "m.json", flops=flops)).devices[0]
    assert [device.speed(name) for name in ("float16", "bfloat16")] == [8e12, 2e12]
    halves = read_machine(described(tmp_path / "m.json", flops={"float16": 8e12})).devices[0]
    assert halves.speed("float64") == 8e12
    assert read_machine(described(tmp_path / "m.json")).devices[0].speed("bfloat16") == 1e12


def test_names_of_devices() -> None:
    assert [resolve_machine_file(name) for name in ("cpu", "cuda", "cuda:1")] == [None] * 3
    assert resolve_machine_file("mine/gpu.json") == Path("mine/gpu.json")
    for name in ("gpu", "../h100", "H100", "cuda:", ""):
        with pytest.raises(ConfigError, match="expected cpu, cuda, cuda:NUMBER, a described dev"):
            resolve_machine_file(name)


def test_no_described_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tightfit.schemas.machine.MACHINES", tmp_path)
    with pytest.raises(ConfigError, match="expected cpu, cuda, cuda:NUMBER or the path of a desc"):
        resolve_machine_file("h100")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"flops": 0}, r"devices\[0\].flops is 0, expected a number from 1e\+06 to 1e\+21"),
        ({"flops": -1e12}, r"devices\[0\].flops is -1000000000000.0, expected a number"),
        ({"flops": {}}, r"devices\[0\].flops names no dtype"),
        ({"flops": {"float33": 1e12}}, r"devices\[0\].flops: 'float33' is no dtype"),
        ({"flops": {"float32": "fast"}}, r"devices\[0\].flops.float32 is 'fast', not a number"),
        ({"flops": 10**400}, r"devices\[0\].flops is a very large number, expected a number"),
        ({"bandwidth": True}, r"devices\[0\].bandwidth is True, not a number"),
        ({"bandwidth": 5e-324}, r"devices\[0\].bandwidth is 5e-324, expected a number"),
        ({"latency": -1e-6}, r"devices\[0\].latency is -1e-06, expected a number from 0 to 1"),
        ({"latency": 60}, r"devices\[0\].latency is 60, expected a number from 0 to 1"),
        ({"memory": 0}, r"devices\[0\].memory is 0, expected a number from 1 to 1e\+18"),
        ({"memory": 1.5}, r"devices\[0\].memory is 1.5, not a number of bytes"),
        ({"memory": None}, r"devices\[0\].memory is nothing, not a number"),
        ({"name": "a/b"}, r"devices\[0\].name is 'a/b', not a name such as cuda:0 or host"),
        ({"speed": 1}, r"devices\[0\] has the unknown key 'speed'"),
    ],
)
def test_impossible_figures_are_named(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = described(tmp_path / "m.json", **changes)
    with pytest.raises(ArtifactError, match=f"m.json: {sentence}") as error:
        read_machine(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
        ('{"devices": NaN}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (" " * (1 << 20) + "{}", "more than 1048576"),
        ({}, "artifact is nothing, expected 'tightfit.machine/1'"),
        (
            {**MACHINE, "artifact": "tightfit.machine/2"},
            "artifact is 'tightfit.machine/2', expected 'tightfit.mach",
        ),
        ({**MACHINE, "nmae": ""}, "the machine has the unknown key 'nmae'"),
        ({"artifact": "tightfit.machine/1", "name": "m"}, "the machine has no devices"),
        ({**MACHINE, "name": " "}, "name is ' ', not a text"),
        ({**MACHINE, "devices": []}, "has no devices"),
        ({**MACHINE, "devices": 4}, "devices is no list"),
        ({**MACHINE, "devices": [4]}, r"devices\[0\] is 4, not a mapping"),
        ({**MACHINE, "devices": [{"name": "cpu"}]}, r"devices\[0\] has no memory"),
        ({**MACHINE, "devices": [DEVICE, DEVICE]}, "names cuda:0 twice"),
        ({**MACHINE, "memories": [{**HOST, "name": "cuda:0"}]}, "names cuda:0 twice"),
        ({**MACHINE, "links": [LINK]}, "has a link to host, which is no device or memory"),
        ({**MACHINE, "links": [{**LINK, "between": ["host"]}]}, r"links\[0\].between is \['host'"),
        (
            {**MACHINE, "links": [{**LINK, "between": ["cuda:0", "cuda:0"]}]},
            r"links\[0\] leads from cuda:0 to itself, expected the names of two places",
        ),
        ({**MACHINE, "links": [{**LINK, "shared": 1}]}, r"links\[0\].shared is 1, not a truth"),
        *(
            (
                {**MACHINE, "memories": [HOST], "links": [{**LINK, key: figure}]},
                rf"links\[0\].{key} is {said}",
            )
            for key, figure, said in (
                ("overhead", -1e-6, "-1e-06, expected a number from 0 to 1"),
                ("overhead", 2, "2, expected a number from 0 to 1"),
                ("overhead", None, "nothing, not a number"),
                ("overhead", True, "True, not a number"),
                ("overhead_per_byte", "dear", "'dear', not a number"),
                ("overhead_per_byte", 0.5, "0.5, expected a number from 0 to 0.001"),
                ("overhead_per_byte", 10**400, "a very large number, expected a number"),
            )
        ),
        ({**MACHINE, "sources": {"memory": 3}}, "sources.memory is 3, not a text"),
        ({**MACHINE, "sources": []}, "sources is no mapping"),
    ],
)
def test_what_is_no_description_is_told_in_a_sentence(
    tmp_path: Path, document: Any, sentence: str
) -> None:
    with pytest.raises(ArtifactError, match=sentence):
        read_machine(written(tmp_path / "m.json", document))


def test_all_that_is_wrong_is_told_with_the_keys_that_may_be_meant(tmp_path: Path) -> None:
    device = {**DEVICE, "bandwith": 1e12, "latency": 60}
    del device["bandwidth"]
    link = {"betwen": ["cuda:0", "host"], "bandwidth": "fast"}
    path = tmp_path / "m.json"
    written(path, {**MACHINE, "devices": [device], "memories": [{"name": "host"}], "links": [link]})
    with pytest.raises(ArtifactError) as error:
        read_machine(path)
    assert str(error.value).removeprefix(f"{path}: ").split("; ") == [
        "devices[0] has the unknown key 'bandwith', did you mean bandwidth",
        "devices[0].latency is 60, expected a number from 0 to 1",
        "memories[0] has no memory",
        "links[0] has the unknown key 'betwen', did you mean between",
        "links[0].bandwidth is 'fast', not a number",
    ]


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ({"name": "cuda:0", "memory": 8}, "cuda:0 has no flops, so that no time is known"),
        ({"name": "cuda:0", "memory": 8, "flops": 1e9}, "cuda:0 has no bandwidth"),
        ({**DEVICE, "name": "tpu:0"}, "plans are made for cpu and cuda, and not for tpu:0"),
    ],
)
def test_what_no_step_can_be_planned_for(
    tmp_path: Path, device: dict[str, Any], sentence: str
) -> None:
    machine = read_machine(written(tmp_path / "m.json", {**MACHINE, "devices": [device]}))
    with pytest.raises(ConfigError, match=sentence):
        machine.single_device("m.json")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(key=st.sampled_from([*DEVICE, "links", "memories", "sources", "devices"]), value=PLAIN)
def test_anything_in_any_place_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    path = tmp_path_factory.mktemp("m") / "m.json"
    if key in DEVICE:
        described(path, **{key: value})
    else:
        written(path, {**MACHINE, key: value})
    try:
        machine = read_machine(path)
    except ArtifactError as error:
        assert "m.json" in str(error)
    else:
        assert machine.devices
