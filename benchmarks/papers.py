"""The page of the papers' tables beside ours, docs/papers.md, from the tables in `results/`.

    python benchmarks/papers.py

As in `page.py`, every number comes from the tables, or is a count or an extreme of theirs. The
programs that measure our numbers hold the papers' own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from page import Section, grouped, markdown, number, table, written
from piper_figures import coefficients
from placement_ratios import summary
from results import Row, read

PAGE = Path(__file__).parent.parent / "docs" / "papers.md"


def placement() -> list[str]:
    rows = read("placement_ratios")
    return [
        *table(
            "method | graphs | largest ratio | in the paper | mean | in the paper | largest at",
            summary(rows),
        ),
        "A ratio divides the method's max-load by the max-load of the best non-contiguous split. "
        "The paper gives its ratios of *expert*, PipeDream, local search and Scotch in section 1. "
        "Experts cut only layer graphs. The authors ran PipeDream's optimizer only on layers, too: "
        "on operators its merging leaves one layer. For GNMT they left out the edges of three "
        "nodes (`--method pipedream:skip=2+40+46`); with these edges, one device gets the whole "
        "network. For expert and PipeDream, our values equal those of the authors' program on "
        "every workload. Our local search also takes moves that keep the maximum and even out the "
        "loads, so it ends nearer the best split.",
    ]


def training_latency() -> list[str]:
    rows = [
        (row["workload"], row["method"], row["latency"], row["bound"], row["gap_percent"])
        for row in read("latency_training")
    ]
    return [
        *table("network @ devices x GiB | method | ms of a step | bound | gap", rows),
        "One training step on all devices without a pipeline (the paper's figure 2b) is the "
        "latency of the training graph, where each accelerator has one call for the forward and "
        "one for the backward pass: `stagecut solve gpt2-xl-training --problem latency --set "
        "calls=2`. The published training graphs have no edge from the forward to the backward "
        "pass, so both could run at the same time. Their latency is therefore meaningless, and the "
        "paper gives none.",
    ]


def relative(rows: Iterable[Row], *key: str) -> list[tuple[str, ...]]:
    """Return a row per setting: Piper's time, and each variant's throughput as a part of it."""
    shown = []
    for values, group in grouped(list(rows), *key).items():
        times = {row["variant"]: row["seconds_per_sample"] for row in group}
        if best := times["Piper"]:
            parts = (
                f"{float(best) / float(time):.3f}" if time else "—"
                for variant, time in times.items()
                if variant != "Piper"
            )
            shown.append((*values, best, *parts))
    return shown


def piper() -> list[str]:
    correlated = read("piper_correlation")
    told = "; ".join(
        f"batch {batch}: {pearson:.3f} ({ranks:.3f})"
        for (batch,), rows in grouped(correlated, "batch").items()
        for pearson, ranks in [coefficients(rows)]
    )
    networks = [
        (
            row["network"], row["devices"], row["memory_gib"], row["exact"] or "does not fit",
            row["equal_stages"] or "—", row["gap_percent"],
        )
        for row in read("piper_networks")
    ]  # fmt: skip
    return [
        *piper_exactly(),
        "",
        "**Over devices k.** The column *Piper* is the exact optimum of Piper's space, in seconds "
        "per sample; the other columns are throughputs relative to it. Settings in which no plan "
        "fits are left out.",
        "",
        "![Throughput of restricted plans over devices](piper_devices.png)",
        *table(
            "GiB | k | Piper | no DP | no TP | no AR | equi no TP | equi",
            relative(read("piper_devices"), "memory_gib", "devices"),
        ),
        "**Over the total number of replicas s** (Σ d_i is at most s; 2,048 devices).",
        "",
        "![Throughput of restricted plans over replicas](piper_replicas.png)",
        *table(
            "GiB | s | Piper | no DP | no TP | no AR",
            relative(read("piper_replicas"), "memory_gib", "most_replicas"),
        ),
        "**ResNet and GNMT** (exact, and equal stages).",
        *table("network | devices | GiB | exact | equal stages | gap, %", networks),
        "**Figure 4**: equal stages with fixed replicas d, tensor degree t and number of stages "
        "on 64 devices, `--method equal-stages:stages=16 --set replicas=4 --set degrees=1`. "
        "*predicted* is the time per microbatch; *simulated* is the makespan of the batch under "
        "1F1B in the simulator, divided by the number of microbatches.",
        *table(
            "batch | d | t | stages | predicted | simulated",
            [
                tuple(row[k] for k in ("batch", "replicas", "degree", "stages", "predicted",
                                       "simulated_per_microbatch"))
                for row in correlated
            ],
        ),
        f"Correlation, with rank correlation in brackets: {told}. The model leaves out fill and "
        "drain, which matter when a batch is small and stages are many.",
    ]  # fmt: skip


def piper_exactly() -> list[str]:
    """Return how plans of three searches of the same space compare."""
    rows = read("training")
    alike = sum(row["authors"] == row["greedy_rule"] == row["exact"] for row in rows)
    off = sum(row["switches"] != "" for row in rows)

    def span(column: str) -> str:
        values = [number(row[column]) for row in rows]
        return f"{min(values):g} to {max(values):g}"

    return [
        "",
        "The 32-layer model, planned by the authors' program, by their greedy "
        "rule in our dynamic program, and exactly (`training.py --part piper`): "
        f"in {alike} of {len(rows)} cells ({span('devices')} devices of {span('memory_gib')} GiB; "
        f"in {off} replicas, tensor degrees or recomputation are switched off) all three find the "
        f"same optimum, of {min(number(row['exact']) for row in rows):g} to "
        f"{max(number(row['exact']) for row in rows):g} s; the exact search proves it to "
        f"{max(number(row['gap']) for row in rows):g} in {span('seconds')} s.",
    ]


def distpar() -> list[str]:
    rows = read("sharding_scaling")
    names = ("model", "batch", "devices", "best_ms", "gap_percent", "speed_up",
             "samples_per_second", "data_parallel_ms", "nothing_overlapped_ms")  # fmt: skip
    faces = read("sharding_face_net")
    few = ("batch_per_device", "classes", "best_ms", "data_parallel_ms", "classes_divided_ms",
           "gain_percent", "published_largest_gain_percent")  # fmt: skip
    return [
        *table(
            "model | batch | devices | best, ms | gap, % | speed-up | samples/s "
            "| data parallel, ms | nothing overlapped, ms",
            [tuple(row[k] for k in names) for row in rows],
        ),
        "Figure 2 by price: one batch on more and more devices. *best* is the plan of `auto` "
        "with `--set overlap=true`; the last column is the plan of `auto` if each gradient pays "
        "its own latency and nothing overlaps.",
        *table(
            "samples per device | classes | best, ms | data parallel, ms | classes divided, ms "
            "| gain over data parallel, % | the paper's largest, %",
            [tuple(row[k] for k in few) for row in faces],
        ),
        "Figure 4 by price: a face recogniser on 8 devices. The "
        "[benchmarks](benchmarks.md#sharding) cover β, the 27 ways to divide VGG16's layers, and "
        "measured runs; *Placement* (section 3.1) are [parts on groups of devices]"
        "(sharding.md#parts-on-groups-of-devices).",
    ]


SECTIONS = (
    Section(
        "Device placement (Tarnawski et al., NeurIPS 2020)",
        "`python benchmarks/placement_ratios.py FOLDER` prints this table. Without the paper's "
        "columns, so does `stagecut compare FILES --split noncontiguous --methods "
        "auto,expert:FOLDER,local-search,pipedream,scotch,metis`.",
        ("placement_ratios",),
        placement,
    ),
    Section(
        "Model-parallel training (the same paper, figure 2b)",
        "`python benchmarks/latency.py --shipped NAME@DEVICESxGIB --calls 2`.",
        ("latency_training",),
        training_latency,
    ),
    Section(
        "Piper (Tarnawski et al., NeurIPS 2021)",
        "`python benchmarks/piper_figures.py FOLDER` uses the authors' settings: BERT-32, 1,920 "
        "microbatches, 25 GiB/s. It reproduces their published values to the last digit.",
        ("training", "piper_devices", "piper_replicas", "piper_networks", "piper_correlation"),
        piper,
    ),
    Section(
        "DistPar",
        "`python benchmarks/sharding_scaling.py` prices operators by the rooflines of an H100 with "
        "links of 10 µs and 50 GB/s, and of V100s with 25 GB/s. Batch normalisation uses each "
        "device's own samples, as in PyTorch's data parallelism.",
        ("sharding_scaling", "sharding_face_net"),
        distpar,
    ),
)

ELSEWHERE = """
## Parmesan

