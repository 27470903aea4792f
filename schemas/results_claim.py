"""Whose results a folder holds: those of the configurations in one folder, where Snakemake's notes
on how they were made are.

Such notes name files by their paths. Where another folder has made these files anew since, the
notes are of others: so the results and their folder keep the same claim, with its time, and notes
from before it do not count. All notes count of a folder that claims results for the first time,
such as those of runs by Snakemake itself.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from math import inf
from pathlib import Path

from tightfit.util.errors import ConfigError

CLAIM_FILE = ".configuration_folder"
"""In the results: the folder of their configurations, from there, and the claim."""
CLAIMS_FILE = Path(".snakemake", "claimed_results.json")
"""In the folder of configurations: the claim on each folder of results, by its path."""
_CLAIM = re.compile(r"\d+\.\d+ [0-9a-f]{32}")
"""The time of a claim, and what tells it from all others."""


def claim_results(results: Path, folder: Path, dry_run: bool) -> None:
    """Makes results those of the configurations in a folder, unless the run is dry.

    Raises ConfigError if they are those of another folder, which is there and has notes on them.
    """
    file = results / CLAIM_FILE
    owner, claim = _read_claim(results)
    owned = _read_claims(owner).values() if owner is not None else []
    if owner is not None and claim in owned and owner.resolve() != folder.resolve():
        raise ConfigError(
            f"results: {results} holds the results of configurations in {owner.resolve()}: name "
            f"another folder, or remove {file} if these are not needed any more"
        )
    claims = _read_claims(folder)
    if dry_run or (claim and claims.get(_key(results, folder)) == claim):
        return
    results.mkdir(parents=True, exist_ok=True)
    since = time.time() if _key(results, folder) in claims else 0.0
    claim = f"{since} {uuid.uuid4().hex}"
    claims_file = folder / CLAIMS_FILE
    claims_file.write_text(json.dumps({**claims, _key(results, folder): claim}, indent=1) + "\n")
    file.write_text(f"{os.path.relpath(folder.resolve(), results.resolve())}\n{claim}\n")


def find_claim_time(results: Path, folder: Path) -> float:
    """The time since which Snakemake's notes in a folder are on these results, in seconds since the
    epoch: infinite if others have claimed them since, 0 if the folder never claimed them."""
    claim = _read_claims(folder).get(_key(results, folder))
    if claim is None:
        return 0.0
    return float(claim.partition(" ")[0]) if _read_claim(results)[1] == claim else inf


def _key(results: Path, folder: Path) -> str:
    """The path of results from a folder if they are below it, else the whole path."""
    whole = results.absolute().parent.resolve() / results.name
    here = folder.resolve()
    return str(whole.relative_to(here) if here in whole.parents else whole)


def _read_claim(results: Path) -> tuple[Path | None, str]:
    """The folder whose configurations results are of, and its claim; none and "" if unknown."""
    try:
        owner, _, claim = (results / CLAIM_FILE).read_text().partition("\n")
    except (OSError, ValueError):
        return None, ""
    return results / owner.strip(), claim.strip()


def _read_claims(folder: Path) -> dict[str, str]:
    try:
        claims = json.loads((folder / CLAIMS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(claims, dict):
        return {}
    return {key: claim for key, claim in claims.items() if _CLAIM.fullmatch(str(claim))}
