"""All tuning constants of the searches for mappings: what each limits, in which unit, and why.

Shares of time are of the time left. Steps are steps of annealing or descent, of a microsecond or so
each. Temperatures without a unit are in violations: an edge above its bound counts 1 to 2.

Numba compiles globals in as constants and does not look at this file when it reads its cache, so
kernels take what they need of it as arguments. How often a kernel makes which of its moves is
written in the kernel.
"""

from __future__ import annotations

# First stages (partition.py)

#: A coarse unit takes at most this share of the time of an even stage.
COARSE_UNIT_SHARE = 0.1

# Bounds from blocks (search.py, segments.py, programs/counts.py)

#: Thresholds at which unsplittable segments are packed into blocks, each 2 % above the last.
SEGMENT_TARGETS = 16
#: Devices up to which rings are sought that are spread over blocks (D² pairs for each bisection).
MAX_SPREAD_DEVICES = 600
#: Seconds, and share of the time, for bisecting the threshold with counts per block.
BLOCK_SECONDS, BLOCK_SHARE = 20.0, 0.25
#: Relative width at which that bisection ends; the search narrows it further.
BLOCK_WIDTH = 2e-3
#: Seconds for one program of counts; what it does not refute counts as possible.
COUNT_PROGRAM_SECONDS = 4.0
#: Branch-and-bound nodes for one program of counts.
COUNT_PROGRAM_NODES = 2000
#: Devices up to which counts per block are bisected. 64 devices: the gap after 20 CPU s falls from
#: 1.6 % to 0.4 % and from 2.1 % to 1.5 %; 256: no better bound, and the gap rises, from 1.0 % to
#: 5.2 % and from 2.0 % to 2.3 %, since its time is taken from the annealing.
MAX_COUNT_DEVICES = 128

# Searches for the least feasible threshold (programs/)

#: First step above the bound, relative, and the growth of steps until a threshold is feasible.
THRESHOLD_STEP, THRESHOLD_GROWTH = 1e-4, 3.0

#: Pairs between blocks, per device, up to which a stage's ring is in the program: in turn.
RING_PAIRS = 2.0, 8.0
#: Devices up to which rings are sought by programs: tables of pairs grow as D².
RING_MAX_DEVICES = 2048
#: Seconds for one ring program; what it does not refute counts as possible.
RING_PROGRAM_SECONDS = 3.0
#: Seconds, and share of the time, for the bound by rings.
RING_SECONDS, RING_SHARE = 120.0, 0.3
#: Attempts to complete the rings of the least feasible threshold, each with other rings.
RING_ATTEMPTS = 8
#: Steps of the first repair of a completed mapping; doubled with each attempt.
RING_REPAIR_STEPS = 20_000

#: Pairs between blocks, per device, up to which a boundary is in the program: in turn.
MESSAGE_PAIRS = 4.0, 4.0, 16.0
#: Devices up to which messages are sought by programs: tables of pairs grow as D².
MESSAGE_MAX_DEVICES = 1024
#: Seconds for one message program, in turn, and share of the time.
MESSAGE_PROGRAM_SECONDS, MESSAGE_PROGRAM_SHARE = (3.0, 10.0, 30.0), 0.12
#: Share of a message program's time that HiGHS gives to its heuristics.
MESSAGE_HEURISTICS = 0.3
#: Seconds, and share of the time, for the bound by messages.
MESSAGE_SECONDS, MESSAGE_SHARE = 300.0, 0.33
#: A feasible threshold this far below the incumbent, relative, is completed to a mapping at once.
MESSAGE_COMPLETE_MARGIN = 1e-3
#: Pairs between blocks, per device, of a boundary with many when a mapping is completed.
COMPLETION_PAIRS = 8
#: Attempts to complete the messages of the least feasible threshold, each with other devices.
MESSAGE_ATTEMPTS = 4
#: Steps of the first repair of a completed mapping; doubled with each attempt.
MESSAGE_REPAIR_STEPS = 50_000
#: Temperatures at which the repairs of completed mappings begin and end: low, so that stages
#: without violation stay.
COMPLETE_HOT, COMPLETE_COLD = 0.2, 0.1

#: Devices up to which messages and rings are in one program, alone and while another process
#: anneals: on 256 devices plans get worse where annealing loses the time.
BOTH_MAX_DEVICES, BOTH_BESIDE_DEVICES = 128, 256
#: Pairs between blocks, per device, up to which a boundary or a ring is in it.
BOTH_PAIRS = 4.0
#: Share of the time of HiGHS for heuristics: most programs have no solution.
BOTH_HEURISTICS = 0.0
#: Share of the time for all thresholds, and for one.
BOTH_SHARE, BOTH_TEST_SHARE = 0.5, 0.3
#: First step above the bound, relative; steps grow while a threshold takes less than this share
#: of the time.
BOTH_STEP, BOTH_QUICK = 1e-3, 0.02
#: Relative width at which the bisection ends.
BOTH_WIDTH = 2e-4
#: Repairs of a solution at each of these targets, relative above its threshold, and their steps.
BOTH_ATTEMPTS, BOTH_MARGINS = 4, (0.0, 1e-3, 2e-3, 4e-3)
BOTH_REPAIR_STEPS = 100_000

