"""The layers of a profile become layer types, priced as they were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stagecut
from stagecut import InputError, Layout, Workload, estimate, model_description
from stagecut.instances.model.layers import Layers

#: Seconds of a layer's forward and backward pass.
FORWARD, BACKWARD = 0.002, 0.005


def chain(count: int = 8, *, seed: int = 0, degrees: tuple[int, ...] = (1, 2)) -> Workload:
    """Return layers that are alike but for how they were measured, and a last one of its own."""
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(count)
    rows: dict[str, list[Any]] = {
        key: [] for key in ("node", "degree", "label", "recomputes", "time", "weights", "kept")
    }
    for v in range(count):
        for t in degrees:
            for again in (False, True):
                name = "vanilla" if t == 1 else "tensor"
                rows["node"].append(v)
                rows["degree"].append(t)
                rows["label"].append(f"{name}-recompute" if again else name)
                rows["recomputes"].append(again)
                rows["time"].append(noise[v] * 1e3 * (FORWARD * (1 + again) + BACKWARD) / t**0.5)
                rows["weights"].append(4e6 / t)
                rows["kept"].append(1e6 if again else 9e6 / t)
    layers = Layers(
        node=np.array(rows["node"]),
        degree=np.array(rows["degree"]),
        label=tuple(rows["label"]),
        recomputes=np.array(rows["recomputes"]),
        time=np.array(rows["time"]),
        weight_bytes=np.array(rows["weights"]),
        bytes_per_microbatch=np.array(rows["kept"]),
        fixed_bytes=np.zeros(len(rows["node"])),
        edge_bytes=np.full(count - 1, 1e6),
        sync_bytes=({},) * len(rows["node"]),
    )
    weights = np.full(count, 1e6)
    weights[-1] = 2e6
    return Workload(
        name="own",
        ids=tuple(range(count)),
        edges=np.array([(v, v + 1) for v in range(count - 1)]),
        times={"accelerator": np.ones(count)},
        memory_bytes=np.ones(count),
        transfer=None,
        output_bytes=np.full(count, 1e6),
        extra={"parameters": weights, "flops": np.full(count, 3e9)},
        time_unit="ms",
        layers=layers,
    )


def test_layers_that_are_alike_are_one_type() -> None:
    model = model_description(chain())
    assert model.layers == 8
    assert len(model.layer_types) == 2
    assert model.parameters == 9e6
    (one, half) = model.layer_types[0].profiled.measured  # type: ignore[union-attr]
    assert (one.degree, half.degree) == (1, 2)
    assert one.forward == pytest.approx(FORWARD, rel=0.05)
    assert one.backward == pytest.approx(BACKWARD, rel=0.05)
    assert half.forward == pytest.approx(one.forward / 2**0.5)
    assert (one.held, half.held, one.kept, one.entering) == (1.0, 0.5, 9e6, 1e6)


@pytest.mark.parametrize("seed", range(3))
def test_an_estimate_adds_up_what_was_measured(seed: int) -> None:
    workload = chain(seed=seed)
    assert workload.layers is not None
    plain = (workload.layers.degree == 1) & ~workload.layers.recomputes
    once = workload.layers.time[plain].sum() / 1e3
    layout = Layout(data=1, global_batch=5, sequence=1)
    found = estimate(model_description(workload), layout, "h100:1")
    assert found.terms["layers"] == pytest.approx(5 * once)
    around = found.terms["optimizer"] + found.terms["host"]  # once an iteration
    assert found.seconds == pytest.approx(5 * once + around)
    full = estimate(
        model_description(workload), replace(layout, recompute=frozenset({"full"})), "h100:1"
    )
    again = workload.layers.time[(workload.layers.degree == 1) & workload.layers.recomputes].sum()
    assert full.terms["recomputation"] == pytest.approx(5 * (again / 1e3 - once))
    assert full.memory[0].activations == pytest.approx(8e6)
    assert found.memory[0].activations == pytest.approx(72e6)


def test_stages_and_degrees_divide_it() -> None:
    model = model_description(chain())
    layout = Layout(tensor=2, pipeline=4, data=1, global_batch=16, sequence=1)
    found = estimate(model, layout, "h100:8")
    assert found.terms["bubble"] > 0
    assert sum(rank.parameters for rank in found.memory) == pytest.approx(2 * 9e6 / 2)


def test_a_shipped_workload_s_layers_have_the_model_s_weights() -> None:
    workload = stagecut.training_layers(stagecut.load("gpt2-xl-training"))
    model = model_description(workload)
    assert model.parameters == 1_557_611_200
    assert len(model.layer_types) == 5
    assert model.layers == workload.n


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensor": 4, "data": 2}, "tensor: 4; the model was profiled for 1, 2"),
        ({"microbatch": 2}, "microbatch: 2; the batch that own was profiled with counts as 1"),
        ({"sequence": 128}, "sequence: 128; the batch that own"),
        ({"recompute": frozenset({"mlp"})}, "recompute: of own whole layers alone"),
        ({"pipeline": 4, "chunks": 4, "schedule": "interleaved", "data": 2}, "16 stages"),
    ],
)
def test_what_was_not_profiled_is_refused(changed: dict[str, Any], said: str) -> None:
    layout = replace(Layout(data=8, global_batch=16, sequence=1), **changed)
    with pytest.raises(InputError, match=said):
        estimate(model_description(chain()), layout, "h100:8")


def with_edges(*first: tuple[int, int]) -> Workload:
    """Return layers of which all but the first ones are a chain."""
    workload = chain()
    edges = np.array([*first, *[(v, v + 1) for v in range(2, 7)]])
    layers = replace(workload.layers, edge_bytes=np.ones(len(edges)))
    return replace(workload, edges=edges, layers=layers)


def test_a_chain_may_begin_with_several_layers_such_as_embeddings() -> None:
    model = model_description(with_edges((0, 2), (1, 2)))
    assert model.layers == 8
    assert model.parameters == model_description(chain()).parameters


def test_what_is_no_chain_of_profiled_layers_is_refused() -> None:
    workload = chain()
    with pytest.raises(InputError, match=r"its layers are no chain.*: 3 reads 0, and others run"):
        model_description(with_edges((0, 1), (1, 2), (0, 3)))
    with pytest.raises(InputError, match="do not say their parameters"):
        model_description(replace(workload, extra={}))
    with pytest.raises(InputError, match="it names no unit of time"):
        model_description(replace(workload, time_unit="unspecified"))
    with pytest.raises(InputError, match="no layer configurations"):
        model_description(stagecut.load("gpt2-xl-training"))


def test_a_file_of_layers_is_a_model(tmp_path: Any) -> None:
    path = tmp_path / "layers.json"
    stagecut.save(chain(), path)
    assert model_description(path) == model_description(str(path)) == model_description(chain())
