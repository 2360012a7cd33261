"""Division of regions under autocast or without gradients into operators.

`torch.export` makes one node of such a region, however much is in it. Here each of its operators
becomes a node, in a region of its own; so they can be planned apart, and each still runs under
what was around it.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx
from torch._ops import HigherOrderOperator

from ...common.errors import InputError

_REGIONS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})


def check_operators(module: fx.GraphModule) -> None:
    """Refuse operators that hold graphs, other than regions: nothing looks into those.

    Raises
    ------
    InputError
        If there is one: which, and in which module's code.
    """
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    for n in (n for graph in graphs for n in graph.nodes):
        if isinstance(n.target, HigherOrderOperator) and n.target.name() not in _REGIONS:
            stack = n.meta.get("nn_module_stack") or {}
            path = next(
                (str(p).removeprefix("L['self'].") for p, _ in reversed(stack.values())), ""
            )
            where = f"module {path}" if path else "the model's own code"
            raise InputError(
                f"model: torch's operator {n.target.name()} (in {where}) holds a graph of its own, "
                "which is not looked into; write it with plain operators (for cond: both branches, "
                "and torch.where)"
            )


def cut_regions(module: fx.GraphModule) -> None:
    """Cut all regions of a graph, in place."""
    for n in list(module.graph.nodes):
        if isinstance(n.target, HigherOrderOperator) and n.target.name() in _REGIONS:
            _cut(module, n)
    module.recompile()


def _cut(module: fx.GraphModule, region: fx.Node) -> None:
    if not all(user.target is operator.getitem for user in region.users):
        return
    at = next(i for i, arg in enumerate(region.args) if _is_graph(module, arg))
    name = str(region.args[at].target)
    inner: fx.GraphModule = module.get_submodule(name)
    outer = dict(zip(inner.graph.find_nodes(op="placeholder"), region.args[at + 1 :], strict=True))
    with module.graph.inserting_before(region):
        for n in inner.graph.nodes:
            if n.op == "get_attr":
                outer[n] = module.graph.get_attr(f"{name}.{n.target}")
            elif n.op == "call_function" and n.target is operator.getitem:
                outer[n] = module.graph.call_function(n.target, (outer[n.args[0]], n.args[1]))
            elif n.op == "call_function":
                alone, given = _alone(inner, n)
                path = f"{name}_{n.name}"
                module.add_submodule(path, alone)
                outer[n] = module.graph.create_node(
                    "call_function",
                    region.target,
                    (*region.args[:at], module.graph.get_attr(path), *(outer[g] for g in given)),
                    name=n.name,
                )
            if n in outer and n.op == "call_function":
                outer[n].meta |= n.meta
        (results,) = inner.graph.output_node().args
    for user in list(region.users):
        user.replace_all_uses_with(outer[results[user.args[1]]])
        module.graph.erase_node(user)
    module.graph.erase_node(region)


def _alone(inner: fx.GraphModule, n: fx.Node) -> tuple[fx.GraphModule, list[fx.Node]]:
    """Return a graph of one operator, and the nodes that it reads."""
    graph = fx.Graph()
    given = [g for g in n.all_input_nodes if g.op != "get_attr"]
    inside = {g: graph.placeholder(g.name) for g in given}
    for g in n.all_input_nodes:
        if g.op == "get_attr":
            inside[g] = graph.get_attr(g.target)
    graph.output(graph.node_copy(n, inside.__getitem__))
    return fx.GraphModule(inner, graph), given


def _is_graph(module: fx.GraphModule, arg: Any) -> bool:
    if not isinstance(arg, fx.Node) or arg.op != "get_attr":
        return False
    found: Any = module
    for word in str(arg.target).split("."):
        found = getattr(found, word)
    return isinstance(found, fx.GraphModule)
