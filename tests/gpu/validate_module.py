"""Validates a planned module as `tightfit validate` does, and leaves what it found as JSON beside
the measurement: `python -m tests.gpu.validate_module validate ... --out MEASUREMENT`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tightfit.schemas.measurement import read_measurement


def main() -> int:
    """The exit code of the stage."""
    words = sys.argv[1:]
    out = Path(words[words.index("--out") + 1])
    code = subprocess.run([sys.executable, "-m", "tightfit", *words], check=False).returncode
    if out.exists():
        found = asdict(read_measurement(out))
        out.with_suffix(".json").write_text(json.dumps(found, default=str))
    return code


if __name__ == "__main__":
    sys.exit(main())
