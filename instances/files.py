"""Reading and writing files: format found by content, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from .pipedream_txt import is_pipedream, read_pipedream
from .piper_json import is_piper, read_piper
from .placement_json import read_placement
from .source import read_source
from .workload import Workload


def load(name_or_path: str | Path) -> Workload:
    """Return the workload in a file."""
    path = Path(name_or_path)
    source = read_source(path)
    if is_piper(source):
        return read_piper(source)
    if is_pipedream(source):
        return read_pipedream(source)
    return read_placement(json.loads(path.read_text()), path.stem)
