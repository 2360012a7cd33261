"""Policy files and training that goes on: bit for bit, or refused in one line."""

from __future__ import annotations

import io
import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ranks import launched  # noqa: E402
from reward_workers import killed_learning  # noqa: E402

from stagecut import InputError, Throughput, cli  # noqa: E402
from stagecut.api.learn import LearnOptions, TrainingSet, family_set, learn  # noqa: E402
from stagecut.solvers.learned.policy_file import read_policy  # noqa: E402
from stagecut.solvers.learned.train import Settings  # noqa: E402

SETTINGS = Settings(schedules=2)


def training_set(seed: int = 0) -> TrainingSet:
    graphs = family_set(("chain", "residual"), 2, seed)
    return TrainingSet(graphs, (Throughput(), Throughput("contiguous")))


def trained(path: Path, steps: int, **more: Any) -> list[str]:
    """Train, and return what was told of updates."""
    told: list[str] = []
    options = LearnOptions(steps, imitate=3, settings=SETTINGS, plan_seconds=60)
    learn(training_set(), path, options, report=lambda update: told.append(repr(update)), **more)
    return told


def test_training_that_is_resumed_is_training_uninterrupted(tmp_path: Path) -> None:
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    whole = trained(one, 8)
    parts = [told for steps in (2, 5, 8) for told in trained(two, steps, resume=two.exists())]
    assert parts == whole
    assert one.read_bytes() == two.read_bytes()
    with pytest.raises(InputError, match="trained on another set; resume with the same"):
        learn(training_set(1), one, LearnOptions(9), resume=True)


def test_a_training_that_is_killed_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    given = ["learn", "--family", "chain", "--count", "1", "--steps", "7", "--imitate", "1"]
    given += ["--set", "schedules=2,plan_seconds=60"]
    one, two = (["-o", str(tmp_path / f"{n}.npz"), "--log", str(tmp_path / n)] for n in ("1", "2"))
    assert cli.run_command([*given, *one]) == 0
    assert launched(1, killed_learning, [*given, *two])[1] == [-signal.SIGKILL]
    log = tmp_path / "2"
    assert len(log.read_text().splitlines()) == 1 + 5, "what is written last is not of the policy"
    with log.open("a") as stream:
        stream.write("6,ppo,ch")  # as if it was killed while it wrote
    assert cli.run_command([*given, *two, "--resume"]) == 0
    assert log.read_bytes() == (tmp_path / "1").read_bytes()
    first, second = (read_policy(tmp_path / f"{n}.npz") for n in ("1", "2"))
    assert all((first.tensors[key] == second.tensors[key]).all() for key in first.tensors)


