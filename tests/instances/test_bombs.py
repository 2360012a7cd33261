"""Small files that would take the machine: refused, or read, within little memory and time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from project import ROOT

#: Bytes that reading may ask for beyond what the imports took, and CPU seconds of all of them.
MORE_BYTES, CPU_S = 1 << 28, 60

#: Reads files by the functions named, with little memory: prints what each came to.
READS = """
import json, resource, sys
import psutil
from stagecut.instances.formats.files import load, load_cluster
from stagecut.instances.topologies import load_topology, read_nvidia
from stagecut.runtime.schedules import read_csv
from stagecut.instances.formats.source import read_source
from stagecut import InputError
def order(path): read_csv(read_source(path).text, name=path)
if any(reader in ("policy", "weights", "checkpoint") for reader, _ in json.loads(sys.argv[1])):
    import torch
    from pathlib import Path
    from stagecut.runtime.execution.checkpoint import load_weights, merge_checkpoint
    from stagecut.solvers.learned.policy_file import read_policy as policy
    def weights(path): load_weights(torch.nn.Linear(2, 2), Path(path))
    def checkpoint(path): merge_checkpoint(path)
if any(reader == "onnx" for reader, _ in json.loads(sys.argv[1])):
    import onnx, onnx.reference
    from stagecut.instances.onnx_file import read_onnx
    def onnx(path): read_onnx(path, "a100")
most = psutil.Process().memory_info().vms + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]),) * 2)
for reader, path in json.loads(sys.argv[1]):
    try:
        globals()[reader](path)
        said = "read"
    except InputError as error:
        said = f"refused: {error}"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([reader, path, said]), flush=True)
