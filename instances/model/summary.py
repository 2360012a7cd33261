"""Short representations of objects, and their tables in notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any

from ..common.escape import markup, one_line


class Tabled(ABC):
    """Base of objects with a table in notebooks."""

    @abstractmethod
    def summary(self) -> dict[str, object]:
        """Return the values to display, by name."""

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows; texts from files are escaped."""
        rows = "".join(
            f"<tr><th>{markup(name)}</th><td>{markup(shown(value))}</td></tr>"
            for name, value in self.summary().items()
        )
        title = markup(type(self).__name__)
        return f"<table><thead><tr><th colspan='2'>{title}</th></tr></thead>{rows}</table>"


class Summarised(Tabled):
    """Base of dataclasses (with ``repr=False``) with a short representation."""

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={shown(value)}" for name, value in self.summary().items())
        return f"{type(self).__name__}({facts})"


class ByFields(Tabled):
    """Base of dataclasses that are shown by their fields, except those that are None or empty."""

    def summary(self) -> dict[str, object]:
        """Return the fields that are not None or empty, named objects by their names."""
        this: Any = self
        values = {item.name: getattr(self, item.name) for item in fields(this)}
        return {
            field: getattr(value, "name", value) if isinstance(value, Tabled) else value
            for field, value in values.items()
            if value is not None and value != () and not (isinstance(value, Tabled) and not value)
        }


def shown(value: object) -> str:
    """Return a value as one line: numbers with six digits.

    Examples
    --------
    >>> shown(1 / 3), shown("gpt\\n2")
    ('0.333333', 'gpt 2')
    """
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))
