"""Rewards of a policy in training: simulated batches, and batches measured on processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ranks import launched  # noqa: E402
from reward_workers import CLUSTER, MODEL, learn_measured, profiled  # noqa: E402

from stagecut import InputError, PipelineJob, Plan, Throughput, cli  # noqa: E402
from stagecut.api.learn import LearnOptions, Reward, TrainingSet, learn, with_reward  # noqa: E402
from stagecut.formulations.task import pose  # noqa: E402
from stagecut.instances import Problem  # noqa: E402
from stagecut.instances.common.arrays import Floats  # noqa: E402
from stagecut.instances.formats.files import save  # noqa: E402
from stagecut.instances.generate.graph_family import family_graph  # noqa: E402
from stagecut.runtime.simulate.simulator import simulate  # noqa: E402
from stagecut.solvers.learned.environments import PlacementEnvironment, environment  # noqa: E402
from stagecut.solvers.learned.policy import (  # noqa: E402
    SampledPlacements,
    draw_placements,
    new_policy,
    one_thread,
)
from stagecut.solvers.learned.policy_file import read_policy  # noqa: E402
from stagecut.solvers.learned.train import targets  # noqa: E402

GRAPH = next(w for w in (family_graph("residual", s) for s in range(9)) if w.backward.any())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def drawn_from(of: PlacementEnvironment, count: int = 6) -> SampledPlacements:
    rng = np.random.default_rng(0)
    return draw_placements(new_policy(0), of, targets(of, count, rng), rng)


@pytest.mark.parametrize(
    "problem", [Throughput(), Throughput("contiguous"), PipelineJob(4, "1f1b")], ids=str
)
def test_simulated_rewards_are_makespans_of_a_batch(problem: Problem) -> None:
    assert GRAPH.cluster is not None
    task = pose(GRAPH, GRAPH.cluster, problem)
    of = environment(task)
    drawn = drawn_from(with_reward(task, of, Reward.SIMULATED))
    predicted = of.values(drawn.group, drawn.device)
    for group, device, value, before in zip(
        drawn.group, drawn.device, drawn.values, predicted, strict=True
    ):
        plan = Plan(
            GRAPH.name, GRAPH.fingerprint, GRAPH.cluster, problem, of.solution(group, device),
            before * of.unit, 0.0, "drawn", GRAPH.time_unit,
        )  # fmt: skip
        microbatches = problem.batch if isinstance(problem, PipelineJob) else 8
        batch = simulate(GRAPH, plan).makespan / microbatches / of.observation.even_load
        assert value == pytest.approx(batch)
        if isinstance(problem, PipelineJob):
            assert value == pytest.approx(before)


def test_measured_rewards_are_multiples_of_the_best_predicted_placement() -> None:
    """What leaves a device without work is not run, and a placement that comes twice is once."""
    assert GRAPH.cluster is not None
    task = pose(GRAPH, GRAPH.cluster, Throughput("contiguous"))
    of, timed = environment(task), []

    def time_plans(plans: list[Plan]) -> Floats:
        timed.append(plans)
        return np.array([1.0, *(2.0 + i for i in range(len(plans) - 1))])

    drawn = drawn_from(of)
    group, device = np.repeat(drawn.group, 2, axis=0), np.repeat(drawn.device, 2, axis=0)
    group[:2] = 0
    predicted = of.values(group, device)
    worth = with_reward(task, of, Reward.MEASURED, time_plans).values(group, device)
    (plans,) = timed
    assert len(plans) - 1 == len({plan.placement.tobytes() for plan in plans[1:]})
    best = min(plan.objective for plan in plans) / of.unit
    assert plans[0].objective / of.unit == pytest.approx(best)
    assert (worth[:2] == np.maximum(predicted[:2], task.cluster.size)).all()
    for i, plan in enumerate(plans[1:]):
        solutions = [of.solution(g, d) for g, d in zip(group, device, strict=True)]
        same = [np.array_equal(one.device, plan.placement) for one in solutions]  # type: ignore[union-attr]
        assert worth[same] == pytest.approx(best * (2.0 + i))


def test_a_policy_learns_from_measured_batches(tmp_path: Path) -> None:
    """Two processes run what the first draws; the policy differs from one of objectives."""
    (tmp_path / "model.py").write_text(MODEL)
    save(profiled(), tmp_path / "net.json")
    (tmp_path / "cluster.json").write_text(CLUSTER)
    _, codes = launched(2, learn_measured, str(tmp_path))
    assert codes == [0, 0]
    measured = read_policy(tmp_path / "measured.npz")
    assert measured.about["steps"] == 2
    assert measured.about["reward"] == "measured"
    curve = (tmp_path / "curve.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in curve[1:]] == ["ppo", "ppo"]


def test_what_is_refused_of_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(profiled(), tmp_path / "net.json")
    (tmp_path / "cluster.json").write_text(CLUSTER)
    (tmp_path / "model.py").write_text(MODEL)
    one = ["learn", "--workloads", str(tmp_path / "net.json"), "--steps", "2", "-o"]
    one += [str(tmp_path / "p.npz"), "--cluster", str(tmp_path / "cluster.json")]
    model = f"model={tmp_path / 'model.py'}:make"
    for more, said in (
        (["--set", "reward=best"], '--set reward: "best" is not one of objective, simulated'),
        (["--set", "reward=measured"], "reward=measured and model=FILE.py:FACTORY belong together"),
        (["--set", model], "reward=measured and model=FILE.py:FACTORY belong together"),
        (["--set", "rounds=0"], "--set rounds: 0; it must be from 1 to 1000"),
        (["--set", "schedules=21"], "--set schedules: 21; it must be from 1 to 20"),
        (["--set", "plan_seconds=0"], "--set plan_seconds: 0.0; it must be above 0"),
        (["--set", "steps=3"], "steps"),
        (["--set", f"reward=measured,{model}"], "torchrun"),
        (["--imitate", "1", "--set", f"reward=measured,{model}"], "--resume goes on"),
    ):
        assert cli.run_command([*one, *more]) == 2, more
        assert said in " ".join(capsys.readouterr().err.split()), more


def test_another_reward_begins_with_no_history(tmp_path: Path) -> None:
    assert GRAPH.cluster is not None
    on = TrainingSet((GRAPH,), (Throughput("contiguous"),))
    learn(on, tmp_path / "p.npz", LearnOptions(2))
    simulated = replace(on, reward=Reward.SIMULATED)
    training = learn(simulated, tmp_path / "p.npz", LearnOptions(3), resume=True)
    assert len(training.history[0]) == 20
    assert read_policy(tmp_path / "p.npz").about["reward"] == "simulated"
    with pytest.raises(InputError, match="nothing is there to measure with"):
        _ = replace(on, reward=Reward.MEASURED).environments
