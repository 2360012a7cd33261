"""Shape inference for all tensors of an ONNX file.

Exporters compute shapes within the graph (`Shape`, `Gather`, `Concat`, then `Reshape` or `Expand`).
So what follows from shapes alone is computed here, and inference goes on from there, until nothing
new is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import InputError, quote

#: Arrays of more elements are no shapes, and are not computed from more than so many.
_LARGEST, _MOST = 4096, 1 << 20

#: Most bytes of a file, which are protobuf's own; most nodes once functions are written out.
_MOST_BYTES, _MOST_NODES = 1 << 31, 1_000_000

#: What computes shapes from shapes, and makes no more elements than its inputs have multiplied.
_OF_SHAPES = frozenset({
    "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "CumSum",
    "Div", "Equal", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul",
    "Neg", "NonZero", "Not", "Or", "Pow", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt",
    "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where", "Xor",
})  # fmt: skip


def load_with_shapes(path: str | Path, batch: int) -> Any:
    """Return the model with its open dimensions set and its shapes inferred.

    Parameters
    ----------
    batch
        Size of the first dimension of every input, where the file leaves it open.

    Raises
    ------
    InputError
        If the file cannot be read, leaves another dimension open, or has control flow.

    Notes
    -----
    Weights in files beside it are not read.
    """
    import onnx
    from google.protobuf.message import DecodeError

    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise InputError(
                f"{path}: it has more than {_MOST_BYTES >> 30} GiB; keep weights apart"
            )
        model = onnx.load(str(path), load_external_data=False)
        if not model.graph.node:
            raise InputError(f"{path}: it is no ONNX model with nodes")
        _refuse_odd_nodes(model, path)
        if model.functions:
            _refuse_many_nodes(model, path)
            model = onnx.inliner.inline_local_functions(model)
        _refuse_control_flow(model.graph, path)
        _set_batch(model.graph, path, batch)
        _read_shapes_beside(model.graph, Path(path).parent)
        del model.graph.value_info[:]
        model = onnx.shape_inference.infer_shapes(model)
        while True:
            small = _propagates_little(model.graph)
            model = onnx.shape_inference.infer_shapes(model, data_prop=small)
            if not _fold(model):
                return model
    except (
        DecodeError,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        OSError,
    ) as error:
        first = (str(error).splitlines() or ["not readable"])[0]
        raise InputError(f"{path}: it is no readable ONNX file: {first}") from None


def _refuse_odd_nodes(model: Any, path: str | Path) -> None:
    """Refuse names that are not UTF-8, which protobuf gives as bytes, and splits without end."""
    graph = model.graph
    for node in (*graph.node, *(node for function in model.functions for node in function.node)):
        texts = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if any(isinstance(text, bytes) for text in (*texts, *(a.name for a in node.attribute))):
            raise InputError(
                f"{path}: a name of node {quote(str(node.name))} is not UTF-8; write the file again"
            )
        if node.op_type == "Split" and any(
            a.name == "num_outputs" and a.i != len(node.output) for a in node.attribute
        ):
            raise InputError(
                f"{path}: node {quote(node.name)}: num_outputs is not the number of its outputs; "
                "write the file again"
            )
    for value in (*graph.input, *graph.output, *graph.initializer):
        if isinstance(value.name, bytes):
            raise InputError(f"{path}: name {quote(str(value.name))} is not UTF-8; write it again")


def _refuse_many_nodes(model: Any, path: str | Path) -> None:
    """Refuse functions that, calling each other, are too many nodes when they are written out."""
    known = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
    nodes: dict[tuple[str, str, str], int] = {}

    def count(called: Sequence[Any]) -> int:
        total = 0
        for node in called:
            key = (node.domain, node.op_type, getattr(node, "overload", ""))
            if key in known and key not in nodes:
                nodes[key] = _MOST_NODES + 1  # it calls itself, unless it has ended
                nodes[key] = count(known[key].node)
            total += nodes.get(key, 1)
        return total

    try:
        most = count(model.graph.node)
    except RecursionError:
        most = _MOST_NODES + 1
    if most > _MOST_NODES:
        raise InputError(
            f"{path}: its functions are more than {_MOST_NODES} nodes written out, or call "
            "themselves; export the model without functions"
        )


def _refuse_control_flow(graph: Any, path: str | Path) -> None:
    for node in graph.node:
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            raise InputError(
                f"{path}: node {quote(node.name or node.output[0])}: {node.op_type} is control "
                "flow, which has no one cost; export the model without it"
            )


def _set_batch(graph: Any, path: str | Path, batch: int) -> None:
    given = {value.name for value in graph.initializer}
    for value in graph.input:
        if value.name in given:
            continue
        if not value.type.tensor_type.HasField("shape"):
            raise InputError(
                f"{path}: input {quote(value.name)}: it has no shape; export it with a fixed size"
            )
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.HasField("dim_value"):
                continue
            if axis:
                raise InputError(
                    f"{path}: input {quote(value.name)}: dimension {axis} is left open; "
                    "export it with a fixed size"
                )
            dimension.Clear()
            dimension.dim_value = batch
    for value in graph.output:  # what an exporter wrote there may hold for another batch
        value.type.tensor_type.ClearField("shape")


def _read_shapes_beside(graph: Any, folder: Path) -> None:
    """Read small integer tensors from external files, as shapes depend on them."""
    import onnx

    for value in graph.initializer:
        size = 8 * math.prod(value.dims)
        external = value.data_location == onnx.TensorProto.EXTERNAL
        if external and value.data_type == onnx.TensorProto.INT64 and 0 <= size < 800:
            if onnx.external_data_helper.ExternalDataInfo(value).length != size:
                continue  # it would be read to the file's end
            onnx.external_data_helper.load_external_data_for_tensor(value, str(folder))
            value.data_location = onnx.TensorProto.DEFAULT


def _propagates_little(graph: Any) -> bool:
    """Whether the vectors are short enough for ONNX to propagate their values."""
    vectors = [list(value.dims) for value in graph.initializer]
    vectors += (
        [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    )
    return all(len(sizes) != 1 or sizes[0] <= _MOST for sizes in vectors)


def _fold(model: Any) -> bool:
    """Replace nodes that compute whole numbers from shapes by constants; whether there were any."""
    import onnx

    graph, known, shapes = model.graph, {}, {}
    for value in (*graph.input, *graph.value_info):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = np.array([d.dim_value for d in dims], np.int64)
    for value in graph.initializer:
        shapes[value.name] = np.array(value.dims, np.int64)
        inside = value.data_location != onnx.TensorProto.EXTERNAL
        if inside and 0 <= math.prod(value.dims) <= _LARGEST:
            known[value.name] = onnx.numpy_helper.to_array(value)
    folded = False
    for node in graph.node:
        values: list[Any] | None = None
        if node.op_type == "Constant":
            if not any(a.HasField("sparse_tensor") for a in node.attribute):
                values = _run(model, node, {})
        elif node.op_type in ("Shape", "Size") and node.input[0] in shapes:
            stand_in = np.broadcast_to(np.empty((), np.bool_), shapes[node.input[0]])
            values = _run(model, node, {node.input[0]: stand_in})
        elif node.input and all(name in known or not name for name in node.input):
            given = [known[name] for name in node.input if name]
            if _most_elements(node, given) <= _MOST:
                values = _run(model, node, known)
        if values is None:
            continue
        if not all(_is_shape(value) for value in values):
            if node.op_type == "Constant":
                known[node.output[0]] = values[0]
            continue
        for name, value in zip(node.output, values, strict=True):
            known[name], shapes[name] = value, np.array(value.shape, np.int64)
        if node.op_type != "Constant" and len(values) == 1:
            constant = onnx.numpy_helper.from_array(values[0])
            made = onnx.helper.make_node("Constant", [], list(node.output), value=constant)
            node.CopyFrom(made)
            folded = True
    return folded


def _most_elements(node: Any, given: Sequence[Any]) -> float:
    """Return how many elements a node makes of these inputs, at most; inf if unknown."""
    sizes = [int(value.size) for value in given]
    try:
        match node.op_type:
            case "Range":
                start, limit, delta = (float(value) for value in given)
                return max(0.0, (limit - start) / delta)
            case "ConstantOfShape":
                return math.prod(map(int, given[0].flat))
            case "Expand" | "Tile":
                return sizes[0] * math.prod(max(1, int(x)) for x in given[1].flat)
            case "Concat":
                return sum(sizes)
            case kind:
                return math.prod(sizes) if kind in _OF_SHAPES else math.inf
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return math.inf


def _is_shape(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "ib" and value.size <= _LARGEST


def _run(model: Any, node: Any, known: dict[str, Any]) -> list[Any] | None:
    """Return the outputs of one node, or None where ONNX's reference evaluator fails."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    names = [name for name in dict.fromkeys(node.input) if name]
    graph = onnx.helper.make_graph(
        [node],
        "node",
        [onnx.ValueInfoProto(name=name) for name in names],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    alone = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    try:
        found = ReferenceEvaluator(alone).run(None, {name: known[name] for name in names})
    except Exception:  # it has gaps and faults; then shapes are inferred without this node's value
        return None
    return [np.asarray(value) for value in found]
