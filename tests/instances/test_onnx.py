"""ONNX files as workloads: shapes, parameters and FLOPs against counts by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stagecut
from stagecut import InputError
from stagecut.instances import tied_as

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from stagecut.instances.onnx_file import read_onnx  # noqa: E402

REAL, INT8, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64


def real(name: str, *shape: int) -> Any:
    values = np.random.default_rng(0).random(shape)
    return numpy_helper.from_array(values.astype(np.float32), name)


def whole(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def written(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, tuple[int, list[int | str]]],
    outputs: tuple[str, ...],
    weights: list[Any],
    opset: int = 18,
    **saving: Any,
) -> Path:
    """Save a graph of these nodes."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, size) for name, (kind, size) in inputs.items()],
        [helper.make_tensor_value_info(name, REAL, None) for name in outputs],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(model, str(path), **saving)
    return path


def node(kind: str, inputs: str, output: str, name: str = "", **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), output.split(), name=name, **attributes)


def small(path: Path, batch: int | str = 4, side: int | str = 8) -> Path:
    """A convolution, a tied product, a reshape, by names as torch's exporter gives them."""
    nodes = [
        node("Conv", "x w b", "c", "/stem/conv/Conv", pads=[1] * 4),
        node("Relu", "c", "r", "/stem/Relu"),
        node("ReduceMean", "r axes", "m", "/Mean", keepdims=0),
        node("Identity", "k", "k2", "/Identity"),
        node("MatMul", "m k2", "y", "/head/MatMul"),
        node("Reshape", "y shape", "z", "/head/Reshape"),
        node("MatMul", "z k", "out", "/head/MatMul"),
    ]
    weights = [
        real("w", 6, 3, 3, 3), real("b", 6), real("k", 6, 6), whole("shape", -1, 6),
        whole("axes", 2, 3),
    ]  # fmt: skip
    return written(path, nodes, {"x": (REAL, [batch, 3, side, 8])}, ("out",), weights)


def test_onnx_files(tmp_path: Path) -> None:
    path = small(tmp_path / "net.onnx", batch="n")
    workload = read_onnx(path, "h100", batch=4)
    assert workload.ids == ("stem/conv/Conv", "stem/Relu", "Mean", "head/MatMul", "head/MatMul#2")
    assert workload.edges.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert workload.extra["parameters"].sum() == 6 * 27 + 6 + 36
    conv, product = 2 * 4 * 6 * 64 * 27, 2 * 4 * 6 * 6
    assert workload.extra["flops"].tolist() == [conv, 0, 0, product, product]
    assert workload.output_bytes is not None
    assert workload.output_bytes.tolist() == [4 * 6 * 64 * 4] * 2 + [4 * 6 * 4] * 3
    assert workload.colour_classes == ()
    assert [copy.nodes for tie in workload.ties for copy in tie.copies] == [(3,), (4,)]
    assert read_onnx(path, "h100", batch=4, tied="colour").colour_classes == ((3, 4),)
    assert read_onnx(path, "h100", depth=1).ids == ("stem", "model", "head")
    result = stagecut.solve(workload, method="greedy")
    assert result.plan is not None
    stagecut.verify(workload, result.plan)


def test_wrong_onnx_files(tmp_path: Path) -> None:
    path = small(tmp_path / "net.onnx", side="height")
    with pytest.raises(InputError, match=r'input "x": dimension 2 is left open'):
        read_onnx(path, "h100")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"bad\.onnx"):
        read_onnx(tmp_path / "bad.onnx", "h100")
    with pytest.raises(InputError, match="no such file"):
        read_onnx(tmp_path / "none.onnx", "h100")


