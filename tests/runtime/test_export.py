"""Plans for other launchers: what is written says the plan; what cannot be said is refused."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import typer
from launcher_readers import written
from pipelines import plan_of, random_plan
from trainer_config import trainer_config
from typer.testing import CliRunner

from stagecut import (
    Cluster,
    DeviceKind,
    InputError,
    PipelineJob,
    Plan,
    Workload,
    accelerators_and_cpus,
    load,
    load_plan,
    save,
    solve,
)
from stagecut.cli import app
from stagecut.commands.export import export
from stagecut.instances import CallPlacement, DeviceMapping, Layers, ReplicaPlacement, Stage
from stagecut.instances.common.units import ON_NUMBERS
from stagecut.instances.model.problem import Latency
from stagecut.instances.model.solution import in_stages
from stagecut.instances.topologies import topology
from stagecut.runtime.execution.chain import executed_stages
from stagecut.runtime.export.registry import LAUNCHERS, takers, torch_schedule
from stagecut.runtime.export.stages import first_number
from stagecut.runtime.schedules import Action, read_csv, schedule_of, validate, write_csv

PIPELINES = ("torchtitan", "megatron", "deepspeed", "vllm")


def model(names: list[str], edges: list[tuple[int, int]] | None = None, **more) -> Workload:
    """Return a workload with these nodes, a chain by default."""
    n = len(names)
    chain = [(v, v + 1) for v in range(n - 1)]
    return Workload(
        name="net",
        ids=tuple(names),
        edges=np.array(chain if edges is None else edges, np.int64).reshape(-1, 2),
        times={"accelerator": np.ones(n), "cpu": np.ones(n)},
        memory_bytes=np.ones(n),
        transfer=np.zeros(n),
        extra={"parameters": np.ones(n)} | more.pop("extra", {}),
        **more,
    )


def transformer(layers: int = 8, inside: bool = False, **more) -> Workload:
    """Return embedding, layers, norm and head; layers as one node or two."""
    names = ["embed"]
    for k in range(layers):
        names += [f"layers.{k}.attention", f"layers.{k}.mlp"] if inside else [f"layers.{k}"]
    return model([*names, "norm", "head"], **more)


def placed(workload: Workload, devices: list[int], count: int = 4, cpus: int = 0) -> Plan:
    """Return the plan with these devices."""
    kinds = (DeviceKind("accelerator", count), DeviceKind("cpu", cpus, host=True))
    return plan_of(workload, Cluster(kinds), np.array(devices))


def in_parts(workload: Workload, sizes: list[int], devices: list[int] | None = None) -> Plan:
    """Return the plan with so many nodes on each device, one after the other."""
    numbers = devices or list(range(len(sizes)))
    return placed(workload, np.repeat(numbers, sizes).tolist(), max(numbers) + 1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", LAUNCHERS)
def test_random_cuts_are_said_as_planned(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, ranks = int(rng.integers(4, 12)), int(rng.integers(2, 5))
    workload = transformer(layers)
    cuts = np.sort(rng.choice(np.arange(1, layers), ranks - 1, replace=False))
    ends = [0, *(int(c) + 1 for c in cuts), workload.n]  # no stage without a layer
    order = rng.permutation(ranks).tolist()  # devices need not come in order
    plan = in_parts(workload, np.diff(ends).tolist(), order)
    wanted = [workload.ids[a:b] for a, b in pairwise(ends)]
    text, stages = written(workload, plan, name)
    assert stages.modules == tuple(wanted)
    counts = [sum(node.startswith("layers.") for node in own) for own in wanted]
    if name == "torchtitan":
        config = trainer_config(text)
        assert config.parallelism.module_fqns_per_model_part == [list(own) for own in wanted]
        assert config.parallelism.pipeline_parallel_degree == ranks
        assert config.parallelism.pipeline_parallel_schedule == "1F1B"
    elif name == "megatron":
        (layout,) = re.findall(r"layout '(.*)'", text)
        letters = re.sub(r"t\*(\d+)", lambda found: "t" * int(found[1]), layout)
        assert letters == "E" + "|".join("t" * count for count in counts) + "L"
        assert f"--num-layers {layers}" in text
    elif name == "vllm":
        assert f"VLLM_PP_LAYER_PARTITION={','.join(map(str, counts))}\n" in text
        assert f"--pipeline-parallel-size {ranks} " in text
    elif name == "deepspeed":
        assert f"PARTS = {tuple(ends)}" in text
    else:
        assert json.loads(text) == dict(zip(workload.ids, plan.placement.tolist(), strict=True))


@pytest.mark.parametrize("name", ["torchtitan", "megatron", "vllm"])
def test_parts_of_a_layer_make_up_the_layer(name: str) -> None:
    workload = transformer(4, inside=True)
    _, stages = written(workload, in_parts(workload, [5, 6]), name)
    first = ("embed", "layers.0", "layers.1")
    assert stages.modules == (first, ("layers.2", "layers.3", "norm", "head"))


def test_deepspeed_takes_parts_of_layers_in_a_chain_and_layers_otherwise() -> None:
    workload = transformer(2, inside=True)
    _, stages = written(workload, in_parts(workload, [2, 5]), "deepspeed")
    assert stages.modules[0] == ("embed", "layers.0.attention")
    inner = transformer(2, inside=True, edges=[*pairwise(range(7)), (0, 2)])
    _, stages = written(inner, in_parts(inner, [3, 4]), "deepspeed")
    assert stages.modules == (("embed", "layers.0"), ("layers.1", "norm", "head"))


@pytest.mark.parametrize("name", ["torchtitan", "megatron", "deepspeed", "accelerate"])
def test_training_workloads_are_cut_by_their_forward_passes(name: str) -> None:
    workload = load("gpt2-xl-training")
    where = {"embedding": 0, "head": 2, "loss": 2, "embedding.tokens.exchange": 2}
    where |= {f"block.{k}": min(2, k // 15) for k in range(48)}
    devices = [where[first_number(n.removesuffix(".backward"))] for n in workload.ids]
    _, stages = written(workload, placed(workload, devices, 3), name)
    assert len(stages.modules) == 3
    ends = [(first_number(own[0]), first_number(own[-1])) for own in stages.modules]
    assert ends == [("embedding", "block.14"), ("block.15", "block.29"), ("block.30", "loss")]


@pytest.mark.parametrize("name", ["torchtitan", "megatron"])
def test_stages_may_go_round_the_ranks(name: str) -> None:
    workload = transformer(8)
    plan = in_parts(workload, [3, 2, 2, 4], [1, 0, 1, 0])
    text, stages = written(workload, plan, name)
    assert stages.ranks == 2
    assert stages.devices == ("accelerator 1", "accelerator 0")
    assert [len(own) for own in stages.modules] == [3, 2, 2, 4]
    assert ("Interleaved1F1B" in text) == (name == "torchtitan")
    assert ("'Ett|tt|tt|ttL'" in text) == (name == "megatron")


def test_what_only_holds_modules_together_is_no_module() -> None:
    names = ["body.embed", "model", "body", "body.layers.0", "body.layers.1", "body.layers.0#2"]
    edges = [(0, 1), (1, 2), (2, 3), (3, 5), (5, 4)]
    weights = {"parameters": np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])}
    workload = model(names, edges, extra=weights, provenance={"granularity": "modules, depth 2"})
    text, _ = written(workload, placed(workload, [0, 1, 1, 0, 1, 0]), "accelerate")
    assert json.loads(text) == {"body.embed": 0, "body.layers.0": 0, "body.layers.1": 1}
    with pytest.raises(InputError, match=r"body\.layers\.0 is split between"):
        written(workload, placed(workload, [0, 1, 1, 0, 1, 1]), "accelerate")
    heavy = model(names, edges, extra={"parameters": np.ones(6)})
    with pytest.raises(InputError, match="has weights of its own"):
        written(heavy, placed(heavy, [0] * 6), "accelerate")


def test_what_holds_modules_together_hands_their_data_on() -> None:
    names = ["tokens", "places", "model", "h.0.norm", "h.0.mlp", "h.0", "h.1", "h.2", "head"]
    edges = [(0, 2), (1, 2), (2, 3), (3, 4), (2, 5), (4, 5), (5, 6), (6, 7), (7, 8)]
    weights = np.array([1.0, 1, 0, 1, 1, 0, 1, 1, 1])
    net = model(names, edges, extra={"parameters": weights})
    _, stages = written(net, in_parts(net, [6, 3]), "deepspeed")
    assert stages.modules == (("tokens + places", "h.0"), ("h.1", "h.2", "head"))
    _, stages = written(net, in_parts(net, [6, 3]), "megatron")
    assert stages.modules[0] == ("tokens", "places", "h.0")
    for name in PIPELINES:  # the sum at the end of h.0 is on the second stage
        with pytest.raises(InputError, match=r"module h(\.0)? is split between stages 0 and 1"):
            written(net, in_parts(net, [5, 4]), name)
    skip = model(
        [*names, "model#2"],
        [*edges[:-1], (6, 9), (7, 9), (9, 8)],
        extra={"parameters": np.append(weights, 0.0)},
    )
    with pytest.raises(InputError, match=r"h\.1 on stage 0 feeds head on stage 2"):
        written(skip, placed(skip, [0] * 7 + [1, 2, 2]), "megatron")


SKIPS = [(v, v + 1) for v in range(10)] + [(1, 9)]
TRAINING = {"backward": np.array([False] * 10 + [True])}


@pytest.mark.parametrize(
    ("name", "workload", "devices", "reason"),
    [
        *[(p, transformer(), [0, 0, 1, 1, 0, 0, 0, 2, 2, 2, 2], "") for p in PIPELINES],
        *[(p, transformer(edges=SKIPS), [0] * 4 + [1] * 4 + [2] * 3, "") for p in PIPELINES],
        *[(p, transformer(), [0] * 10 + [4], "computes in host memory") for p in PIPELINES],
        ("torchtitan", transformer(4, True), [0] * 4 + [1] * 7, "layers.1 is split between"),
        ("megatron", transformer(4, True), [0] * 4 + [1] * 7, "layers.1 is split between"),
        ("vllm", transformer(4, True), [0] * 4 + [1] * 7, "layers.1 is split between"),
        ("vllm", transformer(), [0] + [1] * 10, "stage 0 holds no layer"),
        ("vllm", transformer(), [0] * 9 + [1] * 2, "stage 1 holds no layer"),
        ("vllm", transformer(**TRAINING), [0] * 5 + [1] * 6, "the plan trains"),
        ("megatron", transformer(), [0] * 10 + [1], "after the last layer is on stages 0 and 1"),
        ("megatron", model(list("abcd")), [0, 0, 1, 1], "no list of them"),
        ("vllm", model(["x.0", "y.0", "x.1"]), [0, 0, 1], "2 lists of layers (x, y)"),
        ("megatron", model(["x.1", "x.0", "y"]), [0, 1, 1], "do not run in the order"),
        ("megatron", model(["x.0", "y", "x.1"]), [0, 0, 1], "between the layers of x"),
        ("vllm", model(["x.0", "x.1", "y", "x.2"]), [0, 1, 1, 1], "between the layers of x"),
        ("deepspeed", transformer(edges=SKIPS), [0] * 6 + [1] * 5, "feeds norm + head past other"),
        (
            "torchtitan",
            model(["body.h.0", "body.h.1"]), [0, 1], "module body is split",
        ),
        (
            "torchtitan",
            model(["a", "b"], provenance={"granularity": "operators"}), [0, 1], "are operators",
        ),
    ],
)  # fmt: skip
def test_what_a_launcher_cannot_say_is_refused(
    name: str, workload: Workload, devices: list[int], reason: str
) -> None:
    plan = placed(workload, devices, cpus=1)
    with pytest.raises(InputError) as refused:
        written(workload, plan, name)
    assert str(refused.value).startswith(f"{name}: ")
    assert reason in str(refused.value)


def layered(degrees: list[tuple[int, int]], recompute: list[bool]) -> tuple[Workload, Plan]:
    """Return a plan of two layers a stage with these replicas and tensor degrees."""
    n = 2 * len(degrees)
    rows = [(v, t, again) for v in range(n) for t in (1, 2) for again in (False, True)]
    ones = np.ones(len(rows))
    layers = Layers(
        node=np.array([row[0] for row in rows]),
        degree=np.array([row[1] for row in rows]),
        label=("x",) * len(rows),
        recomputes=np.array([row[2] for row in rows]),
        time=ones,
        weight_bytes=ones,
        bytes_per_microbatch=ones,
        fixed_bytes=ones,
        edge_bytes=np.ones(n - 1),
        sync_bytes=({},) * len(rows),
        microbatches=4,
        bandwidth=1.0,
    )
    workload = replace(model([f"layers.{v}" for v in range(n)]), layers=layers)
    cluster = Cluster((DeviceKind("accelerator", sum(d * t for d, t in degrees)),))
    stages = [
        Stage(
            (2 * s, 2 * s + 1),
            tuple(rows.index((v, t, recompute[v])) for v in (2 * s, 2 * s + 1)),
            d,
            t,
        )
        for s, (d, t) in enumerate(degrees)
    ]
    return workload, Plan(
        workload.name, workload.fingerprint, cluster, PipelineJob(), in_stages(stages, cluster),
        1.0, 0.0, "test", workload.time_unit,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["torchtitan", "megatron", "deepspeed"])
def test_degrees_and_recomputation_are_said(name: str) -> None:
    workload, plan = layered([(2, 2), (2, 2)], [True] * 4)
    text, stages = written(workload, plan, name)
    assert (stages.replicas, stages.degree, stages.recomputes) == (2, 2, True)
    assert stages.devices == ("accelerator 0", "accelerator 4")
    said = {
        "torchtitan": ["replicate_degree = 2", "tensor_parallel_degree = 2", "FullAC.Config()"],
        "megatron": ["WORLD_SIZE=8", "--tensor-model-parallel-size 2", "granularity full"],
        "deepspeed": ["DATA, TENSOR = 2, 2, 2", "RECOMPUTES = True"],
    }
    assert all(words in text for words in said[name])


@pytest.mark.parametrize(
    ("degrees", "recompute", "reason"),
    [
        ([(2, 1), (1, 1)], [False] * 4, "data-parallel degrees 1 and 2"),
        ([(1, 2), (1, 1)], [False] * 4, "tensor-parallel degrees 1 and 2"),
        ([(1, 1), (1, 1)], [True, False, True, True], "in some layers only"),
    ],
)
@pytest.mark.parametrize("name", ["torchtitan", "megatron", "deepspeed"])
def test_unequal_stages_are_refused(name: str, degrees, recompute, reason: str) -> None:
    workload, plan = layered(degrees, recompute)
    with pytest.raises(InputError, match=reason):
        written(workload, plan, name)


def test_a_device_map_holds_one_copy_and_knows_cpus() -> None:
    workload, plan = layered([(2, 1), (2, 1)], [False] * 4)
    with pytest.raises(InputError, match="accelerate: the plan has replicas"):
        written(workload, plan, "accelerate")
    net = transformer(2)
    kinds = (DeviceKind("cpu", 1, host=True), DeviceKind("accelerator", 2))
    text, _ = written(net, plan_of(net, Cluster(kinds), np.array([0, 2, 1, 2, 0])), "accelerate")
    said = json.loads(text)
    assert [said[node] for node in net.ids] == ["cpu", 1, 0, 1, "cpu"]


def test_mapped_plans_have_replicas_and_latency_plans_are_no_pipelines() -> None:
    net = transformer(2)
    problem = DeviceMapping(topology("ring:4"), 2, 2)
    cluster = Cluster((DeviceKind("accelerator", 4),))
    mapped = ReplicaPlacement([0, 0, 1, 1, 1], [[0, 1], [2, 3]], [[0, 1]])
    plan = Plan("net", net.fingerprint, cluster, problem, mapped, 1.0, 0.0, "test", "unspecified")
    _, stages = written(net, plan, "torchtitan")
    assert stages.devices == ("0", "2")
    assert (stages.replicas, stages.modules[0]) == (2, ("embed", "layers.0"))
    calls = CallPlacement(np.array([0, 0, 1, 1, 1]), np.zeros(5, int))
    latency = replace(plan, problem=Latency(), solution=calls)
    with pytest.raises(InputError, match="latency of one request"):
        written(net, latency, "torchtitan")
    assert json.loads(written(net, latency, "accelerate")[0])["head"] == 1


AHEAD = ["embed", *(f"layers.{k}" for k in range(4)), "mtp.0.proj", "mtp.0.layer", "norm", "head"]


@pytest.mark.parametrize(
    ("sizes", "devices", "layout"),
    [
        ([3, 6], None, "Ett|ttmL"),
        ([3, 2, 2, 2], None, "Ett|tt|m|L"),
        ([3, 1, 1, 4], [0, 1, 0, 1], "Ett|t|t|mL"),
    ],
)
def test_multi_token_prediction_is_a_letter_of_its_own(sizes, devices, layout: str) -> None:
    workload = model(AHEAD)
    text, stages = written(workload, in_parts(workload, sizes, devices), "megatron")
    assert f"'{layout}'" in text
    assert "--num-layers 4" in text
    assert "--mtp-num-layers 1" in text
    assert [x for own in stages.modules for x in own].count("mtp.0") == 1


@pytest.mark.parametrize(
    ("names", "sizes", "devices", "reason"),
    [
        (["embed", "layers.0", "mtp.0", "mtp.1", "head"], [2, 1, 2], None, "is on stages 1 and 2"),
        (["embed", "layers.0", "mtp.0", "layers.1", "head"], [1, 2, 2], None, "after all layers"),
        (["embed", "layers.0", "head", "mtp.0"], [2, 1, 1], None, "after the head's stage"),
        (AHEAD, [3, 1, 3, 2], [0, 1, 0, 1], "of the first rank"),
    ],
)
def test_multi_token_prediction_elsewhere_is_refused(names, sizes, devices, reason: str) -> None:
    workload = model(names)
    with pytest.raises(InputError, match=reason):
        written(workload, in_parts(workload, sizes, devices), "megatron")


def test_the_deepspeed_module_cuts_as_planned(monkeypatch) -> None:
    class PipelineModule:
        def __init__(self, layers, topology, **options) -> None:
            self.layers, self._topo, self.options = layers, topology, options
            self.global_rank = 1
            self._partition_layers(method="parameters")

        def _set_bounds(self, start: int, stop: int) -> None:
            self.own = self.layers[start:stop]

    def grid(**degrees):
        return SimpleNamespace(get_coord=lambda rank: SimpleNamespace(pipe=rank), **degrees)

    for path, content in {
        "deepspeed": {},
        "deepspeed.pipe": {"PipelineModule": PipelineModule},
        "deepspeed.runtime": {},
        "deepspeed.runtime.pipe": {},
        "deepspeed.runtime.pipe.topology": {"PipeModelDataParallelTopology": grid},
    }.items():
        module = ModuleType(path)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, path, module)
    workload = transformer(4)
    text, stages = written(workload, in_parts(workload, [2, 3, 2]), "deepspeed")
    scope: dict[str, object] = {}
    exec(compile(text, "planned.py", "exec"), scope)
    made = scope["pipeline"](scope["LAYERS"], loss_fn=None)
    assert tuple(made.own) == stages.modules[1]
    assert (made._topo.num_pp, made._topo.num_dp, made._topo.num_mp) == (3, 1, 1)
    with pytest.raises(ValueError, match="6 layers; the plan has 7"):
        scope["pipeline"](scope["LAYERS"][1:])


@pytest.mark.parametrize("name", ["megatron", "vllm"])
def test_shell_files_are_shell(name: str, tmp_path: Path) -> None:
    import subprocess

    workload = transformer(6)
    text, _ = written(workload, in_parts(workload, [4, 5]), name)
    (tmp_path / "plan.sh").write_text(text)
    script = {
        "megatron": '. ./plan.sh; printf "%s\\n" "${MEGATRON_ARGS[@]}"',
        "vllm": 'vllm() { printf "%s\\n" "$@"; }; . ./plan.sh my/model; env | grep VLLM_PP',
    }[name]
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    words = ran.stdout.splitlines()
    if name == "megatron":
        assert words[words.index("--pipeline-model-parallel-layout") + 1] == "Et*3|t*3L"
    else:
        assert words[:2] == ["serve", "my/model"]
        assert words[-1] == "VLLM_PP_LAYER_PARTITION=3,3"
    assert shlex.split(text, comments=True)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "inference"])
def test_torchs_schedule_has_every_computation_once(schedule: str) -> None:
    workload = load("unet" if schedule == "inference" else "unet-training")
    where = {name.removesuffix(".backward"): 0 for name in workload.ids}
    for k, name in enumerate(where):
        where[name] = 3 * (k * 3 // len(where)) % 5  # devices 0, 3 and 1: two idle ones
    devices = [where[name.removesuffix(".backward")] for name in workload.ids]
    cluster = replace(workload.cluster.kinds[0], count=5)
    plan = plan_of(workload, Cluster((cluster,)), np.array(devices))
    made, used = torch_schedule(workload, plan, schedule, 6)
    assert used == (0, 1, 3)
    rows = [line.split(",") for line in write_csv(made).splitlines()]
    assert len(rows) == 3
    passes = {"inference": "F", "zb-h1": "FIW"}.get(schedule, "FB")
    cells = [cell for row in rows for cell in row if cell]
    stages = sorted({int(re.match(r"\d+", cell)[0]) for cell in cells})
    wanted = {f"{s}{p}{m}" for s in stages for p in passes for m in range(6)}
    assert set(cells) == wanted
    assert len(cells) == len(set(cells))
    assert read_csv(write_csv(made)).microbatches == 6


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_torchs_schedule_runs_where_each_stage_waits_for_the_one_before(schedule: str) -> None:
    written = 0
    for seed in range(120):
        found = random_plan(seed, max_nodes=12, max_accelerators=3)
        if found is None:
            continue
        back, where = found[0].backward, found[1].placement
        if not set(where[back]) <= set(where[~back]):  # it undoes no forward pass
            continue
        made, used = torch_schedule(*found, schedule, 5)
        line = executed_stages(*found)
        rows: list[list[Action]] = [[] for _ in line.devices]
        for rank, device in enumerate(used):
            rows[device] = made.of(rank)
        validate(schedule_of(rows, microbatches=5), line)
        written += 1
    assert written > 20


def test_asynchronous_schedules_are_not_torchs() -> None:
    workload = load("unet-training")
    plan = plan_of(workload, workload.cluster, np.zeros(workload.n, int))
    with pytest.raises(InputError, match="pipedream keeps versions"):
        torch_schedule(workload, plan, "pipedream", 4)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a workload and a plan."""
    workload = transformer(6)
    save(workload, tmp_path / "w.json")
    save(in_parts(workload, [4, 5]), tmp_path / "p.json", workload)
    return tmp_path


