"""Tuning constants of the searches for mappings, with units and reasons.

Shares of time are of the time left. Steps are steps of annealing or descent, of a microsecond or so
each. Temperatures without a unit are in violations: an edge above its bound counts 1 to 2. Negative
log-probabilities are natural logarithms.

Numba compiles globals in as constants and does not look at this file when it reads its cache, so
kernels take what they need of it as arguments. How often a kernel makes which of its moves is
written in the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

# Cuts for memory (partition.py)

#: Numbers of stages by size of device, at most: the states of a DP.
MEMORY_COUNTS = 4000
#: Share of the time for the program that finds a cut whose stages fit the memories.
MEMORY_SHARE = 0.5
#: Lacking memory, per byte of the workload, above which it cannot be rounding of HiGHS.
MEMORY_LACK = 2e-6

# Bounds from blocks (state.py)

#: Devices up to which rings are sought that are spread over blocks (D² pairs for each bisection).
MAX_SPREAD_DEVICES = 600

# Programs of the bottleneck stages (bottleneck_stages.py)


@dataclass(frozen=True)
class BottleneckPrograms:
    """Limits of the search by integer programs of messages and rings."""

    # max_devices, max_devices_beside: devices up to which there are programs, alone and while
    # another process anneals: on 256 devices plans get worse where annealing loses the time;
    # max_devices_one_kind: where no stage has both messages and a ring
    max_devices: int
    max_devices_beside: int
    max_devices_one_kind: int
    # pairs between blocks, per device, up to which a boundary or a ring is in the program
    pairs: float
    share: float  # share of the time for all thresholds
    # step, step_one_kind: first step above the bound, relative, doubled with each threshold that is
    # refuted; where a stage has both messages and a ring, high thresholds take long
    step: float
    step_one_kind: float
    width: float  # relative width at which the bisection ends where some stage has both
    # a solution is repaired at targets that lie by these margins above its threshold, relative
    margins: tuple[float, ...]


#: Programs of messages, rings, or both.
PROGRAMS = BottleneckPrograms(
    max_devices=128,
    max_devices_beside=256,
    max_devices_one_kind=1024,
    pairs=4.0,
    share=0.5,
    step=1e-3,
    step_one_kind=1e-2,
    width=2e-4,
    margins=(0.0, 1e-3, 2e-3, 4e-3),
)

# Annealing at a target (annealing/)

#: Targets from block counts begin above the bound by this part of it.
COUNT_MODEL_STRIDE = 2e-3
#: Splits of a stage's slack between messages and ring that are sampled.
SPLITS = 24
#: An edge that exceeds its bound by 1 / VIOLATION_SCALE of the target or more counts 2.
VIOLATION_SCALE = 5.0
#: Steps of the first repairs, and the factor by which they grow whenever all targets have failed.
FIRST_STEPS, STEPS_GROWTH = 100_000, 1.5
#: A target lies above the last failed one by at most this part of the bound.
TARGET_STRIDE = 0.08
#: Temperatures at which repairs begin that keep most of a good mapping, or forget it; and at which
#: all end.
REPAIR_COOL, REPAIR_HOT, REPAIR_COLD = 0.2, 1.0, 0.1
#: Rounds before the bound by thresholds.
EARLY_ROUNDS = 2

#: Steps per device of annealing with fixed counts.
FIXED_COUNT_STEPS = 1000
#: Temperatures at which it begins and ends.
FIXED_COUNT_HOT, FIXED_COUNT_COLD = 0.7, 0.2
#: Probability that an end of a violated edge is exchanged with any device of its block.
SHUFFLE_RATE = 0.15
#: Probability that two blocks exchange all their devices, while blocks are assigned to counts.
EXCHANGE_RATE = 0.3

#: Steps of annealing counts, per entry of the counts and block: other counts help more than more
#: steps.
COUNT_STEPS = 60
#: Temperatures at which annealing of counts begins and ends, in log-probability. Begun hotter, it
#: breaks up the stages that the initial counts keep in one block, and ends in worse ones.
COUNT_HOT, COUNT_COLD = 0.6, 0.2
#: Probability that two blocks of one size exchange all their counts.
COUNT_EXCHANGE_RATE = 0.1
#: Probability that annealing of counts is also begun from the initial counts.
RESTART_RATE = 0.5
#: Negative log-probability of an edge to which no pair of devices is admitted.
MAX_EDGE_NLL = 60.0
#: Negative log-probability from which on an admitted pair between blocks is rare.
RARE_NLL = 3.0
#: Factor on the weight of a stage's messages, or ring messages, while some exceed their bounds.
VIOLATION_FACTOR = 1.4
#: Log-probability taken from a device of a block that serves a stage, per violated edge there.
PENALTY = 0.3
#: Decay, per update, of penalties (factor) and weights (power).
DECAY = 0.9

# Descents (annealing/costs.py, annealing/targets.py, state.py)

#: Power of a stage's time in the objective of descents, so that the longest stages rule.
TIME_POWER = 8
#: Steps of one descent, and temperatures at which descents begin, in turn.
DESCENT_STEPS, DESCENT_HEATS = 100_000, (0.0, 0.1, 0.3, 1.0)
#: Rounds of annealing between two series of descents.
ROUNDS_BETWEEN_DESCENTS = 2
#: Steps per device of descents that improve the orders of stages alone.
ORDER_STEPS = 50

# Other methods (exact.py, busiest_link.py, joint.py)

#: Devices up to which all sets of devices are searched (2^D of them), and the integer program for
#: the busiest link is solved.
MAX_EXACT_DEVICES = 16
#: Steps of annealing on links at one temperature, and temperatures from hot to cold.
LINK_SLICE_STEPS, LINK_SLICES = 30_000, 8
#: Share of the time for the program of the busiest link. 4 devices at random: proved after 0.15 CPU
#: s, where the bounds before it left 30 %.
LINK_PROGRAM_SHARE = 0.6
#: Seconds, and share of the time, for the program of islands.
ISLAND_SECONDS, ISLAND_SHARE = 20.0, 0.3
#: Share of the time for the two-phase answer from which the joint search starts.
TWO_PHASE_SHARE = 0.2
#: Ideals up to which all cuts are looked at: pairs of them take some seconds for each stage.
MOST_IDEALS = 20_000
#: Numbers of stages by speed of their devices, at most, that the DP over all cuts tells apart.
MOST_SPEEDS = 64
#: Share of the time for the DP over all cuts; the rest cuts the incumbent again if it does not end.
ALL_CUTS_SHARE = 0.7
#: Bytes in which the DP over all cuts keeps where its chains come from, at most.
CUT_BYTES = 1 << 30
#: Part by which the first cutoff of the DP over all cuts is above the work shared out, and by which
#: later ones grow: of 10,000 ideals, at a cutoff of 1.6 times the optimum, the DP takes four times
#: the CPU seconds that it takes at one below the optimum.
FIRST_CUTOFF, CUTOFF_STEP = 0.05, 0.1
#: Ideals of a DP between two looks at the clock.
IDEAL_SLICE = 500
#: Share of the time for the mapping of one cut, and for the cuts of the constructions.
CUT_SHARE = 0.1
#: Rounds of annealing for the mapping of one cut; descents where devices are of unlike speed, and
#: for a mapping that is cut again: with 4, the stages of VGG16 on eight islands, half of them slow,
#: take 18 % longer.
ROUNDS, UNLIKE_ROUNDS = 4, 24
#: Devices, and units times stages, up to which the integer program of cuts and mappings is solved:
#: beyond, it did not end within minutes.
JOINT_DEVICES, JOINT_PLACES = 8, 2_000
