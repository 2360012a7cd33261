"""How large objects show themselves: in one line, and in notebooks as a small table."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .escape import markup, one_line


class Summarised(ABC):
    """A base of dataclasses (with ``repr=False``) whose fields are too many to print."""

    @abstractmethod
    def summary(self) -> dict[str, object]:
        """Return what to show, by name."""

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={shown(value)}" for name, value in self.summary().items())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows; texts from files are escaped."""
        rows = "".join(
            f"<tr><th>{markup(name)}</th><td>{markup(shown(value))}</td></tr>"
            for name, value in self.summary().items()
        )
        title = markup(type(self).__name__)
        return f"<table><thead><tr><th colspan='2'>{title}</th></tr></thead>{rows}</table>"


def shown(value: object) -> str:
    """Return a value as one line: numbers with six digits.

    Examples
    --------
    >>> shown(1 / 3), shown("gpt\\n2")
    ('0.333333', 'gpt 2')
    """
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))
