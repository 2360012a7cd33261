"""The file of measured kernels: what is wrong with it is told, and costs no measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from stagecut.instances.pytorch.operator_times import Cache, Timing


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    store = Cache(tmp_path / "new" / "kernels", "cpu")
    store.timings["matmul"] = Timing(1.0, 0.1, 4e9)
    store.save()
    again = Cache(tmp_path / "new" / "kernels", "cpu")
    assert again.timings == store.timings
    assert not store.notes + again.notes


@pytest.mark.parametrize(
    "content",
    [b"", b'{"matmul": [1.0, 0', b"[1, 2]", b'{"matmul": [1]}', b'{"matmul": [-1, 0, 4e9]}',
     b'{"matmul": ["1", 0, 4e9]}', b'{"matmul": [1e400, NaN, 4e9]}', b"\xff\xfe{", b"null"],
)  # fmt: skip
def test_a_damaged_file_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = Cache(tmp_path, "cpu").path
    assert path is not None
    path.write_bytes(content)
    store = Cache(tmp_path, "cpu")
    assert not store.timings
    assert "damaged" in store.notes[0]
    store.save()
    assert not Cache(tmp_path, "cpu").notes


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Cache(tmp_path / "file" / "kernels", "cpu")
    store.save()
    assert "not kept" in store.notes[0]
