"""Plans of every published instance, submitted to the records.

    python benchmarks/records.py FOLDER [--records records] [--seconds 60] [--only PREFIX]
                                 [--earlier OLD] [--published reference-values.csv]

FOLDER holds the published instances (`stagecut instances fetch`). Each question starts from the
plan in the records, so running it again can only improve them. New records, in an empty folder,
take whatever is still better from OLD, earlier records. With `--published`, a table of published
values, the records name these values.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from stagecut.api.records import InstanceRecord, read_records, submit_record, write_records

#: What is asked of the instances of a suite: a name, and the options of `stagecut solve`.
QUESTIONS: dict[str, list[tuple[str, str]]] = {
    "placement/throughput/": [
        ("max-load, contiguous", "--split contiguous"),
        ("max-load, non-contiguous", "--split noncontiguous"),
    ],
    "placement/latency/": [("latency, one call per device", "--problem latency")],
    "pipedream/": [
        (
            "training on 4 devices of 16 GiB, 64 microbatches, 25 GiB/s",
            "--accelerators 4 --memory 16GiB --microbatches 64 --set bandwidth=26843545600",
        ),
    ],
    "piper/bert32a100": [
        (
            f"training on {devices} devices of {memory} GiB, 1920 microbatches, 25 GiB/s",
            f"--accelerators {devices} --memory {memory}GiB --microbatches 1920 "
            "--set bandwidth=26843545600",
        )
        for devices, memory in (
            *((k, 8) for k in (8, 32, 64, 128, 512)), (64, 2), (512, 2), (512, 80),
        )
    ],
    "piper/gnmt": [
        ("training on 8 devices of 8 GiB, 512 microbatches, 25 GiB/s",
         "--accelerators 8 --memory 8GiB --microbatches 512 --set bandwidth=26843545600"),
    ],
    "piper/resnet": [
        ("training on 8 devices of 8 GiB, 7680 microbatches, 25 GiB/s",
         "--accelerators 8 --memory 8GiB --microbatches 7680 --set bandwidth=26843545600"),
    ],
}  # fmt: skip


def main() -> None:
    """Plan, submit, and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=Path, default=Path("records"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", default="")
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--published", type=Path)
    asked = parser.parse_args()
    asked.records.mkdir(exist_ok=True)
    if not (asked.records / "records.csv").exists():
        write_records(asked.records, [])
    for prefix, questions in QUESTIONS.items():
        paths = sorted(p.relative_to(asked.folder).as_posix() for p in asked.folder.rglob("*.*"))
        for path in paths:
            if path.startswith(prefix) and path.startswith(asked.only):
                for name, options in questions:
                    answer(path, name, options, asked)
    if asked.earlier is not None:
        for old in read_records(asked.earlier):
            take_over(old, asked)
    if asked.published is not None:
        records = read_records(asked.records)
        write_records(asked.records, [published(r, asked.published) for r in records])


def answer(path: str, name: str, options: str, asked: argparse.Namespace) -> None:
    """Plan for one question and submit the plan."""
    known = [r for r in read_records(asked.records) if (r.instance, r.asked) == (path, name)]
    if known and known[0].gap <= 1e-6:
        return
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        words = [*options.split(), "--time-limit", f"{asked.seconds:g}", "--gap", "0"]
        start = ["--start", str(asked.records / "plans" / known[0].plan)] if known else []
        command = [sys.executable, "-m", "stagecut", "solve", str(asked.folder / path), *words]
        done = subprocess.run([*command, *start, "-o", str(plan)], capture_output=True, text=True)
        if done.returncode:
            print(f"{path}, {name}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            return
        said = " ".join(["stagecut solve", path, *words])
        record, better = submit_record(
            plan, asked.records, asked.folder, instance=path, asked=name, command=said
        )
    print(f"{path}, {name}: {better}, {record.objective:.8g}, gap {record.gap:.3%}", flush=True)


def take_over(old: InstanceRecord, asked: argparse.Namespace) -> None:
    """Submit the plan of an earlier record, and that of its bound if it is another one."""
    for plan in dict.fromkeys([old.plan, old.bound_plan]):
        _, better = submit_record(
            asked.earlier / "plans" / plan, asked.records, asked.folder,
            instance=old.instance, asked=old.asked, command=old.command,
        )  # fmt: skip
        if better != "nothing":
            print(f"{old.instance}, {old.asked}: {better} is the earlier one", flush=True)


def published(record: InstanceRecord, table: Path) -> InstanceRecord:
    """Return a record with the published value of its question, if the table has one."""
    with table.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["how"].startswith("authors") and _same_question(record, row):
                said = f"{row['quantity']}, {row['how']}"
                return replace(record, published=row["value"], published_by=said)
    return record


def _same_question(record: InstanceRecord, row: dict[str, str]) -> bool:
    """Whether a row of the table of published values answers what a record asks."""
    words = record.instance.lower().removesuffix(".json").split("/")
    if len(words) < 3 and words[0] != "piper":
        return False
    if words[0] == "piper":
        devices, memory = [int(word) for word in record.asked.split() if word.isdigit()][:2]
        said = f"{words[1]} M={memory}GiB K={devices} N=1920"
        return row["problem"] == "piper" and row["workload"].startswith(said)
    quantity = {"max-load, contiguous": "contiguous DP optimum"}
    quantity |= {"latency, one call per device": "greedy"}
    named = [row["problem"], row["workload"].lower()] == [words[-3], words[-1]]
    return (
        named
        and words[-2].startswith(row["graph"])
        and row["quantity"] == quantity.get(record.asked)
    )


if __name__ == "__main__":
    main()
