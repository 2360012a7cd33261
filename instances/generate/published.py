"""Published benchmark suites: addresses, hashes and download.

The files belong to others (MIT licence, © Microsoft) and do not come with Stagecut; `published.csv`
lists path, source (repository, commit and path) and SHA-256 of each.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ..common.errors import InputError

#: Address of the server of sources; a mirror must serve the same paths.
SERVER = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class PublishedFile:
    """One file of a suite: its path below the cache, its source, its SHA-256."""

    path: str
    source: str
    sha256: str


def published_files() -> tuple[PublishedFile, ...]:
    """Return every published file that can be fetched."""
    text = files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(PublishedFile(**row) for row in csv.DictReader(text.splitlines()))


def published_folder() -> Path:
    """Return the folder of published files, which ``stagecut instances fetch`` fills.

    Returns
    -------
    Path
        The environment variable ``STAGECUT_BENCHMARKS``, else a folder in the user's cache.

    Examples
    --------
    >>> published_folder().is_absolute() or "STAGECUT_BENCHMARKS" in os.environ
    True
    """
    from platformdirs import user_cache_path

    given = os.environ.get("STAGECUT_BENCHMARKS")
    return Path(given) if given else user_cache_path("stagecut") / "published"


def fetch(
    folder: Path,
    *,
    below: str = "",
    server: str = SERVER,
    on_file: Callable[[PublishedFile], None] | None = None,
) -> list[Path]:
    """Download the published files that `folder` lacks, check their SHA-256, and return all paths.

    Files go under their own paths; only those whose path begins with `below`, such as
    ``placement/throughput``. InputError if nothing matches, the server, or mirror, cannot be
    reached, or a file differs from the listed hash.
    """
    import pooch
    import requests

    wanted = [file for file in published_files() if file.path.startswith(below)]
    if not wanted:
        parts = sorted({file.path.partition("/")[0] for file in published_files()})
        raise InputError(
            f"fetch: no published file begins with {below!r}; name one of {', '.join(parts)}, or a "
            "folder or file in it"
        )
    shelf = pooch.create(
        path=folder,
        base_url="",
        registry={file.path: f"sha256:{file.sha256}" for file in wanted},
        urls={file.path: f"{server.rstrip('/')}/{file.source}" for file in wanted},
        retry_if_failed=1,
    )
    pooch.get_logger().setLevel("WARNING")
    paths = []
    for file in wanted:
        try:
            paths.append(Path(shelf.fetch(file.path)))
        except requests.RequestException as error:
            raise InputError(
                f"fetch: {file.path}: cannot be downloaded from {server} ({error}); "
                "try again, or name a mirror with --mirror"
            ) from None
        except ValueError:
            raise InputError(
                f"fetch: {file.path}: what {server} serves is not the published file "
                "(its SHA-256 differs); try another mirror"
            ) from None
        except OSError as error:
            raise InputError(f"fetch: {folder}: cannot be written ({error})") from None
        if on_file is not None:
            on_file(file)
    return paths
