"""ONNX files as workloads: shapes inferred, initialisers as parameters, times by roofline.

From the recording on, the graph is processed like a traced PyTorch model. Node names that are
paths, as torch's exporter writes them, give the modules for layers. FLOPs are those of matrix
products, convolutions and recurrent layers, as in torch's FlopCounterMode, quantised ones included.

Exporters compute shapes within the graph (`Shape`, `Gather`, `Concat`, then `Reshape` or `Expand`).
So values that depend on shapes alone are computed here, and shape inference is repeated with them
until nothing new is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .common.choices import Tied
from .common.errors import InputError, quote
from .formats.source import stem_of
from .generate.roofline import machine
from .model.tied_weights import with_ties
from .model.workload import Workload
from .operator_graph import (
    ExecutedNode,
    KernelCall,
    Parameter,
    Read,
    Recording,
    operator_graph,
)
from .to_workload import (
    estimated_times,
    grouped,
    memory_bytes,
    suggested_cluster,
    ties_of,
    to_workload,
)

#: Most elements of an array that counts as a shape, and of any array computed to find one.
_LARGEST, _MOST = 4096, 1 << 20

#: Most bytes of a file, which are protobuf's own; most nodes once functions are written out.
_MOST_BYTES, _MOST_NODES = 1 << 31, 1_000_000

#: Operators on shapes that make at most the product of their inputs' numbers of elements.
_OF_SHAPES = frozenset({
    "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "CumSum",
    "Div", "Equal", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul",
    "Neg", "NonZero", "Not", "Or", "Pow", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt",
    "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
Shapes = Mapping[str, tuple[int, ...]]

#: Nodes whose first output is a view of their first input.
_VIEWS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"})

#: Nodes whose value is known as soon as shapes are.
_KNOWN = frozenset({"Constant", "Shape", "Size"})
_HALF_A_BYTE = frozenset({"INT4", "UINT4", "FLOAT4E2M1"})

#: Position of the weight, of learned whole numbers, among the inputs of quantised operators.
_QUANTISED = {
    "DequantizeLinear": 0, "MatMulInteger": 1, "ConvInteger": 1, "QLinearMatMul": 3,
    "QLinearConv": 3,
}  # fmt: skip

#: Largest number of elements of a tensor: no address can count more.
_MOST_ELEMENTS = 1 << 63

#: Operators that read only the selected rows.
_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})


class _Reader:
    """Builder of the recording of a graph with shapes."""

    def __init__(self, model: Any, file: str) -> None:
        import onnx

        self.graph = model.graph
        self.file = file
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.item: dict[str, float] = {}
        self.floats: set[str] = set()
        self.storage: dict[str, int] = {}
        self.sizes: list[float] = []

        def note(name: str, kind: int, shape: tuple[int, ...]) -> None:
            if kind == onnx.TensorProto.UNDEFINED:
                return
            if min(shape, default=0) < 0 or math.prod(shape) > _MOST_ELEMENTS:
                raise InputError(f"{file}: {quote(name)} has a shape that no tensor can have")
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
            half = onnx.TensorProto.DataType.Name(kind) in _HALF_A_BYTE
            self.shapes[name], self.item[name] = shape, 0.5 if half else max(1, dtype.itemsize)
            if dtype.kind not in "iub":
                self.floats.add(name)

        for value in (*self.graph.input, *self.graph.value_info, *self.graph.output):
            tensor = value.type.tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
            if -1 not in sizes and tensor.HasField("shape"):
                note(value.name, tensor.elem_type, tuple(sizes))
        for value in self.graph.initializer:
            note(value.name, value.data_type, tuple(value.dims))
        self.learned = self.floats | {
            node.input[_QUANTISED[node.op_type]]
            for node in self.graph.node
            if node.op_type in _QUANTISED
        }

    def recording(self) -> Recording:
        """Return the recording of one forward pass."""
        parameters: dict[int, Parameter] = {}
        buffers: set[int] = set()
        fixed = {value.name for value in self.graph.initializer}
        for value in self.graph.initializer:
            number = self._new(value.name)
            if value.name in self.learned:
                size = self.sizes[number]
                elements = math.prod(self.shapes[value.name])
                parameters[number] = Parameter(value.name, elements, size, False)
            else:
                buffers.add(number)
        inputs = [self._new(v.name) for v in self.graph.input if v.name not in fixed]
        steps = []
        taken: dict[str, int] = {}
        for node in self.graph.node:
            given = [name for name in node.input if name]
            if node.op_type in _KNOWN or (given and set(given) <= fixed):
                learned = [name for name in given if name in self.learned]
                for name in node.output:
                    fixed.add(name)
                    if learned and node.op_type not in _KNOWN:
                        self.learned.add(name)
                        self.storage[name] = self.storage[max(learned, key=self._bytes)]
                    else:
                        buffers.add(self._new(name))
                continue
            steps.append(self._step(node, given, taken))
        used = {read.storage for step in steps for read in step.reads}
        return Recording(
            steps=tuple(steps),
            backward=(),
            sizes=tuple(self.sizes),
            parameters={s: p for s, p in parameters.items() if s in used},
            buffers=frozenset(buffers),
            inputs=tuple(inputs),
            outputs=tuple(self._read(value.name) for value in self.graph.output),
            unused=tuple(p for s, p in parameters.items() if s not in used),
        )

    def _step(self, node: Any, given: list[str], taken: dict[str, int]) -> ExecutedNode:
        outputs = [name for name in node.output if name]
        path = (node.name or f"{node.op_type}:{outputs[0]}").strip("/")
        taken[path] = taken.get(path, 0) + 1
        words = path.split("/")[:-1]
        reads = tuple(self._read(name) for name in given)
        kernels: tuple[KernelCall, ...] = ()
        if node.op_type in _VIEWS:
            self.storage[outputs[0]] = self.storage[given[0]]
            for name in outputs[1:]:
                self._new(name)
        else:
            for name in outputs:
                self._new(name, node)
            count = FLOPS.get(node.op_type)
            flops = 0.0 if count is None else count(node, self.shapes)
            made = sum(self._bytes(name) for name in outputs)
            seen = made if node.op_type in _LOOKUPS else sum(map(self._bytes, dict.fromkeys(given)))
            kernels = (KernelCall(node.op_type, flops, made + seen),)
        return ExecutedNode(
            name=path if taken[path] == 1 else f"{path}#{taken[path]}",
            modules=("", *(".".join(words[: k + 1]) for k in range(len(words)))),
            reads=reads,
            writes=tuple(self.storage[name] for name in outputs) if kernels else (),
            kernels=kernels,
            random=node.op_type.startswith("Random") or node.op_type == "Bernoulli",
            saved=(),
        )

    def _new(self, name: str, node: Any = None) -> int:
        if node is not None and name not in self.shapes:
            raise InputError(
                f"{self.file}: node {quote(node.name or node.op_type)}: the shape of its output "
                f"{quote(name)} cannot be inferred; export the model with fixed sizes"
            )
        self.storage[name] = len(self.sizes)
        self.sizes.append(self._bytes(name))
        return self.storage[name]

    def _bytes(self, name: str) -> float:
        return float(math.prod(self.shapes.get(name, (0,))) * self.item.get(name, 0))

    def _read(self, name: str) -> Read:
        if name not in self.storage:
            raise InputError(f"{self.file}: {quote(name)} is read before anything makes it")
        return Read(self.storage[name], 0, self._bytes(name))


def read_onnx(
    path: str | Path,
    estimate: str,
    *,
    batch: int | None = None,
    depth: int | Literal["auto"] | None = None,
    tied: Tied | str = Tied.COPIES,
    name: str = "",
) -> Workload:
    """Return the inference workload in an ONNX file, with times for the accelerator `estimate`.

    `batch` is the size of the first dimension of every input, where the file leaves it open;
    `depth` and `tied` are as in `pytorch.profile.profile`. InputError if the file cannot be read,
    or a shape cannot be inferred.
    """
    tied = Tied.of("tied", tied)
    target = machine(estimate)
    recording = _Reader(load_with_shapes(path, batch or 1), str(path)).recording()
    graph = operator_graph(recording, training=False)
    if not graph.operators:
        raise InputError(f"{path}: it computes nothing; nothing to plan")
    times, grouping = estimated_times(graph, target), grouped(graph, depth)
    once = to_workload(
        graph,
        grouping,
        times,
        name=name or stem_of(path),
        cluster=suggested_cluster(target, memory_bytes(graph)),
        provenance={
            "generator": "stagecut.instances.onnx_file",
            "pass": "inference",
            "granularity": grouping.granularity,
        },
    )
    return with_ties(once, ties_of(graph, grouping, once, times.link), tied)


def _matmul(node: Any, shapes: Shapes) -> float:
    return 2.0 * math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def _gemm(node: Any, shapes: Shapes) -> float:
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    inner = shapes[node.input[0]][0 if transposed else 1]
    return 2.0 * math.prod(shapes[node.output[0]]) * inner


def _conv(node: Any, shapes: Shapes, weight: int = 1) -> float:
    """FLOPs of a convolution: each output element sums over a kernel, a row of the weight."""
    return 2.0 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[weight]][1:])


def _conv_transpose(node: Any, shapes: Shapes) -> float:
    return 2.0 * math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _recurrent(node: Any, shapes: Shapes) -> float:
    """FLOPs of a recurrent layer: in each step products with all weights, of each direction."""
    steps, batch, _ = shapes[node.input[0]]
    weights = math.prod(shapes[node.input[1]]) + math.prod(shapes[node.input[2]])
    return 2.0 * steps * batch * weights


def _einsum(node: Any, shapes: Shapes) -> float:
    """FLOPs of two operands: a multiplication and an addition for each choice of all indices."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes = {
        letter: size
        for term, name in zip(terms, node.input, strict=True)
        for letter, size in zip(term, shapes[name], strict=False)
    }
    return 2.0 * math.prod(sizes.values()) if len(terms) == 2 else 0.0