#: What `methods.py` calls the annealing that runs beside: the bound then gets all the time.
ANNEALING = "annealing"

# Annealing at a target (annealing/)

#: Splits of a stage's slack between messages and ring that are told apart.
SPLITS = 24
#: An edge that exceeds its bound by 1 / VIOLATION_SCALE of the target or more counts 2.
VIOLATION_SCALE = 5.0
#: Least target in seconds by which violations are scaled: stages may take no time at all.
MIN_TARGET_SECONDS = 1e-300
#: Steps of the first repairs, and their growth whenever all targets up to the incumbent failed.
FIRST_STEPS, STEPS_GROWTH = 100_000, 1.5
#: Steps between two looks at the clock.
SLICE_STEPS = 200_000
#: A target lies above the last failed one by at most this part of the bound.
TARGET_STRIDE = 0.08
#: Temperatures at which repairs begin that keep a good mapping, and that forget it; and the end.
REPAIR_COOL, REPAIR_HOT, REPAIR_COLD = 0.2, 1.0, 0.1
#: Rounds before the bound by thresholds, and on few devices before the exact search.
EARLY_ROUNDS, EXACT_ROUNDS = 2, 8

#: Steps per device of annealing with fixed counts.
FIXED_COUNT_STEPS = 1000
#: Temperatures at which it begins and ends.
FIXED_COUNT_HOT, FIXED_COUNT_COLD = 0.7, 0.2
#: Probability that an end of a violated edge is exchanged with any device of its block.
SHUFFLE_RATE = 0.15
#: Probability that two blocks exchange all their devices, while blocks are assigned to counts.
EXCHANGE_RATE = 0.3

#: Steps of annealing counts, per entry of the counts squared by blocks. Other counts help more
#: than more steps.
COUNT_STEPS = 60
#: Steps of annealing counts at most: some seconds; 4096 devices in blocks of 8 would have 270
#: million, 512 devices have 2 million.
MAX_COUNT_STEPS = 10_000_000
#: Work of a step on counts, in steps of repair.
COUNT_WORK = 0.3
#: Temperatures in nats at which annealing of counts begins and ends. Begun hotter, it breaks up
#: the stages that the first counts keep in one block, and ends in worse ones.
COUNT_HOT, COUNT_COLD = 0.6, 0.2
#: Probability that two blocks of one size exchange all their counts.
COUNT_EXCHANGE_RATE = 0.1
#: Probability that annealing of counts is also begun from the first counts.
RESTART_RATE = 0.5
#: Cost in nats of an edge that no pair of devices can carry.
FORBIDDEN = 60.0
#: Pairs of devices, about, from which the shares of admitted pairs are estimated.
SAMPLE_PAIRS = 1 << 17
#: Splits of a stage whose cost exceeds the best one's by more than this, in nats, are left out.
LIKELY_NATS = 5.0
#: Cost in nats from which on a link between blocks is rare.
RARE_NATS = 3.0
#: Factor on the weight of a stage's messages, or ring messages, of which some stay violated.
VIOLATION_FACTOR = 1.4
#: Price in nats added to a device of a block for a stage, per violated edge that ends there.
PENALTY = 0.3
#: Decay, per update, of prices (factor) and weights (power).
DECAY = 0.9

# Descents (annealing/stage_times.py, annealing/targets.py, search.py)

#: Power of a stage's time in the objective of descents, so that the longest stages rule.
TIME_POWER = 8
#: Steps of one descent, and temperatures at which descents begin, in turn.
DESCENT_STEPS, DESCENT_HEATS = 100_000, (0.0, 0.1, 0.3, 1.0)
#: Temperature at which a descent ends, over that at which it begins.
COOLING = 0.01
#: Rounds of annealing between two series of descents.
ROUNDS_BETWEEN_DESCENTS = 2
#: Steps per device for improving the orders of stages for other all-reduces than rings.
ORDER_STEPS = 50
#: Between two looks at the clock while ties are broken: messages read, and steps per slot.
TIE_MESSAGES, TIE_STEPS = 2_000_000, 500
#: Slices without progress after which ties are left as they are.
TIE_PATIENCE = 3

# Other methods (exact.py, links.py, milp.py)

#: Devices up to which all sets of devices are searched (2^D of them), and the integer program for
#: the busiest link is solved.
MAX_EXACT_DEVICES = 16
#: Pairs of sets, over all boundaries, whose matchings are remembered; a byte each.
REMEMBERED_PAIRS = 1 << 25
#: Sets of devices between two looks at the clock: some tenths of a second.
EXACT_SLICE = 500_000
#: Steps of annealing on links between two looks at the clock, and slices from hot to cold.
LINK_SLICE_STEPS, LINK_SLICES = 30_000, 8
#: Share of the time for the program of the busiest link. 4 devices at random: proved after 0.15 CPU
#: s, where the bounds before it left 30 %.
LINK_PROGRAM_SHARE = 0.6
#: Seconds for each program of islands; and shares of the time for devices and for counts.
ISLAND_SECONDS, ISLAND_SHARE, ISLAND_COUNT_SHARE = 20.0, 0.3, 0.2
#: Share of the time for the two-phase answer from which the joint program starts.
TWO_PHASE_SHARE = 0.2