The [benchmarks](benchmarks.md#mapping) show seven topologies × 12 (stages, replicas) after 2 CPU
seconds (three seeds) and after 20 (one seed), measured by `python benchmarks/mapping.py`. The
formulation is on the page of [mappings](mapping.md).

## DRL-PP

The [benchmarks](benchmarks.md#learned-placement) and the page of [learned placement](learned.md)
show zero-shot and learned placements against proved bounds, the ratios of table 2, and the curve of
figure 7 (`python benchmarks/learned.py`, `python benchmarks/learned_run.py`).
"""

#: Paper, what of it cannot be reproduced here, and why.
LACKING = (
    ("device placement", "its own planning times", "another machine and a commercial solver"),
    (
        "Piper",
        "the measured axis of figure 4",
        "a picture of another paper's runs on 64 A100s; simulated here",
    ),
    (
        "DistPar",
        "throughput on P100s and V100s",
        "another cluster, and code that was never released; priced by rooflines here",
    ),
    (
        "DistPar",
        "the face recogniser's network",
        "not published; ResNet-50 on 112 × 112 pixels here",
    ),
    (
        "Parmesan",
        "objective values of its tables",
        "the partitioned SemanticFPN is not published; times and proofs are compared",
    ),
    (
        "DRL-PP",
        "hours and epochs to accuracy on ImageNet",
        "takes days on 4 P100s; ratios of predicted time here",
    ),
)


def page() -> str:
    """Return the page."""
    lines = [
        "# The papers' tables beside ours",
        "",
        "<!-- made by benchmarks/papers.py from benchmarks/results: change those -->",
        "",
        "Stagecut states the problems of five papers and solves them to a proved gap. This page "
        "sets the papers' tables and figures beside ours; a program makes each. The pages of the "
        "problems say what each formulation counts.",
    ]
    lines += written(SECTIONS)
    lines += [ELSEWHERE, "", "## What cannot be reproduced here"]
    lines += table("paper | what | why", LACKING)
    return markdown(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