def _attention(node: Any, shapes: Shapes) -> float:
    """FLOPs of scores and their product with values; query heads may share heads of values."""
    query, key, value = (shapes[name] for name in node.input[:3])
    if len(query) == 3:  # heads are packed into the width
        given = {a.name: a.i for a in node.attribute}
        shared: float = given.get("q_num_heads", 1) / given.get("kv_num_heads", 1)
        width = query[2] + shared * value[2]
        return 2.0 * math.prod([query[0], query[1], key[1]]) * width
    return 2.0 * math.prod(query[:3]) * key[2] * (query[3] + value[3])


def load_with_shapes(path: str | Path, batch: int) -> Any:
    """Return the model with its open dimensions set and its shapes inferred.

    Weights in files beside it are not read. InputError if the file cannot be read, leaves another
    dimension than the batch open, or has control flow.
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
    """Refuse names that are not UTF-8 (protobuf gives bytes), and wrong numbers of outputs."""
    graph = model.graph
    for node in (*graph.node, *(node for function in model.functions for node in function.node)):
        texts = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if any(isinstance(text, bytes) for text in (*texts, *(a.name for a in node.attribute))):
            raise InputError(
                f"{path}: a name of node {quote(str(node.name))} is not UTF-8; write the file again"
            )
        if not any(node.output):
            raise InputError(f"{path}: node {quote(node.name)} has no output; remove it")
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
    for value in graph.output:  # the exporter's shapes may be for another batch
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
    """Whether all vectors are short enough for ONNX to propagate their values."""
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
    """Return an upper bound on the elements that a node makes of these inputs; inf if unknown."""
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


FLOPS: Mapping[str, Callable[[Any, Shapes], float]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": partial(_conv, weight=3),
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Attention": _attention,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
