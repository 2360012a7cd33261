"""Reading and writing files: format found by content, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from .placement_json import read_placement
from .workload import Workload


def load(name_or_path: str | Path) -> Workload:
    """Return the workload in a file."""
    path = Path(name_or_path)
    return read_placement(json.loads(path.read_text()), path.stem)
