"""Colours, fonts and files of all pictures by matplotlib.

Any two colours of a palette differ by at least 15 (CIE 1976, in Lab) for normal vision and under
simulated deuteranopia and protanopia; a test checks that.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ...instances.formats.writing import PICTURES, check_target, write_whole

#: Colours of a timeline's bars and their names in the legend, by kind of action. Bars with a number
#: are light enough for dark text.
BARS = {
    "F": ("#7fb2e5", "forward"),
    "B": ("#f0a848", "backward"),
    "I": ("#f0a848", "backward: inputs"),
    "W": ("#f7ee9a", "backward: weights"),
    "receive": ("#d6d6d6", "receive"),
    "send": ("#9c9c9c", "send"),
    "reduce": ("#914691", "all-reduce"),
    "step": ("#557328", "optimizer step"),
    "message": ("#9c9c9c", "transfer"),
}

#: Colours and names of a sharding's collectives.
COLLECTIVES = {
    "forward": ("#7fb2e5", "forward"),
    "backward": ("#f0a848", "backward"),
    "all-gather": ("#f7ee9a", "all-gather"),
    "reduce-scatter": ("#557328", "reduce-scatter"),
    "all-reduce": ("#914691", "all-reduce"),
    "all-to-all": ("#9c9c9c", "all-to-all"),
    "rooted": ("#d6d6d6", "from or to one device"),
}

#: Colours and names of all bars of timelines.
COLOURS = BARS | COLLECTIVES

#: Fills of devices and stages, light enough for dark text.
FILLS = (
    "#8cc4ee", "#f5b65a", "#cdbeaf", "#eb7373", "#9191eb", "#befaaf", "#dc73af", "#82fafa",
)  # fmt: skip

#: Colours of lines; after Okabe and Ito.
LINES = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#000000", "#d55e00", "#7a5230",
)  # fmt: skip

#: Styles of lines once all colours are used, and markers of methods.
STYLES, MARKERS = ("-", "--", ":"), ("o", "s", "^", "D", "v", "P", "X", "*")

#: Colours of devices' loads, and of their memory.
COMPUTE, TRANSFER, SYNCHRONISE, MEMORY = "#3b6fb6", "#e08a3c", "#b65a8c", "#5a9e6f"

#: Decorator of functions that draw: dollar signs in names begin no formula.
names_as_they_are = rc_context({"text.parse_math": False})


class ShownFigure(Figure):
    """Figure that notebooks show by itself, without pyplot."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        with rc_context({"text.parse_math": False}):
            self.savefig(data, format="png", dpi=110)
        return data.getvalue()


def save_picture(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure into a PNG, SVG or PDF file, whole or not at all.

    The caller must be decorated by `names_as_they_are`, as ticks are drawn here. InputError if the
    ending is another, or the file cannot be written.
    """
    check_target(path, PICTURES)
    data = BytesIO()
    figure.savefig(data, format=path.suffix.lower()[1:], dpi=dpi)
    write_whole(path, data.getvalue())


def line_of(number: int) -> tuple[str, str]:
    """Return colour and style of a line by its number; they repeat after 24 lines."""
    return LINES[number % len(LINES)], STYLES[number // len(LINES) % len(STYLES)]
