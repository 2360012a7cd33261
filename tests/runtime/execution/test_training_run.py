"""Training plans at work: stages with replicas of different number, equal to one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from dataclasses import replace  # noqa: E402

from ranks import on_ranks  # noqa: E402
from training_run_cases import (  # noqa: E402
    MICROBATCHES,
    alone,
    gradients,
    plan_of,
    profiled,
    workload_of,
)

from stagecut import InputError  # noqa: E402
from stagecut.instances import StagePlacement  # noqa: E402
from stagecut.runtime.execution.own_loop.training_pieces import training_pieces  # noqa: E402


@pytest.mark.parametrize(
    ("model", "replicas", "schedule", "recompute"),
    [
        ("gpt", (2, 1), "1f1b", True),
        ("gpt", (1, 3), "gpipe", False),
        ("mlp", (1, 2, 1), "1f1b", True),
        ("unet", (2, 2), "zb-h1", False),
    ],
)
def test_gradients_are_those_of_one_process(
    model: str, replicas: tuple[int, ...], schedule: str, recompute: bool
) -> None:
    done = on_ranks(sum(replicas), gradients, model, replicas, schedule, recompute)
    losses, wanted = alone(model)
    found = {j: loss for own, _ in done for j, loss in own.items()}
    assert found == pytest.approx(losses, rel=1e-5)
    assert len(found) == MICROBATCHES
    assert {name for _, own in done for name in own} == wanted.keys()
    for _, own in done:
        for name, grad in own.items():
            error = (grad - wanted[name]).norm() / wanted[name].norm().clamp_min(1e-12)
            assert error <= 1e-5, name


def test_what_the_runtime_does_not_do_is_refused() -> None:
    done = profiled("mlp")
    workload = workload_of(done)
    plan = plan_of(workload, (2, 1), recompute=False)
    first, second = plan.solution.stages
    wide = replace(
        plan, solution=StagePlacement((replace(first, degree=2), second), plan.solution.device)
    )
    with pytest.raises(InputError, match="tensor degree is 2"):
        training_pieces(done, workload, wide)
    mixed = (first.configuration[0] ^ 1, *first.configuration[1:])
    some = StagePlacement((replace(first, configuration=mixed), second), plan.solution.device)
    with pytest.raises(InputError, match="some of its layers recompute"):
        training_pieces(done, workload, replace(plan, solution=some))
    with pytest.raises(InputError, match="not in both"):
        training_pieces(profiled("unet"), workload, plan)