def run(*arguments: str | Path):
    """Run the command."""
    app = typer.Typer()
    app.command()(export)
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("to", ["csv", *LAUNCHERS])
def test_the_command_writes_the_file(files: Path, to: str) -> None:
    done = run(files / "p.json", "--workload", files / "w.json", "--to", to, "-o", files / "out")
    assert done.exit_code == 0, done.exception
    assert (files / "out").stat().st_size > 20
    assert "written: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--to", "vllm", "--schedule", "1f1b"], "--schedule: only for --to python or csv"),
        (["--to", "vllm", "--microbatches", "4"], "--microbatches: only for --to python or csv"),
        (["--to", "csv", "--model", "m.py:make"], "--model: only for --to python"),
        (["--to", "csv", "--schedule", "fifo"], "no 'fifo'"),
        (["--to", "python"], "--model: "),
    ],
)
def test_the_command_refuses_what_makes_no_sense(files: Path, arguments, reason: str) -> None:
    done = run(files / "p.json", "--workload", files / "w.json", "-o", files / "out", *arguments)
    assert isinstance(done.exception, InputError)
    assert reason in str(done.exception)
    assert not (files / "out").exists()


def test_a_plan_for_another_workload_is_refused(files: Path) -> None:
    save(transformer(7), files / "w.json")
    options = ("--to", "vllm", "-o", files / "out")
    done = run(files / "p.json", "--workload", files / "w.json", *options)
    assert "the plan was made for" in str(done.exception)
    done = run(files / "p.json", *options)
    assert "--workload: vllm needs" in str(done.exception)


