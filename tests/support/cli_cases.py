"""What `test_cli` shares with other tests."""

from __future__ import annotations

import json
from pathlib import Path


def placement_file(folder: Path, name: str = "a small net.json", **changes: object) -> Path:
    """A chain of four nodes in placement JSON."""
    data: dict[str, object] = {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": v, "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 2.0,
                "isBackwardNode": 0, "colorClass": v, "size": 30.0,
            }
            for v in range(4)
        ],
        "edges": [{"sourceId": v, "destId": v + 1, "cost": 0.5} for v in range(3)],
    }  # fmt: skip
    path = folder / name
    path.write_text(json.dumps(data | changes))
    return path
