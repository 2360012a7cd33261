"""What all pictures by matplotlib share: names are no formulas, files are whole or not there."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ...instances.formats.writing import PICTURES, check_target, write_whole

#: Decorates what draws: dollar signs in names begin no formula.
names_as_they_are = rc_context({"text.parse_math": False})


class ShownFigure(Figure):
    """A figure that notebooks show by itself, without pyplot."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        with rc_context({"text.parse_math": False}):
            self.savefig(data, format="png", dpi=110)
        return data.getvalue()


def save_picture(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure into a PNG, SVG or PDF file, whole or not at all.

    To be called by a function that `names_as_they_are` decorates: ticks are written here.

    Raises
    ------
    InputError
        If the file's ending is another, or it cannot be written.
    """
    check_target(path, PICTURES)
    data = BytesIO()
    figure.savefig(data, format=path.suffix.lower()[1:], dpi=dpi)
    write_whole(path, data.getvalue())
