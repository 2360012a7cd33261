"""The front door to the simulator; its code is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..instances import Plan, Workload

if TYPE_CHECKING:
    from ..runtime.schedules import Schedule
    from ..runtime.simulate.network import Network
    from ..runtime.simulate.result import Simulation


def simulate(
    workload: Workload,
    plan: Plan,
    schedule: str | Schedule | None = None,
    microbatches: int | None = None,
    *,
    network: Network | None = None,
    weight_share: float = 0.5,
    relayed: bool | None = None,
) -> Simulation:
    """Simulate a plan: what every device does over time.

    Parameters
    ----------
    schedule
        ``gpipe``, ``1f1b``, ``interleaved``, ``pipedream``, ``2bw``, ``zb-h1``, ``zb-h2``,
        ``single`` or ``inference``; or a `stagecut.runtime.schedules.Schedule`, whose own number
        of microbatches then counts; default: ``1f1b``, for latency plans ``single``, for
        training plans the one that they were made for.
    microbatches
        How many samples or microbatches to run; default: the plan's batch, else 8; 1 for
        ``single``.
    network
        How data moves; default: of a mapped plan the links of its topology, else
        `stagecut.runtime.simulate.network.HostMemory`, what the plan's problem says that transfers
        cost.
    weight_share
        The part of a backward pass that computes gradients of weights, where a schedule splits
        it.
    relayed
        Whether the pieces of a placement talk to their neighbours only, as PyTorch runs them;
        default: as the plan's problem says.

    Returns
    -------
    Simulation
        Times of every action; makespan, steady state, bubble, memory over time, critical path.

    Raises
    ------
    InputError
        If the plan was made for another workload, or the schedule does not fit or deadlocks.

    Examples
    --------
    >>> simulate(workload, plan, "pipedream").time_per_sample == plan.objective  # doctest: +SKIP
    True
    """
    from ..runtime.simulate.simulator import simulate as run

    return run(
        workload,
        plan,
        schedule,
        microbatches,
        network=network,
        weight_share=weight_share,
        relayed=relayed,
    )
