"""Escaping of text from files: a function for each language that is written.

Names of workloads, nodes, devices and methods come from files, and may hold anything. No text of a
file may become code, markup or a formula in the output.
"""

from __future__ import annotations

import html
import json
import shlex


def plain(text: str) -> str:
    """Return a text for terminals and pictures, without control characters but line breaks.

    ANSI escapes, separators of lines and marks of direction are written as numbers.

    Examples
    --------
    >>> plain("a\\x1b[31mb")
    'a\\\\u001b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)


def one_line(text: str) -> str:
    """Return a text for a comment (of a shell, TOML or Python): one printable line."""
    return plain(" ".join(text.split()))


def docstring(text: str) -> str:
    """Return a text for a Python string between triple double quotes, which it cannot close.

    Code itself takes `repr`, which Python reads back whatever the text.
    """
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def markup(text: str) -> str:
    """Return a text for HTML and SVG, inside elements and attributes."""
    return html.escape(plain(text))


def script(value: object) -> str:
    """Return a value for a script inside an HTML page, as JSON: it cannot close the element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def shell(text: str) -> str:
    """Return a word of a shell's line, with quotes where it needs them."""
    return shlex.quote(text)


def csv(value: object) -> object:
    """Return a cell of a table: a text that a spreadsheet would take for a formula begins with '.

    Quotes and separators are left to the writer of the table.
    """
    if not isinstance(value, str):
        return value
    return f"'{value}" if value.lstrip().startswith(("=", "+", "-", "@")) else value
