"""The choices of operators, and what tensors cost by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances import InputError, Operator
from ...instances.common.arrays import Floats, Ints
from ...instances.common.errors import quote
from ...instances.model.sharding.properties import property_text
from .conversions import Conversions


@dataclass(frozen=True, eq=False)
class Choices:
    """The choices of one operator, C of them.

    Parameters
    ----------
    signature
        Shape (C, axes): the number of its signature along each axis.
    cost
        Shape (C,): of computing.
    needs, makes
        For each tensor that it reads, or makes, the number of its property; shape (C,).
    """

    signature: Ints
    cost: Floats
    needs: tuple[Ints, ...]
    makes: tuple[Ints, ...]

    def only(self, kept: Ints) -> Choices:
        """Return these choices alone."""
        return Choices(
            self.signature[kept],
            self.cost[kept],
            tuple(column[kept] for column in self.needs),
            tuple(column[kept] for column in self.makes),
        )


@dataclass(frozen=True, eq=False)
class Use:
    """An operator that reads a tensor: the number of the property it needs, by its choice."""

    operator: int
    needs: Ints


@dataclass(frozen=True, eq=False)
class Term:
    """What a tensor costs by how it is made and read, once for all uses that need the same of it.

    Parameters
    ----------
    maker, makes
        The operator that makes it, and the number of its property by the operator's choice.
    uses
        Who reads it.
    cost
        From the property made (rows) to the one needed (columns).
    """

    maker: int
    makes: Ints
    uses: tuple[Use, ...]
    cost: Floats

    def value(self, chosen: Ints) -> float:
        """Return what it costs for the number of each operator's choice."""
        needed = {int(use.needs[chosen[use.operator]]) for use in self.uses}
        row = self.cost[self.makes[chosen[self.maker]]]
        return float(sum(row[b] for b in sorted(needed)))


def fixed_choices(
    operator: Operator, choices: Choices, text: str, converted: tuple[Conversions, ...]
) -> Choices:
    """Return the choices of an operator that a text such as ``S0,B`` leaves."""
    read = [
        [property_text(converted[t].states[b]) for t, b in zip(tensors, row, strict=True)]
        for tensors, columns in (
            (operator.inputs, choices.needs),
            (operator.outputs, choices.makes),
        )
        for row in zip(*columns, strict=True)
    ]
    count = len(choices.cost)
    inputs = [",".join(row) for row in (read[:count] if operator.inputs else [[]] * count)]
    outputs = [",".join(row) for row in read[-count:]]
    names = [f"{a}->{b}" for a, b in zip(inputs, outputs, strict=True)]
    short = inputs if operator.inputs else outputs
    kept = [k for k in range(count) if text in (names[k], short[k])]
    if not kept:
        known = ", ".join(dict.fromkeys(short))
        raise InputError(
            f"fix: {operator.name} cannot have {quote(text)} on this mesh; it can have {known}"
        )
    return choices.only(np.array(kept))
