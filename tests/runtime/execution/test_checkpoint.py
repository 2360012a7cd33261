"""Checkpoints: a run that was ended goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import launched  # noqa: E402
from run_workers import train  # noqa: E402

from stagecut import InputError  # noqa: E402
from stagecut.runtime.execution.checkpoint import newest  # noqa: E402


def run(
    tmp_path: Path, *, seed: int = 0, fault: str = "", schedule: str = "1f1b", **options: Any
) -> tuple[list[Any], list[int], str]:
    said = tmp_path / "said"
    said.unlink(missing_ok=True)
    results, codes = launched(
        2, train, seed, fault, schedule, {"timeout_s": 60.0, **options}, str(said)
    )
    return results, codes, said.read_text() if said.exists() else ""


def tensors(folder: Path, step: int) -> list[dict[str, Any]]:
    files = sorted((folder / f"step-{step:08}").glob("rank-*.pt"))
    assert len(files) == 2
    return [torch.load(file, weights_only=True) for file in files]


def same(a: Any, b: Any) -> bool:
    """Whether two nested states are equal, bit by bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(torch.equal(a, b)) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
@pytest.mark.parametrize("fault", ["kill", "write"])
def test_a_killed_run_goes_on(fault: str, schedule: str, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = {"steps": 6, "every": 2, "schedule": schedule}
    _, codes, said = run(tmp_path, checkpoint=whole, **options)
    assert codes == [0, 0], said
    _, codes, said = run(tmp_path, checkpoint=broken, fault=fault, **options)
    assert 0 not in codes
    assert said.startswith("rank 1 is gone")
    names = sorted(path.name for path in broken.glob("step-*"))
    assert names == ["step-00000002", "step-00000004"][: 1 if fault == "write" else 2]
    results, codes, said = run(tmp_path, checkpoint=broken, resume=True, **options)
    assert codes == [0, 0], said
    assert [step.number for step in results[0][0]] == list(range(int(names[-1][-1]), 6))
    assert same(tensors(broken, 6), tensors(whole, 6))
    assert sorted(path.name for path in broken.iterdir()) == ["step-00000004", "step-00000006"]


def test_another_plan_of_the_model_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    _, codes, said = run(tmp_path, checkpoint=folder, steps=4)
    assert codes == [0, 0], said
    before = tensors(folder, 4)
    _, codes, said = run(tmp_path, checkpoint=folder, steps=5, seed=1, resume=True)
    assert codes == [0, 0], said
    after = tensors(folder, 5)
    assert before[0]["tensors"].keys() != after[0]["tensors"].keys(), "the plans differ"

    def merged(states: list[dict[str, Any]], key: str) -> dict[str, Any]:
        return states[0][key] | states[1][key]

    steps = {
        name: kept["state"]["step"].item() for name, kept in merged(after, "optimizer").items()
    }
    assert set(steps.values()) == {5.0}, "the optimizer's state came along"
    assert merged(before, "tensors").keys() == merged(after, "tensors").keys()
    for name, value in merged(after, "tensors").items():  # one step of Adam moves by about lr
        if value.is_floating_point() and "running" not in name:
            torch.testing.assert_close(value, merged(before, "tensors")[name], rtol=0, atol=0.02)


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    step = tmp_path / "step-00000001"
    step.mkdir()
    (step / "manifest.json").write_text('{"format": 1, "mo')
    with pytest.raises(InputError, match=r"manifest.json: damaged; delete .*step-00000001"):
        newest(tmp_path, "model")


@pytest.mark.parametrize(
    "manifest", ["[]", "{}", '{"format": 1}', '{"format": "x"}', "\\xff", '{"step": null}']
)
def test_a_manifest_of_another_shape_is_refused(manifest: str, tmp_path: Path) -> None:
    step = tmp_path / "step-00000001"
    step.mkdir()
    (step / "manifest.json").write_bytes(manifest.encode().replace(b"\\xff", b"\xff"))
    with pytest.raises(InputError, match=r"manifest.json: damaged; delete"):
        newest(tmp_path, "model")


def test_a_damaged_number_is_refused_and_what_lost_its_manifest_replaced(tmp_path: Path) -> None:
    odd = tmp_path / "step-000000x1"
    odd.mkdir()
    (odd / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"step-000000x1: .* rename it"):
        newest(tmp_path, "model")
    folder = tmp_path / "kept"
    (folder / "step-00000001").mkdir(parents=True)
    (folder / "step-00000001" / "rank-0.pt").write_bytes(b"")
    _, codes, said = run(tmp_path, checkpoint=folder, steps=1)
    assert codes == [0, 0], said
    assert (folder / "step-00000001" / "manifest.json").is_file()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    _, codes, said = run(tmp_path, checkpoint=folder, steps=1, resume=True)
    assert codes != [0, 0]
    assert "it holds no checkpoint" in said
    run(tmp_path, checkpoint=folder, steps=1)
    _, codes, said = run(tmp_path, checkpoint=folder, steps=2)
    assert "it holds checkpoints of a run; add --resume" in said
    (folder / "step-00000001" / "rank-1.pt").write_bytes(b"")
    _, codes, said = run(tmp_path, checkpoint=folder, steps=2, resume=True)
    assert "damaged" in said
    assert len(said.splitlines()) == 1
