"""Placement rules as values: what they refuse, and which nodes patterns match."""

from __future__ import annotations

from typing import Any

import pytest
from conformance import chain

from stagecut import InputError, PlacementRules
from stagecut.instances.model.placement_rules import NO_RULES, matching


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"pins": ("ab",)}, "must be a tuple of tuples"),
        ({"pins": (("a",),)}, "is no pair of a node and a number"),
        ({"pins": (("a", 1.5),)}, "is no pair of a node and a number"),
        ({"fixed": (("a", True),)}, "is no pair of a node and a number"),
        ({"pins": (("", 0),)}, "it must be a text, not empty"),
        ({"apart": (("a", "b\0"),)}, "without null bytes"),
        ({"together": ((),)}, "a rule without patterns"),
        ({"together": ("ab",)}, "must be a tuple of tuples"),
        ({"max_stages": 0}, "at least 1"),
    ],
)
def test_what_is_no_rule_is_refused(rules: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        PlacementRules(**rules)


def test_lists_become_tuples_and_no_rules_are_false() -> None:
    rules = PlacementRules(pins=[["a", 0]], apart=[["a", "b"]])  # type: ignore[arg-type]
    assert rules == PlacementRules(pins=(("a", 0),), apart=(("a", "b"),))
    assert hash(rules) != hash(NO_RULES)
    assert rules
    assert not NO_RULES


@pytest.mark.parametrize(
    ("pattern", "nodes"),
    [
        ("a", [0]), ("layer.*", [1, 2]), ("layer.?", [1]), ("layers[0]", [3]), ("*[1a]", [0, 1, 2]),
        ("7", [2]),
    ],
)  # fmt: skip
def test_patterns_match_ids_and_names_as_they_stand_or_as_globs(
    pattern: str, nodes: list[int]
) -> None:
    workload = chain(
        [1.0] * 4, ids=("a", "b", 7, "d"), names=("in", "layer.1", "layer.11", "layers[0]")
    )
    assert matching(pattern, workload, "pin") == nodes
