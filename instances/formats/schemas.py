"""JSON schemas of our file formats, generated from the records that read them.

The published files are in ``instances/formats/schemas``; ``python -m
stagecut.instances.formats.schemas`` rewrites them, and a test checks that they are up to date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from ..topologies import TopologyFile
from .plan_json import (
    CHECKED,
    CODECS,
    STREAM,
    HubCertificate,
    PlanFile,
    PriceCertificate,
    ShardingCertificate,
)
from .problem_toml import PROBLEMS
from .stagecut_json import ClusterFile, WorkloadFile
from .tensor_program_json import ProgramFile

#: Folder of the published schemas.
FOLDER = Path(__file__).parent / "schemas"

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"
_EXAMPLES = re.compile(r"\s*\bExamples\s+---")


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each of our formats, by file name."""
    return {
        "workload.schema.json": _schema(WorkloadFile),
        "cluster.schema.json": _schema(ClusterFile),
        "plan.schema.json": _plan_schema(),
        "program.schema.json": _schema(ProgramFile),
        "problem.schema.json": _problem_schema(),
    }


def dumps_schema(schema: dict[str, Any]) -> str:
    """Return the text of a published schema."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _problem_schema() -> dict[str, Any]:
    """Return the schema of problem files: a table for one problem, whose fields are its own.

    A text may stand for a topology, a mesh or a link, and the name of a plan file for the nodes
    that rules fix.
    """
    definitions = _schema(*PROBLEMS.values())["$defs"]
    for definition in definitions.values():
        if definition.get("type") == "object":
            definition["additionalProperties"] = False
    text = {"type": "string"}
    for name in ("DeviceMesh", "Link"):
        definitions[name] = {"anyOf": [text, definitions[name]]}
    definitions["Topology"] = text
    fixed = definitions["PlacementRules"]["properties"]["fixed"]
    definitions["PlacementRules"]["properties"]["fixed"] = {"anyOf": [text, fixed]}
    tables = {name: {"$ref": f"#/$defs/{kind.__name__}"} for name, kind in PROBLEMS.items()}
    others = {name: {"type": "object"} for name in ("limits", "workers")}
    return {
        "$schema": _DIALECT,
        "type": "object",
        "properties": {**tables, **others},
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in PROBLEMS],
        "$defs": definitions,
    }


def _schema(*kinds: type[Any]) -> dict[str, Any]:
    """Return the schema of the first of `kinds`, with definitions of all."""
    schemas, definitions = msgspec.json.schema_components(
        kinds,
        ref_template=_REFERENCE,
        schema_hook=lambda _: {"type": "array"},  # of NumPy
    )
    for definition in definitions.values():
        if "description" in definition:  # the docstring, whose examples are of Python
            definition["description"] = _EXAMPLES.split(definition["description"])[0]
    return {"$schema": _DIALECT, **schemas[0], "$defs": definitions}


def _plan_schema() -> dict[str, Any]:
    """Return the JSON schema of plans, with a variant for each problem."""
    codecs = [*CODECS.items(), ("pipeline", STREAM)]
    used = [kind for _, codec in codecs for kind in (codec.problem, codec.record)]
    checked = PriceCertificate, HubCertificate, ShardingCertificate
    schema = _schema(PlanFile, TopologyFile, *checked, *used)
    schema["$defs"]["Topology"] = schema["$defs"].pop("TopologyFile")
    origins = {"enum": list(CHECKED)}
    other = {"type": "object", "properties": {"origin": {"not": origins}}}
    known = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in checked]
    schema["$defs"]["PlanFile"]["properties"]["certificate"] = {"anyOf": [*known, other]}
    choices = []
    for name, codec in codecs:
        problem = schema["$defs"][codec.problem.__name__]
        problem["properties"] = {"name": {"const": name}, **problem["properties"]}
        problem["required"] = list(problem["properties"])
        problem["additionalProperties"] = False
        kinds = {"problem": codec.problem, "solution": codec.record}
        parts = {key: {"$ref": f"#/$defs/{kind.__name__}"} for key, kind in kinds.items()}
        choices.append({"properties": parts})
    schema["oneOf"] = choices
    return schema


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(dumps_schema(schema))