def test_a_residual_network(tmp_path: Path) -> None:
    """Two blocks; the second halves the image, so its shortcut has a convolution, too."""
    nodes, weights = (
        [node("Conv", "x stem", "h0", "/stem/Conv", pads=[1] * 4)],
        [real("stem", 8, 3, 3, 3)],
    )
    flops, parameters = 2 * 2 * 8 * 16 * 16 * 27, 8 * 27
    for b, (before, after, stride, side) in enumerate(((8, 8, 1, 16), (8, 16, 2, 8))):
        path = f"/layer{b}"
        weights += [real(f"a{b}", after, before, 3, 3), real(f"b{b}", after, after, 3, 3)]
        weights += [real(f"{n}{b}", after) for n in ("scale", "bias", "mean", "var")]
        norm = f"c{b} scale{b} bias{b} mean{b} var{b}"
        nodes += [
            node("Conv", f"h{b} a{b}", f"c{b}", f"{path}/conv1/Conv", pads=[1] * 4,
                 strides=[stride] * 2),
            node("BatchNormalization", norm, f"n{b}", f"{path}/bn1/BatchNormalization"),
            node("Relu", f"n{b}", f"r{b}", f"{path}/Relu"),
            node("Conv", f"r{b} b{b}", f"d{b}", f"{path}/conv2/Conv", pads=[1] * 4),
        ]  # fmt: skip
        flops += 2 * 2 * after * side * side * 9 * (before + after)
        parameters += 9 * after * (before + after) + 4 * after
        short = f"h{b}"
        if stride == 2:
            weights.append(real(f"s{b}", after, before, 1, 1))
            nodes.append(
                node("Conv", f"h{b} s{b}", f"short{b}", f"{path}/down/Conv", strides=[2, 2])
            )
            flops += 2 * 2 * after * side * side * before
            parameters += after * before
            short = f"short{b}"
        nodes.append(node("Add", f"d{b} {short}", f"h{b + 1}", f"{path}/Add"))
    nodes += [
        node("GlobalAveragePool", "h2", "pool", "/pool/GlobalAveragePool"),
        node("Flatten", "pool", "flat", "/Flatten"),
        node("Gemm", "flat fc fcb", "y", "/fc/Gemm", transB=1),
    ]
    weights += [real("fc", 10, 16), real("fcb", 10)]
    flops, parameters = flops + 2 * 2 * 10 * 16, parameters + 170
    inputs = {"x": (REAL, ["batch", 3, 16, 16])}
    path = written(tmp_path / "resnet.onnx", nodes, inputs, ("y",), weights)
    workload = read_onnx(path, "h100", batch=2)
    assert workload.extra["flops"].sum() == flops
    assert workload.extra["parameters"].sum() == parameters
    layers = read_onnx(path, "h100", batch=2, depth=1)
    assert layers.ids == ("stem", "layer0", "layer1", "pool", "fc")
    assert read_onnx(path, "h100", batch=6).extra["flops"].sum() == 3 * flops