def test_a_file_of_weights_alone_is_smaller_and_cannot_be_resumed(tmp_path: Path) -> None:
    kept, bare = tmp_path / "kept.npz", tmp_path / "bare.npz"
    trained(kept, 4)
    trained(bare, 4, resumable=False)
    assert bare.stat().st_size < kept.stat().st_size / 2
    assert set(read_policy(bare).tensors) < set(read_policy(kept).tensors)
    with pytest.raises(InputError, match="does not say how training stood"):
        trained(bare, 5, resume=True)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of one update, which tests leave as it is."""
    path = tmp_path_factory.mktemp("policy") / "policy.npz"
    trained(path, 1)
    return path


def changed(path: Path, other: Path, **header: object) -> Path:
    """Write the file with another header."""
    with np.load(path) as archive:
        arrays = dict(archive)
    said = json.loads(arrays.pop("header").tobytes()) | header
    out = io.BytesIO()
    np.savez(out, header=np.frombuffer(json.dumps(said).encode(), np.uint8), **arrays)
    other.write_bytes(out.getvalue())
    return other


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"version": 9}, 'a policy of version "9", and this release knows 1'),
        ({"feature_set": 0}, 'a policy of feature set "0", and this release knows'),
        ({"format": "another"}, "it is no policy, or damaged"),
        ({"width": 16}, "its weights are not those of a policy"),
        ({"width": 10**9}, "its weights are not those of a policy"),
        ({"width": math.inf}, "its weights are not those of a policy"),
        ({"seed": math.inf}, "its weights are not those of a policy"),
        ({"width": "x"}, "its weights are not those of a policy"),
        ({"about": 3}, "its weights are not those of a policy"),
    ],
)
def test_other_headers_are_refused(
    policy: Path, tmp_path: Path, header: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read_policy(changed(policy, tmp_path / "changed.npz", **header))


def test_damaged_files_are_refused(policy: Path, tmp_path: Path) -> None:
    path, rng = tmp_path / "policy.npz", np.random.default_rng(0)
    whole = policy.read_bytes()
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match="damaged"):
            read_policy(path)
    for _ in range(40):
        flipped = bytearray(whole)
        flipped[int(rng.integers(len(flipped)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            read_policy(path)  # a bit that says nothing
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017


def a_profile(folder: Path) -> Path:
    """A PipeDream profile of three layers, which suggests no cluster."""
    layers = [
        f"node{n} -- Layer -- forward_compute_time={n + 1}.0, backward_compute_time=2.0, "
        "activation_size=1000.0, parameter_size=4000.0"
        for n in range(3)
    ]
    edges = ["\tnode0 -- node1", "\tnode1 -- node2"]
    path = folder / "net.txt"
    path.write_text("\n".join([*layers, *edges]) + "\n")
    return path


def test_profiles_are_learned_for_a_cluster(tmp_path: Path) -> None:
    devices = {
        "format": "stagecut-cluster",
        "version": 1,
        "kinds": [
            {"name": "accelerator", "count": 2, "link": {"latency_s": 1e-5, "bytes_per_s": 1e9}}
        ],
    }
    cluster, policy = tmp_path / "cluster.json", tmp_path / "policy.npz"
    cluster.write_text(json.dumps(devices))
    given = ["learn", "--workloads", str(a_profile(tmp_path)), "--cluster", str(cluster)]
    given += ["--memory", "1MiB"]
    assert cli.run_command([*given, "--steps", "2", "-o", str(policy)]) == 0
    assert list(read_policy(policy).about["training_set"]) == ["net"]


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["-o", str(tmp_path / "policy.npz")]
    small = ["--family", "chain", "--count", "1", "--steps", "1"]
    profile = a_profile(tmp_path)
    for arguments, said in (
        (["learn", *out], "give either --family or --workloads"),
        (["learn", *out, "--family", "chian"], 'family: no "chian"; use one of chain'),
        (["learn", *out, *small, "--seconds", "0"], "--seconds: 0.0; it must be above 0"),
        (["learn", *out, *small, "--imitate", "2"], "it must be at most --steps"),
        (["learn", *out, *small, "--problem", "mapping"], "use throughput, pipeline or latency"),
        (["learn", *out, *small, "--resume"], "no such file"),
        (["learn", *out, *small, "--accelerators", "2"], "--family: its graphs have clusters of"),
        (["learn", *out, "--workloads", str(profile)], "net: it suggests no cluster; give"),
        (
            ["learn", *out, "--workloads", str(profile), "--accelerators", "2"],
            "bytes, not transfer",
        ),
        (
            ["solve", "gpt2-xl", "--method", "learned:gone.npz"],
            "gone.npz: no such file",
        ),
        (["solve", "gpt2-xl", "--method", "learned:fine-tune=-1"], "seconds of at least 0"),
        (["solve", "gpt2-xl", "--method", "dp:p.npz"], "takes nothing behind a colon"),
    ):
        assert cli.run_command(arguments) == 2
        shown = capsys.readouterr().err.strip()
        assert said in shown
        assert "\n" not in shown


def test_the_command_trains_and_solve_takes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = tmp_path / "policy.npz", tmp_path / "curve.csv"
    given = ["learn", "--family", "chain,random", "--count", "2", "--log", str(log)]
    assert cli.run_command([*given, "--steps", "2", "-o", str(path)]) == 0
    assert cli.run_command([*given, "--steps", "3", "--resume", "-o", str(path)]) == 0
    assert len(log.read_text().splitlines()) == 4
    assert "3 updates on 4 tasks" in capsys.readouterr().out
    solving = ["solve", "unet", "--method", f"learned:{path}"]
    assert cli.run_command([*solving, "--set", "limits.nodes=256", "--time-limit", "9999"]) == 0


def test_the_policy_of_the_package_says_how_it_was_made() -> None:
    shipped = read_policy(None)
    assert str(shipped.about["command"]).startswith("stagecut learn --family")
    assert not any("transformer" in name for name in shipped.about["training_set"])
