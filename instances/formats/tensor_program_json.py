"""JSON format of tensor programs: tensors by name, operators in topological order.

Nodes, edges and costs of the workload follow from them. A signature is written as its text with the
extent that it divides and the bytes that are reduced, or as the text alone where nothing is split.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..common.choices import Role
from ..common.errors import prefix_errors, quote
from ..model.sharding import program_workload
from ..model.tensor_program import Operator, Signature, Tensor, TensorProgram
from ..model.workload import Workload
from .source import NEWEST, PROGRAM, Record, Source, plain_id, read_file
from .stagecut_json import (
    KindRecord,
    PairLinkRecord,
    kinds_of,
    links_of,
    make_cluster,
)


class TensorRecord(Record):
    """A tensor: its name, the extent of each axis, and torch's name of its type."""

    name: str
    shape: list[int]
    dtype: str = "float32"


class SignatureRecord(Record, omit_defaults=True):
    """A way to split an operator: such as S0,B->S0, of an extent of 64."""

    text: str
    extent: int = 1
    reduced_bytes: float = 0.0


class OperatorRecord(Record, omit_defaults=True):
    """Operator, parameter or input; `gradient` names the tensor that a parameter gets."""

    name: int | str
    outputs: list[str]
    inputs: list[str] = msgspec.field(default_factory=list)
    signatures: list[SignatureRecord | str] = msgspec.field(default_factory=list)
    role: Role = Role.OPERATOR
    kind: str = ""
    fixed: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    flops: float = 0.0
    backward: bool = False
    view: bool = False
    gradient: str | None = None
    ruled: bool = True


class ProgramFile(Record):
    """A file of a tensor program."""

    format: Literal["stagecut-program"]
    version: Literal[1]
    name: str
    time_unit: Literal["s", "ms", "us", "ns"]
    tensors: list[TensorRecord]
    operators: list[OperatorRecord]
    provenance: dict[str, str] = msgspec.field(default_factory=dict)
    cluster: list[KindRecord] | None = None
    cluster_links: list[PairLinkRecord] = msgspec.field(default_factory=list)


def read_program(source: Source) -> Workload:
    """Return the workload of a tensor program's file."""
    file = read_file(source, ProgramFile, PROGRAM)
    number = {tensor.name: t for t, tensor in enumerate(file.tensors)}
    with prefix_errors(source.file, file.name):
        for operator in file.operators:
            late = [] if operator.gradient is None else [operator.gradient]
            for name in (*operator.inputs, *operator.outputs, *late):
                if name not in number:
                    source.fail(
                        f"operator {plain_id(operator.name)}: unknown tensor {quote(name)}; list "
                        "it in tensors"
                    )
        program = TensorProgram(
            tuple(Tensor(t.name, tuple(t.shape), t.dtype) for t in file.tensors),
            tuple(_operator(record, number) for record in file.operators),
        )
        cluster = None
        if file.cluster is not None:
            cluster = make_cluster(source, file.cluster, file.cluster_links)
        return program_workload(
            program, file.name, time_unit=file.time_unit, cluster=cluster,
            provenance=file.provenance,
        )  # fmt: skip


def write_program(workload: Workload, program: TensorProgram) -> dict[str, object]:
    """Return the file of a workload with a tensor program, as JSON values."""
    cluster, names = workload.cluster, [tensor.name for tensor in program.tensors]
    return {
        "format": PROGRAM,
        "version": NEWEST[PROGRAM],
        "name": workload.name,
        "time_unit": workload.time_unit,
        "provenance": dict(workload.provenance),
        "cluster": None if cluster is None else kinds_of(cluster),
        "cluster_links": [] if cluster is None else links_of(cluster),
        "tensors": [dict(vars(tensor)) for tensor in program.tensors],
        "operators": msgspec.to_builtins([_record(one, names) for one in program.operators]),
    }


def _operator(record: OperatorRecord, number: dict[str, int]) -> Operator:
    values = msgspec.structs.asdict(record)
    for side in ("inputs", "outputs"):
        values[side] = tuple(number[name] for name in values[side])
    values["signatures"] = tuple(map(_signature, record.signatures))
    values["gradient"] = None if record.gradient is None else number[record.gradient]
    return Operator(**values)


def _signature(record: SignatureRecord | str) -> Signature:
    if isinstance(record, str):
        return Signature.of(record)
    return Signature.of(record.text, record.extent, record.reduced_bytes)


def _record(operator: Operator, names: list[str]) -> OperatorRecord:
    values = {
        **vars(operator),
        "inputs": [names[t] for t in operator.inputs],
        "outputs": [names[t] for t in operator.outputs],
        "signatures": list(map(_written, operator.signatures)),
        "gradient": None if operator.gradient is None else names[operator.gradient],
    }
    kept = {key: value for key, value in values.items() if value or key in ("name", "ruled")}
    return OperatorRecord(**kept)


def _written(signature: Signature) -> SignatureRecord | str:
    if signature.reduced_bytes:
        return SignatureRecord(signature.text, signature.extent, signature.reduced_bytes)
    return (
        signature.text
        if signature.extent == 1
        else SignatureRecord(signature.text, signature.extent)
    )
