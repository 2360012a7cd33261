"""Training plans: what is minimised, and what stages and layers may be."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.choices import (
    Optimizer,
    OrText,
    Precision,
    Recomputation,
    TrainingObjective,
    TrainingSchedule,
    choose,
)
from ..common.errors import InputError, quote
from ..common.options import check_counts
from ..common.units import LARGEST, SMALLEST
from .placement_rules import NO_RULES, PlacementRules
from .summary import ByFields


@dataclass(frozen=True)
class LayerRule:
    """What one layer may do, on top of what all may; None for no further restriction.

    Parameters
    ----------
    node
        Id of the layer.
    degrees, replicas
        Tensor and data-parallel degrees that its stage may have.
    recomputation
        Of this layer.

    Raises
    ------
    InputError
        If a degree is no whole number of at least 1, or nothing is allowed.

    Examples
    --------
    >>> import stagecut
    >>> rule = stagecut.instances.LayerRule("embedding", degrees=(1,), recomputation="off")
    >>> stagecut.Training(rules=(rule,)).rules[0].recomputation
    'off'
    """

    node: int | str
    degrees: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    recomputation: OrText[Recomputation] | None = None

    def __post_init__(self) -> None:
        check_counts(f"node {self.node}: degrees", self.degrees)
        check_counts(f"node {self.node}: replicas", self.replicas)
        if self.recomputation is not None:
            where = f"node {self.node}: recomputation"
            object.__setattr__(self, "recomputation", Recomputation.of(where, self.recomputation))


@dataclass(frozen=True)
class Training(ByFields):
    """Cut layers into pipeline stages with replicas, tensor degree and recomputation.

    A plan is a list of contiguous stages S_1 … S_r. Stage i has d_i replicas of tensor degree
    t_i, and each of its nodes one configuration of that degree. Σ d_i t_i ≤ K devices, d_i | N
    microbatches, Σ d_i ≤ N. Its time per microbatch is

        TPS_i = Σ p_v / d_i + 1/B · ( Σ_{cut edges e} 2 (c_e + sync_e) / d_i
                                      + Σ_v 4 (d_i − 1) w_v / (d_i N) )

    with the synchronisation of the end inside the stage, and it takes Σ (a_v y_i + b_v) bytes on
    each of its devices, with y_i = ⌈(d_i + … + d_r) / d_i⌉ microbatches in flight.

    Parameters
    ----------
    microbatches
        N, microbatches in a batch; default: the workload's.
    bandwidth
        B, bytes per second (per time unit, for a workload that does not name its unit) that a
        device sends and receives; default: the workload's.
    objective
        ``time-per-sample``: max TPS_i. ``batch``: fill and drain counted,
        Σ TPS_i + (N − 1) max TPS_i.
    degrees, replicas
        Allowed t_i and d_i; None for all. ``(1,)`` switches off, ``(4,)`` forces.
    recomputation
        ``free``; ``off`` and ``forced`` allow a layer only configurations without and with
        recomputation, wherever it has both.
    rules
        The same layer by layer.
    uncut
        Edges (pairs of ids) whose ends must be in one stage.
    schedule
        What is kept per microbatch in flight. ``1f1b``: y_i activations. ``gpipe``: those of all
        N / d_i microbatches of a replica. ``pipedream``: y_i activations, and as many versions
        of the weights; there are no batches, so N does not limit d_i, and replicas synchronise
        after every round of d_i microbatches (d_i for N in TPS_i). ``2bw``: y_i activations and
        two versions of the weights.
    optimizer, precision
        State kept per byte of weights, on top of what the workload gives. ``as-given``: none.
        ``fp32``: ``sgd`` 0, ``momentum`` 1, ``adam`` 2; ``mixed`` (weights of two bytes, state
        and a copy of the weights of four): 2, 4, 6.
    server_devices, server_bandwidth
        Replicas of a stage whose d_i t_i devices fit into one server synchronise gradients at
        this bandwidth instead of `bandwidth`; stages are taken to be in different servers.
    placement_rules
        Pins and other rules of the user's own; their numbers are stages.

    Raises
    ------
    InputError
        If an option is none of its choices, a number is out of range, or only one of
        `server_devices` and `server_bandwidth` is given.

    References
    ----------
    Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization",
    NeurIPS 2021, section 3. The objective ``batch``, schedules, optimizers and servers are ours.

    Examples
    --------
    >>> problem = Training(microbatches=8, bandwidth=25e9, objective="batch", optimizer="adam")
    >>> problem.schedule, problem.precision
    ('1f1b', 'fp32')
    """

    microbatches: int | None = None
    bandwidth: float | None = None
    objective: OrText[TrainingObjective] = TrainingObjective.TIME_PER_SAMPLE
    degrees: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    recomputation: OrText[Recomputation] = Recomputation.FREE
    rules: tuple[LayerRule, ...] = ()
    uncut: tuple[tuple[int | str, int | str], ...] = ()
    schedule: OrText[TrainingSchedule] = TrainingSchedule.ONE_F_ONE_B
    optimizer: OrText[Optimizer] = Optimizer.AS_GIVEN
    precision: OrText[Precision] = Precision.FP32
    server_devices: int | None = None
    server_bandwidth: float | None = None
    placement_rules: PlacementRules = NO_RULES

    def __post_init__(self) -> None:
        choose(
            self,
            objective=TrainingObjective,
            recomputation=Recomputation,
            schedule=TrainingSchedule,
            optimizer=Optimizer,
            precision=Precision,
        )
        check_counts("degrees", self.degrees)
        check_counts("replicas", self.replicas)
        for what in ("microbatches", "server_devices"):
            check_counts(what, None if getattr(self, what) is None else (getattr(self, what),))
        for what in ("bandwidth", "server_bandwidth"):
            value = getattr(self, what)
            if value is not None and not SMALLEST <= value <= LARGEST:
                raise InputError(
                    f"{what}: {quote(value)}; it must be a number above 0 and at most {LARGEST:g}"
                )
        if (self.server_devices is None) != (self.server_bandwidth is None):
            raise InputError("server: give server_devices and server_bandwidth, or neither")

    @property
    def name(self) -> str:
        """What the problem is called in files and tables."""
        return "training"
