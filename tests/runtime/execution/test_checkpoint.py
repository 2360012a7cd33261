"""Checkpoints: a run that was ended goes on as if nothing had happened."""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from ranks import launched  # noqa: E402
from run_workers import BATCH, Model, train  # noqa: E402
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

import stagecut  # noqa: E402
from stagecut import InputError, merge_checkpoint  # noqa: E402
from stagecut.cli import run_command  # noqa: E402
from stagecut.runtime.execution.checkpoint import (  # noqa: E402
    load_weights,
    random_state,
    set_random_state,
    state_held,
)
from stagecut.runtime.execution.checkpoint_folder import (  # noqa: E402
    METADATA,
    digest,
    locked,
    newest,
    read_checkpoint,
    write_checkpoint,
)
from stagecut.runtime.execution.guard.identity import weights_hash  # noqa: E402
from stagecut.runtime.execution.stage import named_tensors  # noqa: E402

#: What two ranks write.
FILES = ("__0_0.distcp", "__1_0.distcp", ".metadata", METADATA)


def run(
    tmp_path: Path,
    *,
    seed: int = 0,
    fault: str = "",
    schedule: str = "1f1b",
    world: int = 2,
    **options: Any,
) -> tuple[list[Any], list[int], str]:
    said = tmp_path / "said"
    said.unlink(missing_ok=True)
    results, codes = launched(
        world, train, seed, fault, schedule, {"timeout_s": 60.0, **options}, str(said)
    )
    return results, codes, said.read_text() if said.exists() else ""


def stored(folder: Path, step: int) -> dict[str, Any]:
    """Return all that a checkpoint holds, as torch's own tool reads it."""
    file = folder.parent / "stored.pt"
    dcp_to_torch_save(folder / f"step-{step:08}", file)
    return torch.load(file, weights_only=True)


def same(a: Any, b: Any) -> bool:
    """Whether two nested states are equal, bit by bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(torch.equal(a, b)) if isinstance(a, torch.Tensor) else a == b


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Checkpoints of two steps, and what each rank returned."""
    folder = tmp_path_factory.mktemp("trained")
    results, codes, said = run(folder, checkpoint=folder / "kept", steps=2, every=1)
    assert codes == [0, 0], said
    return folder / "kept", results


@pytest.fixture
def kept(trained: tuple[Path, list[Any]], tmp_path: Path) -> Path:
    """A folder with the checkpoint of the first step."""
    folder = tmp_path / "kept"
    shutil.copytree(trained[0] / "step-00000001", folder / "step-00000001")
    return folder


@pytest.mark.parametrize(
    ("fault", "schedule"),
    [
        ("write", "pipedream"),  # killed while it writes, with weights of several versions
        pytest.param("kill", "1f1b", marks=pytest.mark.slow),
        pytest.param("kill", "pipedream", marks=pytest.mark.slow),
        pytest.param("write", "1f1b", marks=pytest.mark.slow),
    ],
)
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
    assert same(stored(broken, 6), stored(whole, 6))
    assert sorted(path.name for path in broken.iterdir()) == [
        ".lock", "step-00000004", "step-00000006",
    ]  # fmt: skip


