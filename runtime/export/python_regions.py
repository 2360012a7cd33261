"""Operators under autocast or `set_grad_enabled`, as a script can say them.

In a traced graph such an operator is a graph of its own, called by an operator that says what is
around it (`instances/pytorch/tracing/trace.py`); a script says ``with``.
"""

from __future__ import annotations

from torch import fx
from torch._ops import HigherOrderOperator

#: Operator → what a script says, and how many of its arguments that takes.
_SAID = {
    "wrap_with_autocast": ("torch.autocast({!r}, {!r}, {!r}, {!r})", 4),
    "wrap_with_set_grad_enabled": ("torch.set_grad_enabled({!r})", 1),
}


def inlined(module: fx.GraphModule) -> fx.GraphModule:
    """Return the same operators in one graph; `meta["around"]` says what is around one."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for n in module.graph.nodes:
        found = _SAID.get(n.target.name()) if isinstance(n.target, HigherOrderOperator) else None
        if found is None:
            new[n] = graph.node_copy(n, new.__getitem__)
            continue
        words, count = found
        inner: fx.GraphModule = module.get_submodule(str(n.args[count].target))
        for part, given in zip(
            inner.graph.find_nodes(op="placeholder"), n.args[count + 1 :], strict=True
        ):
            new[part] = new[given]
        operator = next(part for part in inner.graph.nodes if part.op == "call_function")
        new[n] = graph.node_copy(operator, new.__getitem__)
        new[n].name = n.name
        new[n].meta["around"] = words.format(*n.args[:count])
    graph.eliminate_dead_code(lambda n: n.op != "get_attr")
    return fx.GraphModule(module, graph)
