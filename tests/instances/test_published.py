"""Fetching the published suites, from a server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import stagecut
from stagecut import InputError
from stagecut.instances.generate.published import fetch, published_files

SUITE = "placement/human-experts"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without talking."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def mirror(tmp_path: Path, benchmarks: Path) -> Iterator[str]:
    """A server that has one suite, under the paths of its source."""
    for file in published_files():
        if file.path.startswith(SUITE):
            copy = tmp_path / "mirror" / file.source
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((benchmarks / file.path).read_bytes())
    handler = partial(Quiet, directory=str(tmp_path / "mirror"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_fetched_files_are_the_published_ones(
    mirror: str, tmp_path: Path, benchmarks: Path
) -> None:
    paths = fetch(tmp_path / "cache", below=SUITE, server=mirror)
    assert len(paths) == 6
    for path in paths:
        original = benchmarks / path.relative_to(tmp_path / "cache")
        assert path.read_bytes() == original.read_bytes()
    seen: list[str] = []
    fetch(tmp_path / "cache", below=SUITE, server="http://127.0.0.1:9",
          on_file=lambda file: seen.append(file.path))  # all there: asks nobody  # fmt: skip
    assert len(seen) == 6


def test_a_file_that_was_changed_is_refused(mirror: str, tmp_path: Path) -> None:
    file = next(file for file in published_files() if file.path.startswith(SUITE))
    (tmp_path / "mirror" / file.source).write_text("{}")
    with pytest.raises(InputError, match="SHA-256 differs"):
        fetch(tmp_path / "cache", below=SUITE, server=mirror)


def test_a_missing_file_and_a_dead_server_are_one_line(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch(tmp_path / "cache", below="piper", server=mirror)
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch(tmp_path / "cache", below="piper", server="http://127.0.0.1:9")
    with pytest.raises(InputError, match="no published file begins with 'nothing'"):
        fetch(tmp_path / "cache", below="nothing")


def test_all_published_files_are_listed_by_name() -> None:
    counts = {
        suite: sum(file.path.startswith(suite) for file in published_files())
        for suite in ("placement/throughput", "placement/latency", "piper", "pipedream", SUITE)
    }
    assert list(counts.values()) == [16, 8, 3, 14, 6]


def test_a_published_workload_is_loaded_by_its_name(
    tmp_path: Path, benchmarks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAGECUT_BENCHMARKS", str(benchmarks))
    assert stagecut.load("pipedream/vgg16.txt").n == 41
    monkeypatch.setenv("STAGECUT_BENCHMARKS", str(tmp_path))
    with pytest.raises(InputError, match=r"stagecut instances fetch pipedream/vgg16\.txt"):
        stagecut.load("pipedream/vgg16.txt")
