"""Tuning constants of the searches for mappings, with units and reasons.

Shares of time are of the time left. Steps are steps of annealing or descent, of a microsecond or so
each. Temperatures without a unit are in violations: an edge above its bound counts 1 to 2. Negative
log-probabilities are natural logarithms.

Numba compiles globals in as constants and does not look at this file when it reads its cache, so
kernels take what they need of it as arguments. How often a kernel makes which of its moves is
written in the kernel.
"""

from __future__ import annotations

# Time and steps

#: Shares of the time left: for a program or a DP that other steps follow, and for mapping one cut.
SHARE, CUT_SHARE = 0.5, 0.1
#: Seconds for the program of islands, at most.
ISLAND_SECONDS = 20.0
#: Ideals of a DP between two looks at the clock.
IDEAL_SLICE = 500
#: Steps of the first repairs, and their growth whenever all targets up to the incumbent failed.
#: Descents, and annealing on links, take as many steps as a first repair.
STEPS, STEPS_GROWTH = 100_000, 1.5
#: Steps per device of annealing with fixed counts.
FIXED_COUNT_STEPS = 1000
#: Steps of annealing counts, per entry of the counts and block: other counts help more than more
#: steps.
COUNT_STEPS = 60
#: Steps per device for improving the orders of stages for other all-reduces than rings.
ORDER_STEPS = 50
#: Rounds of annealing at targets before the bound by thresholds, between two series of descents,
#: and for the mapping of one cut; and descents for one where devices are of unlike speed: with 4 of
#: these, a mapping of VGG16 on eight islands, half of them slow, is 18 % longer.
ROUNDS, UNLIKE_ROUNDS = 4, 24

# Sizes

#: Devices up to which all sets of devices are searched (2^D of them), and the integer program for
#: the busiest link is solved.
MAX_EXACT_DEVICES = 16
#: Devices up to which rings are sought that are spread over blocks (D² pairs for each bisection).
MAX_SPREAD_DEVICES = 600
#: Devices up to which stages with both messages and a ring are in programs unless another process
#: anneals: on 256 devices plans get worse where annealing loses the time.
MAX_PROGRAM_DEVICES = 128
#: Pairs between blocks, per device, up to which a boundary or a ring is in these programs.
MAX_PAIRS = 4.0
#: Numbers of stages by kind of device that DPs tell apart, at most: over runs of an order, and over
#: all cuts.
MEMORY_COUNTS, MOST_SPEEDS = 4000, 64
#: Memory that is lacking, per byte of the workload, from which on it is no rounding of HiGHS.
MEMORY_LACK = 2e-6
#: Ideals up to which all cuts are looked at: pairs of them take some seconds for each stage.
MOST_IDEALS = 20_000
#: Bytes in which the DP over all cuts keeps where its chains come from, at most.
CUT_BYTES = 1 << 30
#: Units times stages times devices up to which the integer program of cuts and mappings is solved:
#: beyond, it has not ended within minutes.
JOINT_PLACES = 16_000

# Thresholds and targets

#: First step of the programs' thresholds above the bound, as part of the gap; it is doubled with
#: each threshold that is refuted.
FIRST_STEP = 1 / 64
#: Part by which cutoffs of the DP over all cuts grow from the work shared out: of 10,000 ideals,
#: at a cutoff of 1.6 times the optimum, the DP takes four times the CPU seconds that it takes at
#: one below the optimum.
CUTOFF_STEP = 0.1
#: A target lies above the last failed one by at most this part of the bound.
TARGET_STRIDE = 0.08
#: Splits of a stage's slack between messages and ring that are sampled.
SPLITS = 24
#: An edge that exceeds its bound by 1 / VIOLATION_SCALE of the target or more counts 2.
VIOLATION_SCALE = 5.0
#: Power of a stage's time in the objective of descents, so that the longest stages rule.
TIME_POWER = 8

# Temperatures and rates

#: Temperatures at which annealing begins that forgets what it begins with, or keeps it; and the end
#: of repairs. That of counts, and with fixed counts, ends at the second.
HOT, COOL, COLD = 1.0, 0.2, 0.1
#: Temperature at which annealing of counts begins, in log-probability, and with fixed counts. Begun
#: hotter, it breaks up the stages that the initial counts keep in one block, and ends worse.
COUNT_HOT = 0.6
#: Probability that two blocks exchange all their devices, while blocks are assigned to counts; and
#: of exchanges at random: of all counts of two blocks, and of an end of a violated edge with any
#: device of its block.
EXCHANGE_RATE, RANDOM_RATE = 0.3, 0.1
#: Probability that annealing of counts is also begun from the initial counts.
RESTART_RATE = 0.5
#: Negative log-probability from which on an admitted pair between blocks is rare.
RARE_NLL = 3.0
#: Factor on the weight of a stage's messages, or ring messages, if some remain violated.
VIOLATION_FACTOR = 1.4
#: Log-probability taken from a device of a block that serves a stage, per violated edge there.
PENALTY = 0.3
#: Decay, per update, of penalties (factor) and weights (power).
DECAY = 0.9
