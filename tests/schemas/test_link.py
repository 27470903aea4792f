"""Links in artifacts, configurations that name one, and frontiers of plans that take one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.schemas.machine_descriptions import described
from tightfit.schemas import store
from tightfit.schemas.actions import Action, Compute, ComputeLoss, Free, Offload, Prefetch
from tightfit.schemas.config import parse_config
from tightfit.schemas.frontier import FRONTIER, Frontier, ParetoPoint, read_frontier, write_frontier
from tightfit.schemas.link import HostLink, parse_host_link
from tightfit.schemas.schedule import read_schedule, schedule_link, write_schedule
from tightfit.util.errors import ArtifactError, ConfigError

LINK = HostLink(2e9, 1e-5, False, 1000, "cuda", to="disk")


def test_a_link_is_its_text() -> None:
    dear = replace(LINK, overhead=2e-5, overhead_per_byte=1e-10)
    for link in (LINK, dear, HostLink(math.inf), HostLink(0.0)):
        assert parse_host_link(link.text(), "file") == link
    assert "overhead" not in LINK.text() and dear.overhead_of(10**6) == pytest.approx(1.2e-4)
    assert (LINK.stream(True), LINK.stream(False)) == ("cuda/to-disk", "cuda/from-disk")
    assert LINK.other == "disk/memory" and '"memory": null' in LINK.text()


@pytest.mark.parametrize(
    "changes",
    [
        {"bandwidth": -1.0},
        {"bandwidth": "fast"},
        {"latency": None},
        {"shared": 1},
        {"to": ""},
        {"device": 3},
        {"more": 1},
        {"room": True},
        {"overhead": -1e-6},
        {"overhead": None},
        {"overhead": math.nan},
        {"overhead_per_byte": math.inf},
        {"overhead_per_byte": "dear"},
        {"overhead_per_byte": False},
    ],
)
def test_what_is_no_link_is_refused(changes: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(LINK.text()), **changes})
    for bad in (text, "[]", "{", "null"):
        with pytest.raises(ArtifactError, match="file: what it says of a link is none"):
            parse_host_link(bad, "file")


def test_a_schedule_names_its_link(tmp_path: Path) -> None:
    write_schedule(tmp_path / "plain.arrow", [])
    write_schedule(tmp_path / "linked.arrow", [], link=LINK)
    assert schedule_link(tmp_path / "plain.arrow") is None
    assert schedule_link(tmp_path / "linked.arrow") == LINK
    assert read_schedule(tmp_path / "linked.arrow") == []


def points() -> tuple[ParetoPoint, ParetoPoint, ParetoPoint]:
    first, loss, last = Compute(0), ComputeLoss(1), Compute(2)
    away: list[Action] = [first, Offload(0), Free(0), loss, Prefetch(0), last]
    plain = ParetoPoint(9, 1.0, 9, 1.0, False, False, 0, [first, loss, last], [], "captured")
    slow = replace(plain, peak=5, seconds=3.0, strategy_peak=5, strategy_seconds=3.0)
    sent = replace(slow, seconds=2.0, local_search=True, in_place=True, actions=away)
    return plain, sent, slow


def test_a_frontier_keeps_actions_its_link_and_what_is_beaten(tmp_path: Path) -> None:
    plain, sent, slow = points()
    made = Frontier("s", "m", "g", 9, 1.0, 3, 1.0, "", [plain, sent], 0, LINK, [slow])
    write_frontier(tmp_path / "f.arrow", made)
    found = read_frontier(tmp_path / "f.arrow")
    assert found == made
    assert found.without_transfers == [plain, slow]
    assert [point.transfers for point in found.points] == [False, True]
    assert sent.executions == plain.executions == [0, 1, 2]
    write_frontier(tmp_path / "g.arrow", replace(made, dominated=[slow, sent]))
    with pytest.raises(ArtifactError, match="with transfers is said to be beaten"):
        read_frontier(tmp_path / "g.arrow")


def test_an_older_frontier_is_refused(tmp_path: Path) -> None:
    older = store.ArtifactType(FRONTIER.name, 6, pa.schema([]))
    store.write(tmp_path / "f.arrow", older, [], {})
    with pytest.raises(ArtifactError, match=r"has version 6 .* reads tightfit\.frontier/7"):
        read_frontier(tmp_path / "f.arrow")


def configuration(**more: Any) -> dict[str, Any]:
    models = {"small": {"factory": "a.b:c", "strategies": ["offload"]}}
    return {"models": models, **more}


def with_link(path: Path, **changes: Any) -> Path:
    document = json.loads(described(path).read_text())
    link = {"between": ["cuda:0", "host"], "bandwidth": 1e9}
    document |= {"memories": [{"name": "host", "memory": 10}], "links": [link], **changes}
    path.write_text(json.dumps(document))
    return path


def test_a_configuration_names_the_machine_that_a_strategy_needs(tmp_path: Path) -> None:
    good, bare = with_link(tmp_path / "m.json"), described(tmp_path / "n.json")
    assert parse_config(configuration()).link_machine is None, "the link is measured"
    assert parse_config(configuration(machine=str(good))).link_machine == good
    own = parse_config(configuration(device=str(good)))
    assert (own.link_machine, own.machine) == (good, good)
    other = parse_config(configuration(device=str(bare), machine=str(good)))
    assert (other.link_machine, other.machine) == (good, bare)
    plain = parse_config({"models": {"small": {"factory": "a.b:c"}}})
    assert plain.link_machine is None
    for document, said in [
        (
            configuration(device=str(bare)),
            r"machine: .* names no memory 'host' to offload to: add to a copy of it "
            r'"memories": \[\{"name": "host", "memory": BYTES\}\], "links": \[\{"between": '
            r'\["cuda:0", "host"\], "bandwidth": BYTES_A_SECOND\}\]$',
        ),
        (configuration(machine="m.yaml"), "expected the path of a description"),
        (configuration(machine=str(tmp_path / "none.json")), "machine: .* cannot be read"),
        (
            configuration(machine=str(with_link(tmp_path / "o.json", links=[]))),
            r'has no link between cuda:0 and host: add "links": \[\{"between": \["cuda:0"',
        ),
    ]:
        with pytest.raises(ConfigError, match=said):
            parse_config(document)