@pytest.mark.parametrize("opset", [13, 18])
def test_a_transformer_block_with_computed_shapes(tmp_path: Path, opset: int) -> None:
    """Shapes come from `Shape`, `Gather`, `Concat`; the embedding is the head, too."""
    b, s, w, v, heads = 2, 6, 16, 50, 4
    nodes = [
        node("Gather", "table ids", "e", "/embed/Gather"),
        node("Shape", "ids", "size", "/Shape"),
        node("Gather", "size zero", "batch", "/Gather_1"),
        node("Gather", "size one", "length", "/Gather_2"),
        node("Unsqueeze", "batch first", "batch1", "/Unsqueeze"),
        node("Unsqueeze", "length first", "length1", "/Unsqueeze_1"),
        node("Concat", "batch1 length1 split", "view", "/Concat", axis=0),
        node("Concat", "batch1 length1 minus", "back", "/Concat_1", axis=0),
        node("MatMul", "e qkv", "p", "/attn/qkv/MatMul"),
        node("Split", "p", "q k u", "/attn/Split", axis=-1,
             **({"num_outputs": 3} if opset >= 18 else {})),
    ]  # fmt: skip
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("u", [0, 2, 1, 3])):
        nodes += [
            node("Reshape", f"{name} view", f"{name}1", f"/attn/Reshape_{name}"),
            node("Transpose", f"{name}1", f"{name}2", f"/attn/Transpose_{name}", perm=order),
        ]
    nodes += [
        node("MatMul", "q2 k2", "scores", "/attn/MatMul"),
        node("Softmax", "scores", "weights", "/attn/Softmax", axis=-1),
        node("MatMul", "weights u2", "mixed", "/attn/MatMul_1"),
        node("Transpose", "mixed", "mixed1", "/attn/Transpose", perm=[0, 2, 1, 3]),
        node("Reshape", "mixed1 back", "joined", "/attn/Reshape"),
        node("Add", "joined e", "res", "/Add"),
        node("ReduceMean", "res", "mean", "/norm/ReduceMean", axes=[-1])
        if opset < 18
        else node("LayerNormalization", "res gain", "norm", "/norm/LayerNormalization"),
    ]
    if opset < 18:
        nodes += [
            node("Sub", "res mean", "centred", "/norm/Sub"),
            node("Mul", "centred gain", "norm", "/norm/Mul"),
        ]
    nodes += [
        node("Transpose", "table", "head", "/head/Transpose", perm=[1, 0]),
        node("MatMul", "norm head", "y", "/head/MatMul"),
    ]
    weights = [
        real("table", v, w), real("qkv", w, 3 * w), real("gain", w), whole("first", 0),
        whole("split", heads, w // heads), whole("minus", w),
        numpy_helper.from_array(np.array(0), "zero"), numpy_helper.from_array(np.array(1), "one"),
    ]  # fmt: skip
    inputs = {"ids": (INT64, ["batch", s])}
    path = written(tmp_path / "block.onnx", nodes, inputs, ("y",), weights, opset)
    workload = read_onnx(path, "h100", batch=b, tied="colour")
    products = [2 * b * s * w * 3 * w, 2 * b * s * s * w, 2 * b * s * s * w, 2 * b * s * w * v]
    assert workload.extra["flops"].sum() == sum(products)
    assert workload.extra["parameters"].sum() == v * w + 3 * w * w + w
    assert not {"Shape", "Concat", "Gather_1"} & set(workload.ids)
    embed, head = workload.index["embed/Gather"], workload.index["head/MatMul"]
    assert workload.colours[embed] == workload.colours[head] >= 0
    result = stagecut.solve(workload, method="greedy")
    assert result.plan is not None
    stagecut.verify(workload, result.plan)


def test_quantised_weights_are_parameters(tmp_path: Path) -> None:
    def small_numbers(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(np.ones(shape, np.int8), name)

    nodes = [
        node("QuantizeLinear", "x s z", "xq", "/a/QuantizeLinear"),
        node("QLinearConv", "xq s z w s z s z", "c", "/a/QLinearConv"),
        node("DequantizeLinear", "c s z", "f", "/a/DequantizeLinear"),
        node("Flatten", "f", "g", "/b/Flatten"),
        node("DequantizeLinear", "k s z", "kf", "/b/weight/DequantizeLinear"),
        node("MatMul", "g kf", "y", "/b/MatMul"),
    ]
    weights = [
        small_numbers("w", 4, 3, 2, 2), small_numbers("k", 36, 5),
        numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.int8(0), "z"),
    ]  # fmt: skip
    path = written(tmp_path / "q.onnx", nodes, {"x": (REAL, [2, 3, 4, 4])}, ("y",), weights)
    workload = read_onnx(path, "h100")
    assert workload.extra["flops"].sum() == 2 * 2 * 4 * 9 * 12 + 2 * 2 * 5 * 36
    assert workload.extra["parameters"].sum() == 4 * 12 + 36 * 5 + 1  # one scale, too
    assert workload.extra["weight_bytes"].sum() == 4 * 12 + 36 * 5 + 3 * 4
    once = tied_as(workload, "colour")  # the scale, which they all read
    assert once.extra["weight_bytes"].sum() == 4 * 12 + 36 * 5 + 4


def test_other_operators_that_multiply(tmp_path: Path) -> None:
    nodes = [
        node("Einsum", "x a", "e", "/Einsum", equation="bsw,wv->bsv"),
        node("Transpose", "e", "t", "/Transpose", perm=[1, 0, 2]),
        node("LSTM", "t w r", "h", "/lstm/LSTM", hidden_size=4),
    ]
    weights = [real("a", 8, 6), real("w", 1, 16, 6), real("r", 1, 16, 4)]
    path = written(tmp_path / "n.onnx", nodes, {"x": (REAL, [2, 5, 8])}, ("h",), weights)
    flops = dict(zip((w := read_onnx(path, "h100")).ids, w.extra["flops"].tolist(), strict=True))
    assert flops == {"Einsum": 2 * 2 * 5 * 8 * 6, "Transpose": 0, "lstm/LSTM": 2 * 5 * 2 * 16 * 10}


def test_an_input_that_is_read_twice_moves_once(tmp_path: Path) -> None:
    nodes = [node("Mul", "x x", "y"), node("Sqrt", "x", "z")]
    path = written(tmp_path / "square.onnx", nodes, {"x": (REAL, [2048, 2048])}, ("y", "z"), [])
    square, root = read_onnx(path, "h100").times["accelerator"]
    assert square == root


@pytest.mark.parametrize("packed", [True, False])
def test_query_heads_may_share_keys_and_values(packed: bool, tmp_path: Path) -> None:
    heads, shared, rows, columns, width = 8, 2, 5, 7, 4
    sizes: list[list[int | str]] = [
        [2, length, n * width] if packed else [2, n, length, width]
        for length, n in ((rows, heads), (columns, shared), (columns, shared))
    ]
    inputs = {name: (REAL, size) for name, size in zip("qkv", sizes, strict=True)}
    given = {"q_num_heads": heads, "kv_num_heads": shared} if packed else {}
    nodes = [node("Attention", "q k v", "y", **given)]
    path = written(tmp_path / "net.onnx", nodes, inputs, ("y",), [], opset=23)
    found = read_onnx(path, "h100")
    assert found.extra["flops"].sum() == 2 * 2 * heads * rows * columns * 2 * width


def test_weights_in_a_file_beside_it_are_not_needed(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x k", "y", "/MatMul"), node("Reshape", "y to", "z", "/Reshape"),
             node("Relu", "z", "out", "/Relu")]  # fmt: skip
    path = written(
        tmp_path / "big.onnx", nodes, {"x": (REAL, [4, 64])}, ("out",),
        [real("k", 64, 64), whole("to", 2, -1)],
        save_as_external_data=True, location="big.data", size_threshold=0,
    )  # fmt: skip
    inside = read_onnx(path, "h100")
    assert inside.extra["parameters"].sum() == 64 * 64
    assert inside.output_bytes is not None
    assert inside.output_bytes.tolist() == [4 * 64 * 4] * 2
    (tmp_path / "big.data").unlink()
    with pytest.raises(InputError, match=r"big\.onnx.*big\.data"):
        read_onnx(path, "h100")


def test_a_node_without_output_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    written(path, [node("Relu", "x", "y"), node("Relu", "x", "")], {"x": (REAL, [2])}, ("y",), [])
    with pytest.raises(InputError, match="has no output; remove it"):
        read_onnx(path, "h100")


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_control_flow_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    body = helper.make_graph(
        [node("Identity", "x", "inner")], "body", [],
        [helper.make_tensor_value_info("inner", REAL, None)],
    )  # fmt: skip
    flow = (
        node("If", "c", "y", "/If", then_branch=body, else_branch=body)
        if kind == "If"
        else node("Loop", "n c x", "y", "/Loop", body=body)
    )
    inputs = {"x": (REAL, [2]), "c": (TensorProto.BOOL, []), "n": (INT64, [])}
    path = written(tmp_path / "f.onnx", [flow], inputs, ("y",), [])
    with pytest.raises(InputError, match=f'"/{kind}": {kind} is control flow') as error:
        read_onnx(path, "h100")
    assert "\n" not in str(error.value)


def test_shapes_that_depend_on_numbers_are_refused_in_one_line(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "i", "/NonZero"), node("Cast", "i", "y", "/Cast", to=REAL)]
    path = written(tmp_path / "d.onnx", nodes, {"x": (REAL, [2, 2])}, ("y",), [])
    with pytest.raises(InputError, match=r'"/NonZero": the shape of its output "i" cannot be'):
        read_onnx(path, "h100")
