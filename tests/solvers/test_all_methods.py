"""The behaviour that every method of every problem must show, whichever it is."""

from __future__ import annotations

import math
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conformance import EXACT, METHODS_OF, Task, chain, task, torn

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    Latency,
    Limits,
    PipelineJob,
    Plan,
    Result,
    Throughput,
    Workload,
    accelerators_and_cpus,
    solve,
    verify,
)
from stagecut.instances import program_workload
from stagecut.runtime import evaluate
from stagecut.solvers import METHODS, Progress
from stagecut.solvers.core.method import SolverName
from stagecut.solvers.job.methods import RULES
from stagecut.solvers.throughput.partitioners import GPART

EVERY = [(problem, method) for problem in METHODS_OF for method in METHODS_OF[problem]]
TINY, HUGE = 1e-12, 1e12
#: Ends what hangs; no test waits for it.
LIMITS = Limits(seconds=120, nodes=2000)
#: The same for methods that prove nothing, or seldom: they go on to the last round.
FEW = replace(LIMITS, nodes=6)


def module_of(problem: str, method: str) -> str:
    """Module of a method's solver."""
    solver = METHODS[task(problem).problem.name][method].solve
    return solver.name.rpartition(".")[0] if isinstance(solver, SolverName) else solver.__module__


#: The first method of each module of solvers: for what all owe to `Search` and to `solve`, and not
#: to themselves.
FIRST = list({(problem, module_of(problem, method)): (problem, method)
              for problem, method in reversed(EVERY)}.values())[::-1]  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What holds of all methods is tried with the first of each module; with all if asked."""
    for fixture, some in (("each", EVERY), ("first", FIRST)):
        if fixture in metafunc.fixturenames:
            methods = EVERY if metafunc.config.option.everything else some
            metafunc.parametrize(fixture, methods, ids="-".join, indirect=True)


@pytest.fixture
def each(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Every problem with every method in turn."""
    return available(*request.param)


