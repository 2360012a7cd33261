"""What `test_training_files` shares with other tests."""

from __future__ import annotations

from typing import Any


def _configuration(time: float, again: bool = False) -> dict[str, Any]:
    return {
        "id": "activation recomp" if again else "vanilla",
        "timePerSample": time,
        "parameterSize": 8.0,
        "memoryUsageA": 1.0 if again else 4.0,
        "memoryUsageB": 16.0,
        "syncTimeFw": {},
        "syncTimeBw": {},
    }


def piper() -> dict[str, Any]:
    """Return a Piper JSON of 3 nodes in a line, with debug fields."""
    nodes: list[dict[str, Any]] = [
        {
            "id": v + 5,
            "name": f"layer {v}",
            "TMPCs": {
                "1": [_configuration(4.0), _configuration(5.0, True)],
                "2": [_configuration(2.5)],
            },
            "debug": [1, 2],
        }
        for v in range(3)
    ]
    nodes[1]["TMPCs"]["2"][0]["syncTimeFw"] = {"5": 3.0}
    nodes[1]["TMPCs"]["2"][0]["syncTimeBw"] = {"7": 2.0}
    return {
        "maxMemoryPerDevice": 100.0,
        "maxDevices": 4,
        "bandwidth": 10.0,
        "mbsInBatch": 8,
        "nodes": nodes,
        "edges": [
            {"sourceId": 5, "destId": 6, "communicationCost": 10.0},
            {"sourceId": 6, "destId": 7, "communicationCost": 20.0, "debug": "x"},
        ],
        "comment": "trailing",
    }