@pytest.mark.slow
def test_replicas_go_on_with_buffers_of_their_own(tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder, steps, resume in ((whole, 2, False), (parted, 1, False), (parted, 2, True)):
        _, codes, said = run(
            tmp_path, world=4, replicas=2, checkpoint=folder, every=1, steps=steps, resume=resume
        )
        assert codes == [0] * 4, said
    kept = stored(parted, 2)
    (first, own), (second, other) = kept["buffers"].items()
    assert int(first) + 2 == int(second), "the copies of the piece with the norm"
    assert not same(own, other)
    assert same(kept, stored(whole, 2))


def test_another_plan_of_the_model_goes_on(kept: Path, tmp_path: Path) -> None:
    before = stored(kept, 1)
    _, codes, said = run(tmp_path, checkpoint=kept, steps=2, seed=1, resume=True)
    assert codes == [0, 0], said
    after = stored(kept, 2)
    names = {rank: set(own) for rank, own in before["buffers"].items()}
    assert names != {rank: set(own) for rank, own in after["buffers"].items()}, "the plans differ"
    steps = {name: state["step"].item() for name, state in after["optimizer"].items()}
    assert set(steps.values()) == {2.0}, "the optimizer's state came along"
    assert before["model"].keys() == after["model"].keys()
    assert same(before["options"], after["options"])
    for name, value in after["model"].items():  # one step of Adam moves by about lr
        if value.is_floating_point() and "running" not in name:
            torch.testing.assert_close(value, before["model"][name], rtol=0, atol=0.02)


def test_an_asynchronous_run_goes_on_for_the_steps_that_are_left(
    kept: Path, tmp_path: Path
) -> None:
    options = {"checkpoint": kept, "schedule": "pipedream", "resume": True}
    _, codes, said = run(tmp_path, steps=4, every=2, **options)
    assert codes != [0, 0]
    assert "every: 2 does not divide the 3 steps that are left" in said
    _, codes, said = run(tmp_path, steps=5, every=2, **options)
    assert codes == [0, 0], said
    assert sorted(path.name for path in kept.glob("step-*")) == ["step-00000003", "step-00000005"]
    results, codes, said = run(tmp_path, steps=6, **options)
    assert codes == [0, 0], said
    assert [step.number for step in results[0][0]] == [5]
    assert sorted(path.name for path in kept.glob("step-*")) == ["step-00000005", "step-00000006"]


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    step = tmp_path / "step-00000001"
    step.mkdir()
    (step / "manifest.json").write_text('{"format": 1, "mo')
    with pytest.raises(InputError, match=r"manifest.json: damaged; delete .*step-00000001"):
        newest(tmp_path)


@pytest.mark.parametrize(
    "manifest", ["[]", "{}", '{"format": 6}', '{"format": "x"}', "\\xff", '{"step": null}']
)
def test_a_manifest_of_another_shape_is_refused(manifest: str, tmp_path: Path) -> None:
    step = tmp_path / "step-00000001"
    step.mkdir()
    (step / "manifest.json").write_bytes(manifest.encode().replace(b"\\xff", b"\xff"))
    with pytest.raises(InputError, match=r"manifest.json: damaged; delete"):
        newest(tmp_path)


def test_a_damaged_number_is_refused_and_what_lost_its_manifest_replaced(tmp_path: Path) -> None:
    odd = tmp_path / "step-000000x1"
    odd.mkdir()
    (odd / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"step-000000x1: .* rename it"):
        newest(tmp_path)
    folder = tmp_path / "kept"
    (folder / "step-00000001").mkdir(parents=True)
    (folder / "step-00000001" / FILES[0]).write_bytes(b"")
    _, codes, said = run(tmp_path, checkpoint=folder, steps=9, fault="end")
    assert codes == [0, 0], said
    assert (folder / "step-00000001" / "manifest.json").is_file(), "of where the inputs ended"


def test_what_does_not_fit_is_refused(kept: Path, tmp_path: Path) -> None:
    _, codes, said = run(tmp_path, checkpoint=tmp_path / "none", steps=1, resume=True)
    assert codes != [0, 0]
    assert "it holds no checkpoint" in said
    _, codes, said = run(tmp_path, checkpoint=kept, steps=2)
    assert "it holds checkpoints of a run; add --resume" in said
    (kept / ".step-00000002.unfinished").mkdir()
    with locked(kept):
        _, codes, said = run(tmp_path, checkpoint=kept, steps=2, resume=True)
    assert "another run writes its checkpoints there" in said
    assert len(said.splitlines()) == 1
    (kept / "step-00000001" / FILES[1]).write_bytes(b"")
    _, codes, said = run(tmp_path, checkpoint=kept, steps=2, resume=True)
    assert "damaged" in said
    assert len(said.splitlines()) == 1
    assert not (kept / ".step-00000002.unfinished").exists(), "left by a run that was ended"


def test_no_room_is_told_in_one_line_and_keeps_what_is_there(kept: Path, tmp_path: Path) -> None:
    before = stored(kept, 1)
    _, codes, said = run(tmp_path, checkpoint=kept, steps=2, resume=True, fault="room")
    assert codes == [2, 2]
    assert re.fullmatch(
        r".*step-00000002: not written: it would be longer than files may be here; .*\n", said
    ), said
    assert same(stored(kept, 1), before)
    _, codes, said = run(tmp_path, checkpoint=kept, steps=2, resume=True)
    assert codes == [0, 0], said
    assert not list(kept.glob(".step*"))


def test_two_ranks_files_merge_into_the_models_state(
    trained: tuple[Path, list[Any]], tmp_path: Path, capsys
) -> None:
    folder, merged = tmp_path / "kept", tmp_path / "model.pt"
    shutil.copytree(trained[0], folder)
    results = trained[1]
    assert run_command(["checkpoint", "merge", str(folder), "-o", str(merged)]) == 0
    assert "written: " in capsys.readouterr().out
    torch.manual_seed(1)
    model = Model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    load_weights(model, merged)
    unlike = set()
    for name, value in model.state_dict().items():
        both = [torch.equal(value, results[rank][1][name]) for rank in range(2)]
        assert any(both), name
        assert all(both) or not name.startswith("unused")
        unlike |= {rank for rank in range(2) if not both[rank]}
        assert not torch.equal(value, before[name]), name
    assert unlike == {0, 1}, "each rank trains its own"
    first = merge_checkpoint(folder / "step-00000001")
    assert not torch.equal(first["layers.0.weight"], model.layers[0].weight)
    _no_change_of_its_files_is_taken(folder)


def _no_change_of_its_files_is_taken(folder: Path) -> None:
    step, rng = folder / "step-00000002", random.Random(0)
    for name in FILES:
        content = (step / name).read_bytes()
        changes = [(folder / "step-00000001" / name).read_bytes()]
        for _ in range(40):
            changed = bytearray(content)
            changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            changes.append(bytes(changed))
        for change in changes:
            (step / name).write_bytes(change)
            with pytest.raises(InputError, match=f"{name}: damaged"):
                merge_checkpoint(folder)
        (step / name).write_bytes(content)
    held = read_checkpoint(step)
    contents = held.contents()
    manifest = json.loads((step / "manifest.json").read_text())
    for field, changed in (
        ("files", {**manifest["files"], "__2_0.distcp": "0"}),
        ("files", {**manifest["files"], f"../{FILES[0]}": manifest["files"][FILES[0]]}),
        ("files", {}),
        ("taken", -1),
    ):
        (step / "manifest.json").write_text(json.dumps({**manifest, field: changed}))
        with pytest.raises(InputError, match=r"(manifest.json: |distcp: missing or )damaged"):
            read_checkpoint(step)
    shutil.rmtree(step)
    with pytest.raises(InputError, match=r"metadata: gone: a run that keeps its checkpoints"):
        held.load({}, contents, alone=True)
    with pytest.raises(InputError, match=r"manifest.json: gone: a run that keeps"):
        read_checkpoint(step)


class Runs:
    """What would run code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


def saved(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def test_what_cannot_be_merged_is_said_in_one_line(
    kept: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = kept / "step-00000001"
    file, content = step / FILES[1], (step / FILES[1]).read_bytes()
    manifest, metadata = json.loads((step / "manifest.json").read_text()), step / METADATA
    known = pickle.loads((step / ".metadata").read_bytes())

    def refused(reason: str, where: Path = kept) -> None:
        code = run_command(["checkpoint", "merge", str(where), "-o", str(tmp_path / "m.pt")])
        error = capsys.readouterr().err
        assert code == 2, error
        assert reason in error
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "m.pt").exists()

    def told(path: Path, data: bytes, **changed: Any) -> None:
        """Write a file whose hash the manifest knows."""
        path.write_bytes(data)
        files = {**manifest["files"], path.name: digest(path)}
        (step / "manifest.json").write_text(json.dumps({**manifest, "files": files, **changed}))

    file.write_bytes(b"\0" * len(content))
    refused(f"{FILES[1]}: damaged; delete")
    file.write_bytes(content[:-1])
    refused(f"{FILES[1]}: damaged; delete")
    file.unlink()
    refused(f"{FILES[1]}: missing or damaged; delete")
    told(file, content, state_dict={"weight": "elsewhere"})
    refused("elsewhere is not in it as it is here")
    name, tensor = next(
        (name, each)
        for name, each in known.state_dict_metadata.items()
        if name.startswith("model.") and len(each.size)
    )
    shapes = [{name: replace(tensor, size=size)} for size in (torch.Size([-4]), (0.5,))]
    for odd in (
        Runs(), {}, known.state_dict_metadata, replace(known, planner_data=None),
        *(replace(known, state_dict_metadata={**known.state_dict_metadata, **x}) for x in shapes),
        replace(known, planner_data={**known.planner_data, "more": ("optimizer", "more")}),
        replace(known, planner_data={**known.planner_data, name: ("optimizer",)}),
    ):  # fmt: skip
        told(metadata, saved(odd))
        refused(f"{METADATA}: damaged")
    assert not Path("ran").exists()
    outside = dict(known.storage_data)
    index = next(iter(outside))
    outside[index] = replace(outside[index], relative_path=f"../../kept/step-00000001/{FILES[0]}")
    told(metadata, saved(replace(known, storage_data=outside)))
    refused(f"{METADATA}: damaged")
    told(metadata, saved(known), format=3)
    refused("its format is 3; 6 is known")
    (step / "manifest.json").unlink()
    refused("it holds no checkpoint")
    refused("manifest.json: damaged", step)
    refused("no such folder", tmp_path / "nowhere")
    refused("no such folder", tmp_path / ("x" * 5000))


def test_a_checkpoint_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "last"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for number in range(3):
            state = {"model": {"w": torch.full((2,), float(number))}}
            write_checkpoint(path, state, {"w": "w", "tied": "w"})
    finally:
        dist.destroy_process_group()
    merged = merge_checkpoint(path)
    assert merged["w"].tolist() == [2.0, 2.0]
    assert merged["tied"] is merged["w"]
    assert [file.name for file in path.parent.iterdir()] == ["last"]


def test_tied_weights_are_in_a_state_under_all_their_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(16, 8)
            self.head = nn.Linear(8, 16, bias=False)
            self.head.weight = self.tokens.weight
            self.register_buffer("scale", torch.ones(()), persistent=False)
            self.unused = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.head(self.tokens(x)) * self.scale).square().mean()

    model, inputs = Tied(), (torch.zeros(BATCH, 3, dtype=torch.int64),)
    workload = stagecut.profile(model, inputs, training=True, estimate="h100").workload
    cluster = stagecut.accelerators_and_cpus(1, 0)
    plan = stagecut.solve(workload, cluster, stagecut.Throughput("contiguous")).plan
    ready = stagecut.split_model(plan, model, inputs, workload=workload)
    (piece,) = ready.pieces
    state = state_held(model, named_tensors(piece.module))
    assert state.tensors == {"tokens.weight": "tokens.weight", "head.weight": "tokens.weight"}
    assert list(state.untouched) == ["unused.weight", "unused.bias"]


def test_a_rank_keeps_the_random_state_of_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    states, here = [torch.tensor(0), torch.tensor(1)], 1
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: here)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: states[here])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: states.insert(here, state))
    kept = random_state()
    here, states[1] = 0, torch.tensor(7)
    set_random_state(*kept)
    assert states[:2] == [1, 0]  # of a run whose rank has another card now


def test_weights_are_told_apart_by_their_numbers() -> None:
    def model(value: complex, device: str = "cpu") -> nn.Module:
        return nn.ParameterDict({"turn": torch.full((2,), value, device=device)})

    assert weights_hash(model(1j)) != weights_hash(model(2j))
    with pytest.raises(InputError, match="turn: it is on the device meta"):
        weights_hash(model(1j, "meta"))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    with pytest.raises(InputError, match=r"weights.pt: no such file"):
        load_weights(Model(), file)
    file.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"no state_dict that torch.save wrote"):
        load_weights(Model(), file)
    torch.save([1], file)
    with pytest.raises(InputError, match="it is no state_dict"):
        load_weights(Model(), file)
    torch.save(Model(4).state_dict(), file)
    with pytest.raises(InputError, match=r"not this model's weights: size mismatch for norm"):
        load_weights(Model(), file)
    torch.save({}, file)
    with pytest.raises(InputError, match=r"Missing key\(s\) in state_dict: \"norm.weight"):
        load_weights(Model(), file)