"""


def come_to(bombs: list[tuple[str, Path]]) -> dict[str, str]:
    """Return what each file came to, by its name; each that is missing took too long."""
    asked = json.dumps([(reader, str(path)) for reader, path in bombs])
    done = subprocess.run(
        [sys.executable, "-c", READS, asked, str(MORE_BYTES), str(CPU_S)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".dev")},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(bombs), (done.returncode, done.stdout[-500:], done.stderr[-2000:])
    return {Path(path).name: said for _, path, said in rows}


def test_text(tmp_path: Path) -> None:
    keys = ", ".join(f'"k{k}": 0' for k in range(200_000))
    texts = {
        "load repeated.json": f'{{{keys}, "k199999": 1}}',
        "load deep.json": "[" * 1_000_000,
        "load closed.json": "[" * 500_000 + "]" * 500_000,
        "load digits.json": "1" * 1_000_000,
        "load devices.json": '{"maxDevices": 1e300, "nodes": [], "edges": []}',
        "load pipedream.txt": "node1 -- " + " " * 500_000 + "\n\tnode1 -- node1\n",
        "load_cluster many.json": json.dumps(
            {
                "format": "stagecut-cluster", "version": 1,
                "kinds": [{"name": "a", "count": 10**12, "memory_bytes": 1}],
            }
        ),
        "read_nvidia many.txt": "\t" + "\t".join(f"GPU{k}" for k in range(100_000)) + "\n",
        "order actions.csv": ",".join("0F1000000000" for _ in range(50_000)) + "\n",
    }  # fmt: skip
    bombs = []
    for name, text in texts.items():
        reader, file = name.split()
        (tmp_path / file).write_text(text)
        bombs.append((reader, tmp_path / file))
    for file, said in come_to(bombs).items():
        assert said.startswith("refused"), (file, said)


def test_what_torch_and_numpy_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    from stagecut.solvers.learned.policy import new_policy
    from stagecut.solvers.learned.policy_file import write_policy
    from stagecut.solvers.learned.train import Settings, new_training

    zeros = bytes(1 << 20)

    def with_array(path: Path, shape: tuple[int, ...], mib: int) -> None:
        """Add an array that says that it has this shape, and has zeros."""
        write_policy(path, new_training(new_policy(0, 4), Settings(), 0), 0, {}, resumable=False)
        with (
            zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open("more.npy", "w", force_zip64=True) as out,
        ):
            head = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, head)
            for _ in range(mib):
                out.write(zeros)

    with_array(tmp_path / "much.npz", (5 << 24,), 320)
    with_array(tmp_path / "claims.npz", (1 << 40,), 1)
    stored, packed = tmp_path / "stored.pt", tmp_path / "packed.pt"
    state = {"weight": torch.zeros(5 << 24), "bias": torch.zeros(2)}
    torch.save(state, stored)
    deflated = zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with zipfile.ZipFile(stored) as whole, deflated as archive:
        for info in whole.infolist():
            with (
                whole.open(info) as data,
                archive.open(info.filename, "w", force_zip64=True) as out,
            ):
                while block := data.read(1 << 20):
                    out.write(block)
    stored.unlink()
    from torch.distributed import HashStore, destroy_process_group, init_process_group

    from stagecut.runtime.execution.checkpoint_folder import METADATA, write_checkpoint

    kept = tmp_path / "step-00000001"
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    write_checkpoint(kept, {"model": {"w": torch.zeros(8)}}, {"w": "w"})
    destroy_process_group()
    held = torch.load(kept / METADATA, weights_only=False)
    size, data, (place,) = packed.stat().st_size, "__0_0.distcp", held.storage_data.values()
    place.offset, place.length = 0, size
    torch.save(held, kept / METADATA)
    (kept / data).write_bytes(packed.read_bytes())
    manifest = json.loads((kept / "manifest.json").read_text())
    for name in (METADATA, data):
        manifest["files"][name] = hashlib.sha256((kept / name).read_bytes()).hexdigest()
    (kept / "manifest.json").write_text(json.dumps(manifest))
    names = [("policy", "much.npz"), ("policy", "claims.npz"), ("weights", "packed.pt")]
    bombs = [(reader, tmp_path / name) for reader, name in [*names, ("checkpoint", kept.name)]]
    for file, said in come_to(bombs).items():
        assert said.startswith("refused"), (file, said)


def test_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    from onnx import TensorProto, helper, numpy_helper

    def whole(name: str, *values: int) -> object:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    def one(name: str, value: int) -> object:
        return numpy_helper.from_array(np.array(value, np.int64), name)

    def node(kind: str, inputs: str, output: str, **attributes: object) -> object:
        return helper.make_node(kind, inputs.split(), output.split(), **attributes)

    big = 700_000_000
    side = numpy_helper.from_array(np.ones((1, 4096), np.int64), "side")
    up = numpy_helper.from_array(np.ones((4096, 1), np.int64), "up")
    outwards = numpy_helper.from_array(np.ones((4096, 1, 1), np.int64), "out")
    made: dict[str, tuple[list[object], list[object]]] = {
        "range": ([node("Range", "a b c", "y")], [one("a", 0), one("b", big), one("c", 1)]),
        "expand": (
            [node("Expand", "a b", "z"), node("Mul", "z z", "y")], [one("a", 1), whole("b", big)],
        ),
        "fill": ([node("ConstantOfShape", "b", "y")], [whole("b", big)]),
        "tile": ([node("Tile", "a b", "y")], [whole("a", 1, 2), whole("b", big)]),
        "pad": ([node("Pad", "a b", "y")], [whole("a", 1, 2), whole("b", 0, big)]),
        "outer": ([node("Where", "t side out", "y"), ], [side, outwards,
            numpy_helper.from_array(np.ones((4096, 1), bool), "t")]),
        "product": ([node("MatMul", "up side", "y")], [up, side]),
        "one-hot": (
            [node("OneHot", "up d v", "y")], [up, one("d", 1_000_000), whole("v", 0, 1)],
        ),
        "window": ([node("HannWindow", "a", "y")], [one("a", big)]),
        "eye": ([node("EyeLike", "a", "y")], [up]),
        "split": (
            [node("Split", "a", "y", num_outputs=big)], [whole("a", 1, 2)],
        ),
        "unfolded": (
            [node("Einsum", "a b c", "y", equation="i,j,k->ijk")],
            [whole("a", *range(2000)), whole("b", *range(2000)), whole("c", *range(2000))],
        ),
        "sparse": ([helper.make_node("Constant", [], ["y"], sparse_value=helper.make_sparse_tensor(
            numpy_helper.from_array(np.ones(1, np.int64), "s"), one("i", 0).__class__.FromString(
                numpy_helper.from_array(np.zeros(1, np.int64), "i").SerializeToString()),
            [big, big]))], []),
    }  # fmt: skip
    bombs = []
    for name, (nodes, weights) in made.items():
        graph = helper.make_graph(
            [*nodes, node("Relu", "x", "r"), node("Cast", "y", "f", to=1)],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, None) for out in "rf"],
            weights,
        )
        _save(graph, tmp_path / f"{name}.onnx")
        bombs.append(("onnx", tmp_path / f"{name}.onnx"))
    _save_functions(tmp_path / "functions.onnx", lambda k: k + 1)
    _save_functions(tmp_path / "circle.onnx", lambda k: (k + 1) % 40)
    bombs += [("onnx", tmp_path / f"{name}.onnx") for name in ("functions", "circle")]
    found = come_to(bombs)
    assert all(path.stat().st_size < 150_000 for _, path in bombs)
    for file, said in found.items():
        assert said.startswith(("refused", "read")), (file, said)
    for file in ("functions.onnx", "circle.onnx"):
        assert "functions are more than 1000000 nodes" in found[file]


def _save(graph: object, path: Path, **more: object) -> None:
    from onnx import helper, save

    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9, **more), str(path))


def _save_functions(path: Path, after: Callable[[int], int]) -> None:
    """Save forty functions of which each calls another one twice."""
    from onnx import TensorProto, helper

    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", f"f{k}", ["x"], ["y"],
            [
                helper.make_node(f"f{after(k)}", ["x"], ["t"], domain="own"),
                helper.make_node(f"f{after(k)}", ["t"], ["y"], domain="own"),
            ],
            opsets,
        )
        for k in range(40)
    ]  # fmt: skip
    last = [helper.make_node("Relu", ["x"], ["y"])]
    functions.append(helper.make_function("own", "f40", ["x"], ["y"], last, opsets))
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="own")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    _save(graph, path, functions=functions)
