"""Greedy: a first plan in no time."""

from __future__ import annotations
