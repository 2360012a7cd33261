"""Problem of a training job: its batch, and the decisions of the layout that the user fixes.

A job states the number of sequences per iteration and of tokens per sequence. All else is open
unless it is given: the degree of each parallelism, ZeRO stage, microbatch, schedule with its
chunks, and recomputation. The launcher restricts the choices to those that it can run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..common.choices import OrText
from ..common.errors import InputError, quote
from ..common.units import check_count, check_counts
from ..costs.description import ModelDescription
from ..costs.hardware import TrainingCluster
from ..costs.layout import (
    FULL,
    OFFLOAD,
    RECIPES,
    ContextKind,
    JobSchedule,
    Layout,
    Recipe,
    Recompute,
)
from ..costs.stages import device_memory
from .launchers import LAUNCHERS, LauncherSettings, runs

#: Sets of modules that are recomputed in all layers, where the launcher and the model have them.
_MODES = (
    FULL,
    frozenset({Recompute.OPERATORS}),
    frozenset({Recompute.LAYERNORM}),
    frozenset({Recompute.MLP}),
    frozenset({Recompute.MOE_ACTIVATION}),
    frozenset({Recompute.LAYERNORM, Recompute.MOE_ACTIVATION}),
    frozenset({Recompute.LAYERNORM, Recompute.MOE_ACTIVATION, Recompute.MLA_UP_PROJECTION}),
    frozenset({Recompute.MOE}),
    frozenset({Recompute.MLA_UP_PROJECTION}),
    frozenset({Recompute.MLA_UP_PROJECTION, Recompute.MLP}),
)
#: Exchanges of keys and values in order of preference: by default the first that a launcher has.
_CONTEXT = (ContextKind.RING, ContextKind.ALL_GATHER, ContextKind.ALL_TO_ALL)


@dataclass(frozen=True)
class TrainingJob:
    """Problem of choosing the layout of a training job; minimises the seconds of an iteration.

    A degree, ZeRO stage, microbatch or number of chunks is open if it is None; otherwise it is the
    allowed value, or a tuple of allowed values.

    Parameters
    ----------
    global_batch
        Sequences per iteration, over all replicas.
    sequence
        Tokens per sequence.
    launcher
        Software that will run the plan: ``megatron``, ``torchtitan``, ``deepspeed``, ``stagecut``,
        or ``any`` for all schedules with Megatron's kernels.
    tensor, context, pipeline, data, expert, expert_tensor, chunks, microbatch, zero
        Allowed values of the fields of `Layout`.
    schedules
        Allowed orders of passes; default: the launcher's.
    recompute
        Allowed sets of recomputed modules, or one module; default: those of the launcher. With
        ``full``, stages recompute only as many layers as they must, or none.
    recipe
        Precision and bytes per parameter; default: the launcher's recipe.
    offload_activations, offload_weights, offload_optimizer
        Allowed fractions, from 0 to 1, that are kept in host memory; default: 0.
    memory_bytes
        Usable memory of each device, bytes; default: all of the device's memory.

    Raises
    ------
    InputError
        If a value is not one of its choices, or out of range.

    Examples
    --------
    >>> job = TrainingJob(global_batch=512, sequence=8192, tensor=8, zero=(0, 1))
    >>> job.allowed("tensor"), job.allowed("zero"), job.allowed("pipeline")
    ((8,), (0, 1), None)
    """

    global_batch: int
    sequence: int = 4096
    launcher: str = "megatron"
    tensor: int | tuple[int, ...] | None = None
    context: int | tuple[int, ...] | None = None
    pipeline: int | tuple[int, ...] | None = None
    data: int | tuple[int, ...] | None = None
    expert: int | tuple[int, ...] | None = None
    expert_tensor: int | tuple[int, ...] | None = 1
    chunks: int | tuple[int, ...] | None = None
    microbatch: int | tuple[int, ...] | None = None
    zero: int | tuple[int, ...] | None = None
    schedules: tuple[OrText[JobSchedule], ...] | None = None
    recompute: tuple[frozenset[Recompute], ...] | None = None
    recipe: str | Recipe | None = None
    offload_activations: float | tuple[float, ...] = 0.0
    offload_weights: float | tuple[float, ...] = 0.0
    offload_optimizer: float | tuple[float, ...] = 0.0
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        """Take texts for choices and refuse numbers out of range."""
        if self.launcher not in LAUNCHERS:
            names = ", ".join(LAUNCHERS)
            raise InputError(f"launcher: {quote(self.launcher)} is not one of {names}")
        for name in ("global_batch", "sequence"):
            check_count(name, getattr(self, name))
        for name in (*OPEN, *OFFLOAD):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        for name in OPEN:
            if name != "zero":
                check_counts(name, self.allowed(name))
        for stage in self.allowed("zero") or ():
            if stage not in range(4):
                raise InputError(f"zero: {quote(stage)}; it must be 0, 1, 2 or 3")
        if self.schedules is not None:
            given: Iterable[OrText[JobSchedule]] = (
                (self.schedules,) if isinstance(self.schedules, str) else self.schedules
            )
            orders = tuple(JobSchedule.of("schedules", one) for one in given)
            object.__setattr__(self, "schedules", orders)
            if not self.orders:
                raise InputError(
                    f"schedules: {self.launcher} runs none of {', '.join(orders)}; take some of "
                    f"{', '.join(sorted(self.settings.schedules))}, or plan for any launcher"
                )
        if self.recompute is not None:
            choices: Iterable[Iterable[OrText[Recompute]]] = (
                ({self.recompute},) if isinstance(self.recompute, str) else self.recompute
            )
            for one in choices:
                if isinstance(one, str):
                    raise InputError(
                        f"recompute: {quote(one)}; give sets of modules: {{{quote(one)}}}"
                    )
            sets = tuple(
                frozenset(Recompute.of("recompute", module) for module in modules)
                for modules in choices
            )
            object.__setattr__(self, "recompute", sets)
        for name in OFFLOAD:
            parts = self.parts(name)
            if not parts or not all(0 <= part <= 1 for part in parts):
                raise InputError(f"{name}: {quote(getattr(self, name))}; give parts from 0 to 1")
            if max(parts) > 0 and name not in self.settings.offload:
                able = ", ".join(one for one in LAUNCHERS if name in LAUNCHERS[one].offload)
                raise InputError(
                    f"{name}: {self.launcher} keeps none of it in host memory; leave it out, or "
                    f"plan for one of {able}"
                )
        if isinstance(self.recipe, str) and self.recipe not in RECIPES:
            raise InputError(f"recipe: {quote(self.recipe)} is not one of {', '.join(RECIPES)}")
        if self.memory_bytes is not None and not self.memory_bytes > 0:
            raise InputError(f"memory_bytes: {self.memory_bytes:g}; it must be above 0")

    def allowed(self, name: str) -> tuple[int, ...] | None:
        """Return the allowed values of a degree, None if it is open."""
        value = getattr(self, name)
        return (value,) if isinstance(value, int) else value

    def parts(self, name: str) -> tuple[float, ...]:
        """Return the allowed fractions in host memory for a field of `OFFLOAD`."""
        value = getattr(self, name)
        return (value,) if isinstance(value, int | float) else value

    @property
    def settings(self) -> LauncherSettings:
        """Settings of the job's launcher."""
        return LAUNCHERS[self.launcher]

    @property
    def template(self) -> Layout:
        """Layout on one device with the job's fixed batch, precision and software."""
        known = self.settings
        recipe = self.recipe if self.recipe is not None else known.recipe
        return Layout(
            microbatch=1,
            global_batch=self.global_batch,
            sequence=self.sequence,
            context_kind=next((one for one in _CONTEXT if one in known.context), _CONTEXT[0]),
            recipe=RECIPES[recipe] if isinstance(recipe, str) else recipe,
            software=known.software,
        )

    def counts_layers(self, layout: Layout) -> bool:
        """Whether the number of recomputed layers of each stage is open under a layout."""
        known = self.settings
        some = layout.recompute == FULL and known.recompute_some
        some = some and not (layout.offload_activations and known.offload_by_layer)
        return some and layout.recompute_layers is not None

    def zero_stages(self, pipeline: int) -> tuple[int, ...]:
        """Return the ZeRO stages that launcher and job allow with `pipeline` ranks."""
        known = self.settings.zero if pipeline == 1 else self.settings.zero_in_pipeline
        given = self.allowed("zero")
        return tuple(sorted(z for z in known if given is None or z in given))

    def memory_limits(self, layout: Layout, cluster: TrainingCluster) -> tuple[float, ...]:
        """Return the usable bytes of each pipeline rank's smallest device."""
        return device_memory(layout, cluster, self.memory_bytes)

    def pipelines(self, model: ModelDescription) -> bool:
        """Whether the launcher can train a model in a pipeline."""
        known = self.settings
        return (known.mtp_in_pipeline or not model.mtp) and (
            known.encoder_in_pipeline or not model.encoder
        )

    def refused(self, model: ModelDescription, layout: Layout) -> tuple[str, ...]:
        """Return the fields of a layout whose values the job or its launcher does not allow."""
        found = [
            name
            for name in OPEN
            if (values := self.allowed(name)) is not None and getattr(layout, name) not in values
        ]
        found += [name for name in OFFLOAD if getattr(layout, name) not in self.parts(name)]
        if layout.pipeline > 1:
            found += ["pipeline"] * (not self.pipelines(model))
            found += ["schedule"] * (layout.schedule not in self.orders)
        if layout.recompute and layout.recompute not in self.modes:
            found.append("recompute")
        if not found and (reason := runs(self.launcher, layout, model)) is not None:
            found.append(reason.partition(":")[0])
        return tuple(dict.fromkeys(found))

    def allows(self, model: ModelDescription, layout: Layout) -> bool:
        """Whether the job and its launcher allow a layout of a model."""
        return not self.refused(model, layout)

    @property
    def orders(self) -> tuple[JobSchedule, ...]:
        """Allowed orders of passes."""
        known = self.settings.schedules
        if self.schedules is None:
            return tuple(one for one in JobSchedule if one in known)
        asked = (JobSchedule.of("schedules", one) for one in self.schedules)
        return tuple(one for one in asked if one in known)

    @property
    def modes(self) -> tuple[frozenset[Recompute], ...]:
        """Allowed sets of recomputed modules."""
        if self.recompute is not None:
            return self.recompute
        return tuple(mode for mode in _MODES if mode <= self.settings.recompute)


def on_one_device(layout: Layout) -> Layout:
    """Return a layout without its degrees, schedule, recomputation, stages and host memory."""
    return replace(
        layout, tensor=1, sequence_parallel=False, context=1, pipeline=1, chunks=1, data=1,
        expert=1, expert_tensor=1, zero=0, microbatch=1, schedule=JobSchedule.ONE_F_ONE_B,
        recompute=frozenset(), recompute_layers=None, stage_layers=(), offload_activations=0.0,
        offload_weights=0.0, offload_optimizer=0.0,
    )  # fmt: skip


#: Fields of a layout that a job may leave open.
OPEN = (
    "tensor", "context", "pipeline", "data", "expert", "expert_tensor", "chunks", "microbatch",
    "zero",
)  # fmt: skip
