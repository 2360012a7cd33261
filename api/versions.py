"""Versions of installed packages, for provenance."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str:
    """Return the version of a package; ``unknown`` if it is not installed.

    Examples
    --------
    >>> installed("no-such-package")
    'unknown'
    """
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