@pytest.fixture
def first(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Every problem with the first method of each module in turn."""
    return available(*request.param)


@pytest.fixture(params=METHODS["throughput"])
def method(request: pytest.FixtureRequest) -> str:
    """Every method for throughput in turn."""
    return available("throughput", request.param)[1]


def available(problem: str, method: str) -> tuple[str, str]:
    """Skip a method whose package is not installed."""
    if method == "metis":
        pytest.importorskip("pymetis")
    if method == "scotch" and not any(map(shutil.which, GPART)):
        pytest.skip("Scotch is not installed")
    if method == "expert":
        pytest.skip("it plans nothing, and reads a file")
    if method == "learned":
        pytest.importorskip("torch")
    return problem, method


def asked(of: Task, method: str, limits: Limits | None = None, start: Plan | None = None) -> Result:
    """What a method says; its plan is verified, and its bound no higher."""
    limits = limits or (LIMITS if method in EXACT[of.problem.name] else FEW)
    result = solve(of.workload, of.cluster, of.problem, method=method, limits=limits, start=start)
    consistent(of, result)
    return result


def consistent(of: Task, result: Result) -> None:
    """Status, plan and bound say the same."""
    assert (result.plan is None) == (result.status in ("infeasible", "no solution"))
    assert bool(result.reason) == (result.status == "infeasible")
    assert not any("defect" in note for note in result.notes), result.notes
    if result.plan is not None:
        verify(of.workload, result.plan)
        assert result.bound <= result.plan.objective


def explained(problem: str, method: str, result: Result) -> None:
    """A limit is named where a search to the end did not come to its end."""
    ended = result.status in ("optimal", "infeasible") or method not in EXACT[problem]
    assert ended or result.limit != "none", (result.status, result.gap, result.notes)


def best(of: Task, method: str) -> Plan:
    """The plan of a method that must find one; a rule of a framework may say why it has none."""
    result = asked(of, method)
    if result.plan is None and method in RULES:
        assert result.notes[-1].startswith(f"{method}: ")
        pytest.skip(result.notes[-1])
    assert result.plan is not None, result.notes
    return result.plan


@cache
def usual(problem: str, method: str, room: float = math.inf) -> Plan:
    """The plan of the default task by a method that must find one."""
    return best(task(problem, room=room), method)


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans are one."""
    return repr(one.solution) == repr(other.solution) and one.objective == other.objective


def test_a_search_to_the_end_proves_its_plan(each: tuple[str, str]) -> None:
    problem, method = each
    result = asked(task(problem), method)
    assert result.plan is not None
    explained(problem, method, result)
    if method in EXACT[problem]:
        assert result.status == "optimal"


def test_one_node(first: tuple[str, str]) -> None:
    problem, method = first
    plan = best(task(problem, [3.0]), method)
    assert plan.objective == pytest.approx(best(task(problem, [3.0]), "auto").objective)


def test_no_edges(first: tuple[str, str]) -> None:
    problem, method = first
    best(task(problem, [1.0, 2.0, 3.0], []), method)


def test_two_components(each: tuple[str, str]) -> None:
    problem, method = each
    best(task(problem, [1.0, 1.0, 1.0, 1.0], [(0, 1), (2, 3)]), method)


def test_nothing_costs_anything(each: tuple[str, str]) -> None:
    problem, method = each
    of = task(problem, [0.0, 0.0, 0.0])
    assert best(of, method).objective == 0.0
    assert asked(of, method).status == "optimal"


@pytest.mark.parametrize("scale", [TINY, HUGE])
def test_costs_far_from_one(first: tuple[str, str], scale: float) -> None:
    problem, method = first
    plan, least = best(task(problem, scale=scale), method), usual(problem, method)
    if method in EXACT[problem]:
        assert plan.objective == pytest.approx(scale * least.objective, rel=2e-6)


@pytest.mark.parametrize("problem", METHODS_OF)
def test_an_empty_workload_is_refused(problem: str) -> None:
    with pytest.raises(InputError, match="no nodes"):
        asked(task(problem, []), "auto")


def test_no_room_is_infeasible_or_no_plan(each: tuple[str, str]) -> None:
    problem, method = each
    result = asked(task(problem, room=0.5), method)
    assert result.plan is None
    if method in EXACT[problem] and problem != "mapping":
        assert result.status == "infeasible"
        assert "byte" in result.reason
    elif result.status == "infeasible":  # then it says what is provably too large
        assert "byte" in result.reason or "are missing" in result.reason


def test_a_deadline_that_is_over_is_the_limit(first: tuple[str, str]) -> None:
    problem, method = first
    of = task(problem, [1.0] * 20)
    result = asked(of, method, Limits(seconds=1e-9))
    assert result.limit in ("time", "none")
    explained(problem, method, result)
    if method == "auto":
        assert result.plan is not None
        assert result.limit == "time" or result.status == "optimal"


@pytest.mark.parametrize("nodes", [0, 1])
def test_a_limit_of_nodes_is_named(first: tuple[str, str], nodes: int) -> None:
    problem, method = first
    result = asked(task(problem, [1.0, 2.5, 3.0, 2.1, 1.7, 4.0]), method, Limits(nodes=nodes))
    assert result.limit in ("nodes", "none")
    explained(problem, method, result)


def test_the_same_input_and_seed_give_the_same_plan(first: tuple[str, str]) -> None:
    """In a thread, too, where no signals come."""
    problem, method = first

    def plan() -> Plan | None:
        return asked(task(problem), method, Limits(nodes=6, seed=3)).plan

    one = plan()
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(plan).result()
    assert one is not None
    assert other is not None
    assert same(one, other)


def test_a_start_is_never_lost(first: tuple[str, str]) -> None:
    problem, method = first
    start = usual(problem, "auto")
    result = asked(task(problem), method, start=start)
    assert result.plan is not None
    assert result.plan.objective <= start.objective


def test_a_start_that_breaks_a_rule_is_said_not_to_be_used(first: tuple[str, str]) -> None:
    problem, method = first
    room = 3.0 if problem in ("throughput", "latency") else math.inf  # for half of the nodes
    start = torn(usual(problem, "auto", room))
    result = asked(task(problem, room=room), method, start=start)
    assert any("start breaks a rule" in note for note in result.notes)
    assert result.plan is not None or method not in EXACT[problem]


def test_an_interrupt_ends_a_search_with_its_best(first: tuple[str, str]) -> None:
    """Ctrl-C at the first plan, while the method is at work in its own thread."""
    problem, method = first
    of = task(problem, [1.0, 2.5, 3.0, 2.1, 1.7, 4.0, 2.2, 1.3])
    before = signal.getsignal(signal.SIGINT)
    pressed: list[float] = []

    def press(progress: Progress) -> None:
        if pressed or math.isinf(progress.point.objective):
            return
        pressed.append(progress.point.objective)
        signal.raise_signal(signal.SIGINT)
        while signal.getsignal(signal.SIGINT) is not before:  # the main thread has yet to look
            time.sleep(1e-3)

    result = solve(
        of.workload, of.cluster, of.problem, method=method, limits=LIMITS, on_progress=press
    )
    consistent(of, result)
    assert result.objective is not None
    assert result.objective <= pressed[0]
    assert result.limit in ("interrupt", "none")
    explained(problem, method, result)


# What throughput alone knows


def planned(workload: Workload, cluster: Cluster, method: str) -> Plan:
    """The plan of a throughput method that must find one."""
    return best(Task(workload, cluster, Throughput()), method)


def test_one_node_takes_its_time(method: str) -> None:
    assert planned(chain([3.0]), accelerators_and_cpus(1), method).objective == 3.0


def test_only_cpu_cores(method: str) -> None:
    if method in ("metis", "scotch"):
        with pytest.raises(InputError, match="accelerator"):
            solve(chain([1.0]), accelerators_and_cpus(0, 1), method=method)
        return
    assert planned(chain([1.0, 1.0]), accelerators_and_cpus(0, 2), method).objective <= 20.0


def test_a_node_that_no_device_supports_is_infeasible_or_no_plan(method: str) -> None:
    times = {"accelerator": np.array([1.0, math.inf]), "cpu": np.array([1.0, math.inf])}
    result = solve(chain([1.0, 1.0], times=times), accelerators_and_cpus(1, 1), method=method,
                   limits=LIMITS)  # fmt: skip
    assert result.plan is None
    if method in ("auto", "dp", "milp"):
        assert result.status == "infeasible"
        assert "node 1" in result.reason


def test_no_times_for_a_kind_of_device_is_bad_input(method: str) -> None:
    cluster = Cluster((DeviceKind("tpu", 1, times="tpu"),))
    with pytest.raises(InputError, match="no times for device kind 'tpu'"):
        solve(chain([1.0]), cluster, method=method)


def test_set_partitioning_refuses_contiguous_splits() -> None:
    of = task("throughput")
    with pytest.raises(InputError, match="noncontiguous"):
        solve(of.workload, of.cluster, Throughput(split="contiguous"), method="column-generation")


def test_a_start_for_another_split_is_said_not_to_be_used() -> None:
    """Nodes of two colours in turn are in one piece only if all are."""
    workload = chain([1.0] * 4, transfer=np.zeros(4), colours=np.array([0, -1, 0, -1]))
    cluster = accelerators_and_cpus(2)
    start = planned(workload, cluster, "milp")
    assert start.objective == 2.0
    result = solve(workload, cluster, Throughput("contiguous"), method="single", start=start)
    assert any("start breaks a rule" in note for note in result.notes)
    assert result.objective == 4.0


def test_a_search_without_end_is_ended_by_time() -> None:
    of = Task(chain([1.0] * 20), accelerators_and_cpus(3), Throughput())
    result = asked(of, "local-search", Limits(seconds=0.5))
    assert result.limit == "time"
    assert result.plan is not None


BYTES = 10**10 + 1


def heavy(problem: str, room: float) -> Task:
    """The task of a problem, each of whose bytes are ten billion and one."""
    of = task(problem, (1.0, 1.0, 1.0, 1.0), room=room)
    workload = of.workload
    layers = workload.layers
    if layers is not None:
        layers = replace(layers, fixed_bytes=layers.fixed_bytes * BYTES)
    program = workload.program
    if program is not None:
        tensors = tuple(replace(one, shape=(4, BYTES)) for one in program.tensors)
        heavier = replace(program, tensors=tensors)
        workload = program_workload(heavier, workload.name, time_unit=workload.time_unit)
    else:
        sizes = BYTES * workload.memory_bytes
        workload = replace(workload, memory_bytes=sizes, layers=layers)
    return replace(of, workload=workload)


@pytest.mark.parametrize("problem", METHODS_OF)
def test_whole_bytes_count_exactly(problem: str) -> None:
    """A plan fits into as many bytes as it takes, and not into one less."""
    of = heavy(problem, math.inf)
    plan = asked(of, "auto").plan
    assert plan is not None

    def fits(room: float) -> bool:
        there = heavy(problem, room)
        cluster = replace(there.cluster, kinds=(*there.cluster.kinds[:1], *of.cluster.kinds[1:]))
        return not evaluate(of.workload, cluster, there.problem, plan.solution).violations

    low, high = BYTES // 2, 100 * BYTES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    assert high % BYTES == 0 or problem in ("stream", "sharding"), high
    assert fits(high)
    assert not fits(high - 1)


@pytest.mark.parametrize("problem", ["throughput", "latency", "iteration"])
def test_exact_methods_count_whole_bytes(problem: str) -> None:
    """Two nodes that belong together fit on one device, or take one byte more than that has."""
    problems = {
        "throughput": Throughput(),
        "latency": Latency(),
        "iteration": PipelineJob(1, "1f1b"),
    }
    sizes = np.full(2, 6e9 + 5)
    workload = chain([1.0, 1.0], memory_bytes=sizes, transfer=np.array([50.0, 0.0]))
    for room, least in ((sizes.sum() - 1, 50.0), (sizes.sum(), 2.0)):
        of = Task(workload, accelerators_and_cpus(2, 0, float(room)), problems[problem])
        for method in EXACT[problem]:
            result = asked(of, method)
            # within HiGHS's tolerance both fit, so that its bound is that of one device
            assert result.status == "optimal" or (problem, method) == ("iteration", "milp")
            assert result.objective is not None
            assert (result.objective < 50.0) == (least < 50.0), (method, room)
