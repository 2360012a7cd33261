"""Cases of `compare` that are shardings: methods by meshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...api.cases import MESH, ComparisonCase, cases
from ...instances import DeviceMesh, InputError, Sharding, Workload, program_of
from ...solvers.sharding.methods import RULES
from .console import parse_bytes
from .mesh import parse_links, parse_mesh

#: Methods to compare unless told otherwise.
USUAL = ("auto", *(rule for rule in RULES if rule != "communication-only"))


def sharding_cases(
    loaded: Mapping[str, Workload],
    meshes: str,
    links: str | None,
    memory: str | None,
    methods: Sequence[str],
    typed: Sequence[str],
    time_limit: float,
) -> list[ComparisonCase]:
    """Return every workload on every mesh with every method.

    Parameters
    ----------
    meshes, links, memory
        As they are typed: meshes separated by commas.
    typed
        Further options of all.
    """
    listed = [text.strip() for text in meshes.split(",")]
    for text in listed:
        if listed.count(text) > 1:
            raise InputError(f"--mesh: {text} is given twice")
        shape = parse_mesh(text)
        for workload in loaded.values():  # raises here, not in every case
            program_of(workload)
            mesh = DeviceMesh(shape, parse_links(links, shape, workload))
            Sharding(mesh, memory_bytes=parse_bytes(memory, "--memory"))
    given = [] if links is None else ["--links", links]
    return [
        case
        for text in listed
        for case in cases(
            list(loaded), methods, [MESH, text, *given, *typed], time_limit, objective="sharding"
        )
    ]