def test_no_script_is_offered_where_the_code_depends_on_numbers() -> None:
    made = {"generator": "stagecut.instances.pytorch", "traced_by": ON_NUMBERS}
    workload = replace(transformer(5), provenance=made)
    plan = solve(workload, accelerators_and_cpus(1), method="single").plan
    assert "depends on numbers" in takers(workload, plan)["python"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_plan_for_a_launcher_is_taken_by_it(name: str, seed: int, tmp_path: Path) -> None:
    """Whatever a layer's nodes weigh: the plan that is fastest cuts layers and ends in two."""
    rng = np.random.default_rng(seed)
    workload = transformer(int(rng.integers(5, 9)), inside=True)
    times = rng.integers(1, 9, workload.n).astype(float)
    times[[0, -2, -1]] = 30.0
    workload = replace(workload, times={"accelerator": times, "cpu": times})
    save(workload, tmp_path / "w.json")
    plan, written = str(tmp_path / "plan.json"), str(tmp_path / "out")
    asked = ["solve", str(tmp_path / "w.json"), "--accelerators", "3", "-o", plan]
    done = CliRunner().invoke(app, [*asked, "--for", name])
    assert done.exit_code == 0, done.output
    (line,) = re.findall(r"^export to  (.*(?:\n(?! ).*)*)", done.stdout, re.MULTILINE)
    assert name in re.split(r"[,;\s]+", line)
    to = ["export", plan, "--to", name, "--workload", str(tmp_path / "w.json"), "-o", written]
    assert CliRunner().invoke(app, to).exit_code == 0
    assert len(set(load_plan(plan, workload).placement.tolist())) > 1


@pytest.mark.parametrize(
    ("workload", "options", "said"),
    [
        (
            {"provenance": {"granularity": "operators"}},
            ["--for", "megatron"],
            "profile with --depth",
        ),
        ({"backward": True}, ["--for", "vllm"], "plan its inference"),
        ({}, ["--for", "mpi"], "must be one of run, python, csv"),
        ({}, ["--for", "deepspeed", "--split", "noncontiguous"], "leave --split noncontiguous out"),
        ({}, ["--for", "torchtitan", "--problem", "latency"], "plan with --problem pipeline"),
        (
            {"backward": True},
            ["--for", "megatron", "--microbatches", "4", "--schedule", "zb-h1"],
            "it runs 1f1b and interleaved; leave --schedule zb-h1 out",
        ),
    ],
)
def test_what_a_launcher_cannot_take_is_said_before_the_search(
    workload: dict[str, object], options: list[str], said: str, tmp_path: Path
) -> None:
    made = transformer(4)
    if workload.pop("backward", False):
        made = replace(made, backward=np.arange(made.n) == made.n - 1)
    save(replace(made, **workload), tmp_path / "w.json")
    done = CliRunner().invoke(
        app, ["solve", str(tmp_path / "w.json"), "--accelerators", "2", *options]
    )
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert not done.stdout


def test_a_training_plan_for_a_launcher_has_one_value_of_each_degree() -> None:
    asked = ["solve", "unet-training", "--problem", "pipeline", "--set", "bandwidth=25e9"]
    asked += ["--microbatches", "8", "--accelerators", "4", "--for", "megatron"]
    asked += ["--schedule", "stream"]
    done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, InputError)
    assert "the same value of replicas, degrees, recomputation" in str(done.exception)
