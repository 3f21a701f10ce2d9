"""Exported files: every network in every precision, what the strict float16 run says, and other exporters beside.

    python tests/benchmarks/export_parity.py --json --check
    python tests/benchmarks/export_parity.py --quick

Beside: Lightning's `to_onnx`, given the same batch, and ONNX Runtime's own float16 converter on the float32 file. The
networks are untrained, on a store of random rows; `plain DCN x60` multiplies the dense inputs of a DCN as many projects
write it by 60, `DCNv2 x60` those of our own. Memory is the private dirty memory that a session adds to a process that
holds one of a tiny model already (the first maps 8 MB of the runtime's own code); latency is CPU time on one thread,
medians of interleaved repeats. Nothing here was run on a GPU.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import torch
from machine import machine
from torch import nn

import lightning_mp
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import LightningMPError
from lightning_mp.export.encoded_rows import EncodedRows, module_logits, session_logits
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.half_tables import table_share
from lightning_mp.export.precision_policy import PrecisionPolicy
from lightning_mp.export.real_rows import RealRows
from lightning_mp.export.strict_run import strict_run
from lightning_mp.export.taken_inputs import taken_inputs
from lightning_mp.hardware.session import open_session
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.schema import Feature, FeatureSchema

PRECISIONS = ("fp32", "fp16-storage", "fp16-mixed")
RESIDENT = """
import json, sys
import numpy as np
from lightning_mp.hardware.session import open_session
def dirty():
    with open('/proc/self/smaps_rollup') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('Private_Dirty')) / 1024
feeds = {n: np.zeros(shape, dtype) for n, (shape, dtype) in json.loads(sys.argv[3]).items()}
open_session(sys.argv[1], 'cpu').run(None, {'ids': np.zeros((1, 1), dtype=np.int64)})
before = dirty()
session = open_session(sys.argv[2], 'cpu')
session.run(None, feeds)
print(dirty() - before)
"""


class Crosses(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        x = first
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class PlainDCN(pl.LightningModule):
    """A DCN as many projects write it."""

    def __init__(self, schema: FeatureSchema, scale: float = 1.0) -> None:
        super().__init__()
        self.schema, self.scale = schema, scale
        self.tables = nn.ModuleList(nn.Embedding(feature.vocabulary_size or 1, 16) for feature in schema.ids)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.01)
        width = 16 * len(schema.ids) + schema.dense_width
        self.cross = Crosses(width)
        self.deep = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.head = nn.Linear(width + 32, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        looked_up = [table(ids) for table, ids in zip(self.tables, batch["ids"].unbind(1), strict=True)]
        x = torch.cat([*looked_up, batch["dense"] * self.scale], dim=1)
        return self.head(torch.cat([self.cross(x), self.deep(x)], dim=1)).squeeze(1)


class TimesSixty(nn.Module):
    """Our DCNv2 with dense features that nobody scaled."""

    def __init__(self, schema: FeatureSchema) -> None:
        super().__init__()
        self.schema, self.network = schema, DCNv2(schema)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.network({**batch, "dense": batch["dense"] * 60.0})


def make_store(folder: Path, users: int, rows: int) -> FeatureStore:
    rng = np.random.default_rng(7)
    words = {"user": Vocabulary(list(range(1, users))), "item": Vocabulary(list(range(1, 2000)))}
    features = [
        Feature(name=name, kind="id", role=name, source_dtype="int64", stored_dtype="int32",
                vocabulary_size=words[name].size, vocabulary_digest=words[name].digest)
        for name in words
    ]  # fmt: skip
    numbers = [
        Feature(name=f"x{n}", kind="numeric", role="item" if n < 4 else "context", source_dtype="double",
                stored_dtype="float16", missing="constant", missing_value=0.0)
        for n in range(8)
    ]  # fmt: skip
    label = Feature(name="clicked", kind="numeric", role="label", source_dtype="bool", stored_dtype="float32")
    columns = {name: rng.integers(0, words[name].size, rows) for name in words}
    columns |= {feature.name: rng.normal(size=rows) for feature in numbers}
    columns["clicked"] = (rng.random(rows) < 0.2).astype(np.float32)
    table = pa.table(columns)
    store = FeatureStore(folder)
    schema = FeatureSchema(features=(*features, *numbers, label))
    store.write({"train": table[: rows // 4], "test": table[rows // 4 :]}, schema=schema, vocabularies=words)
    return store


def make_histories(folder: Path, items: int, rows: int) -> FeatureStore:
    """Rows of an item after a history of 20."""
    rng, words = np.random.default_rng(8), Vocabulary(list(range(1, items)))
    kinds: dict[str, Any] = {"item": ("id", "item", 1), "bought": ("sequence", "user", 20)}
    features = [
        Feature(name=name, kind=kind, role=role, source_dtype="int64", stored_dtype="int32", width=width,
                vocabulary_size=words.size, vocabulary_digest=words.digest)
        for name, (kind, role, width) in kinds.items()
    ]  # fmt: skip
    held = np.arange(20)[::-1] < rng.integers(0, 21, rows)[:, None]
    history = pa.array((rng.integers(1, items, (rows, 20)) * held).ravel().astype(np.int32))
    columns = {"item": rng.integers(0, items, rows), "bought": pa.FixedSizeListArray.from_arrays(history, 20)}
    table, store = pa.table(columns), FeatureStore(folder)
    parts = {"train": table[: rows // 4], "test": table[rows // 4 :]}
    store.write(parts, schema=FeatureSchema(features=tuple(features)), vocabularies=dict.fromkeys(kinds, words))
    return store


def networks(store: FeatureStore, histories: FeatureStore) -> dict[str, tuple[nn.Module, FeatureStore]]:
    """Every public network that a schema alone makes, and the plain DCN."""
    found: dict[str, tuple[nn.Module, FeatureStore]] = {}
    for name in lightning_mp.__all__:
        home = getattr(getattr(lightning_mp, name), "__module__", "")
        if home.startswith("lightning_mp.networks."):
            kind = getattr(import_module(home), name)
            if inspect.isclass(kind) and next(iter(inspect.signature(kind).parameters), "") == "schema":
                if "batch" not in inspect.signature(kind.forward).parameters:
                    continue  # a part of networks, such as their embedding
                takes = inspect.signature(kind).parameters
                settings = {"tasks": ("clicked", "ordered")} if "tasks" in takes else {}
                place = histories if "max_length" in takes else store
                try:
                    found[name] = kind(place.schema, **settings).eval(), place
                except LightningMPError as error:
                    print(f"{name} is left out: {error.problem}", file=sys.stderr)
    found["DCNv2 x60"] = TimesSixty(store.schema).eval(), store
    found["plain DCN"] = PlainDCN(store.schema).eval(), store
    found["plain DCN x60"] = PlainDCN(store.schema, 60.0).eval(), store
    return found


def size(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.glob("model.onnx*")) / 1e6


def tiny(path: Path) -> Path:
    """A model of one node, for the first session of a process."""
    from onnx import TensorProto, helper, save

    ids, both = (helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 1]) for name in ("ids", "logit"))
    graph = helper.make_graph([helper.make_node("Add", ["ids", "ids"], ["logit"])], "tiny", [ids], [both])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def resident(path: Path, first: Path) -> float:
    shapes = {
        entry.name: ([1, *entry.shape[1:]], "int64" if "int64" in entry.type else "float32")
        for entry in open_session(path, "cpu").get_inputs()
    }
    command = [sys.executable, "-c", RESIDENT, str(first), str(path), json.dumps(shapes)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    return statistics.median(float(run.stdout) for run in runs)


def latency(paths: dict[str, Path], feeds: dict[str, np.ndarray], repeats: int) -> dict[str, float]:
    """CPU microseconds a call, medians of interleaved repeats."""
    sessions = {name: open_session(path, "cpu") for name, path in paths.items()}
    seen: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(repeats):
        for name, session in sessions.items():
            start = time.process_time()
            for _ in range(20):
                session.run(["logit"], feeds)
            seen[name].append((time.process_time() - start) / 20 * 1e6)
    return {name: statistics.median(values) for name, values in seen.items()}


def exported(module: nn.Module, name: str, store: FeatureStore, folder: Path) -> tuple[list[dict], dict[str, Path]]:
    rows, paths = [], {}
    for precision in PRECISIONS:
        row: dict[str, object] = {"network": name, "precision": precision, "passed": False}
        try:
            bundle = export_bundle(module, folder / precision, store=store, precision=precision)
        except LightningMPError as error:
            rows.append({**row, "refused": error.problem})
            continue
        report = json.loads((bundle.path / "parity.json").read_text())
        paths[precision] = bundle.model
        rows.append({
            **row, "passed": True, "megabytes": round(size(bundle.path), 2), "logit_p99": report["logit"]["p99"],
            "top_10_overlap": report["ranking"]["overlap_mean"],
            "strict_non_finite": report.get("strict", {}).get("non_finite", 0),
            "strict_logit_p99": report.get("strict", {}).get("logit_p99"),
            "float16_layers": sum(v == "float16" for v in bundle.manifest.precision["layers"].values()),
        })  # fmt: skip
    return rows, paths


def converter(path: Path, module: nn.Module, rows: EncodedRows, folder: Path) -> dict[str, object]:
    """ONNX Runtime's own float16 converter on a float32 file, inputs and outputs kept in float32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = convert_float_to_float16(onnx.load(str(path)), keep_io_types=True)
    _sort(converted.graph)
    folder.mkdir(exist_ok=True)
    onnx.save(converted, str(folder / "model.onnx"))
    row: dict[str, object] = {"precision": "onnxruntime float16 converter", "megabytes": round(size(folder), 2)}
    expected = module_logits(module, rows)
    try:
        here = session_logits(open_session(folder / "model.onnx", "cpu"), rows)
        strict = strict_run(folder / "model.onnx", rows.feeds)
    except Exception as error:  # the converter writes files that no session opens
        return {**row, "refused": " ".join(str(error).split())[:120]}
    usable = np.isfinite(strict.logits)
    hidden = (np.isfinite(here) & ~usable).reshape(len(here), -1).any(axis=1)
    away = np.abs(strict.logits - expected)[usable] / np.maximum(1.0, np.abs(expected[usable]) / 16.0)
    return {
        **row, "non_finite_shown_by_onnx_runtime": int((~np.isfinite(here)).sum()),
        "strict_non_finite": strict.non_finite,
        "rows_hidden_by_onnx_runtime": int(hidden.sum()),
        "strict_logit_p99": float(np.quantile(away, 0.99)) if len(away) else None,
    }  # fmt: skip


def _sort(graph: Any) -> None:
    """Put nodes after what they need: the converter leaves its casts at the end, which only ONNX Runtime takes."""
    known = {"", *(entry.name for entry in (*graph.input, *graph.initializer))}
    left, ordered = list(graph.node), []
    while left:
        ready = [node for node in left if known.issuperset(node.input)]
        if not ready:
            break
        ordered += ready
        known.update(name for node in ready for name in node.output)
        left = [node for node in left if not known.issuperset(node.output)]
    del graph.node[:]
    graph.node.extend([*ordered, *left])


def to_onnx(module: pl.LightningModule, batch: dict[str, torch.Tensor], path: Path) -> dict[str, object]:
    """Lightning's own export of the same batch."""
    row: dict[str, object] = {"network": "plain DCN", "precision": "Lightning to_onnx"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.to_onnx(path, input_sample={"batch": batch}, dynamo=True, verbose=False)
    except Exception as error:
        return {**row, "refused": f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"}
    inputs = [entry.name for entry in open_session(path, "cpu").get_inputs()]
    return {**row, "megabytes": round(path.stat().st_size / 1e6, 2), "inputs": inputs}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a smaller table and fewer repeats")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows: list[dict] = []
    checks: list[dict] = []

    def check(name: str, value: float, goal: str, ok: bool) -> None:
        checks.append({"name": name, "value": value, "goal": goal, "ok": bool(ok)})

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = make_store(folder / "store", users=20_000 if options.quick else 1_000_000, rows=6000)
        histories = make_histories(folder / "histories", 2000 if options.quick else 200_000, rows=6000)
        first = tiny(folder / "tiny.onnx")
        for name, (module, source) in networks(store, histories).items():
            real = RealRows.read(source, source.schema, 256)
            few = real.rows.only(taken_inputs(module, real.rows[:4].tensors()))
            here = folder / name.replace(" ", "_")
            here.mkdir()
            share = table_share(module)
            found, paths = exported(module, name, source, here)
            for batch in (1, 64):
                times = latency(paths, few[:batch].feeds, 5 if options.quick else 15)
                for row in found:
                    if row["precision"] in times:
                        row[f"cpu_us_batch_{batch}"] = round(times[row["precision"]], 1)
            for row in found:
                row["table_share"] = round(share, 4)
                if row["precision"] in paths:
                    row["resident_megabytes"] = round(resident(paths[row["precision"]], first), 1)
                check(f"{name}, {row['precision']}: passes the gates", float(row["passed"]), "= 1", row["passed"])
            rows += found
            converted: dict[str, Any] = {}
            by = {row["precision"]: row for row in found if row["passed"]}
            if share >= 0.95 and {"fp32", "fp16-storage"} <= by.keys():
                single, half = by["fp32"], by["fp16-storage"]
                for key, goal in (("megabytes", 0.55), ("resident_megabytes", 0.55), ("cpu_us_batch_64", 1.1)):
                    ratio = half[key] / max(single[key], 1e-9)
                    if key == "resident_megabytes" and options.quick:
                        continue  # a small table drowns in what the runtime itself takes
                    if key == "resident_megabytes" and single[key] < 0.05 * single["megabytes"]:
                        # From 64 MB on weights lie beside the graph and are mapped: only the rows that are asked for
                        # are read at all, in either precision.
                        share_read = half[key] / half["megabytes"]
                        check(f"{name}: fp16-storage, mapped: private memory over the file", round(share_read, 3),
                              "<= 0.05", share_read <= 0.05)  # fmt: skip
                        continue
                    check(f"{name}: fp16-storage over fp32, {key}", round(ratio, 3), f"<= {goal}", ratio <= goal)
            if "fp32" in paths:
                converted = converter(paths["fp32"], module, few, here / "converted")
                rows.append({"network": name, **converted})
            if name == "DCNv2 x60":
                hidden = converted.get("rows_hidden_by_onnx_runtime", 0)
                check("DCNv2 x60, converted: lost rows that ONNX Runtime hides", hidden, "> 0", hidden > 0)
                left = by["fp16-mixed"]["strict_non_finite"] if "fp16-mixed" in by else len(few)
                check("DCNv2 x60, automatic policy: rows lost in the strict run", left, "= 0", left == 0)
        wild = PlainDCN(store.schema, 60.0).eval()
        naive = PrecisionPolicy(file="fp16-mixed", keep_in_fp32=("@output",), largest_activation=float("inf"))
        try:
            export_bundle(wild, folder / "naive", store=store, precision=naive)
            lost = 0
        except LightningMPError as error:
            rows.append(
                {"network": "plain DCN x60", "precision": "fp16-mixed, range audit off", "refused": error.problem}
            )
            lost = int(error.problem.split()[3]) if error.problem.startswith("strict float16 run") else 0
        check("x60, every layer in float16: rows lost that ONNX Runtime hides", lost, "> 0", lost > 0)
        cured = next(row for row in rows if row["network"] == "plain DCN x60" and row["precision"] == "fp16-mixed")
        left = cured.get("strict_non_finite", 256)
        check("x60, automatic policy: rows lost in the strict run", left, "= 0", left == 0)
        sample = RealRows.read(store, store.schema, 4).rows.only(("ids", "dense")).tensors()
        rows.append(to_onnx(PlainDCN(store.schema).eval(), sample, folder / "lightning.onnx"))
    for row in rows:
        print(
            "  ".join(
                f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
            )
        )
    for entry in checks:
        print(f"{'ok  ' if entry['ok'] else 'MISS'}  {entry['name']}: {entry['value']} (goal {entry['goal']})")
    if options.json:
        print(json.dumps({"benchmark": "export_parity", "machine": machine(), "checks": checks, "rows": rows}))
    return 1 if options.check and not all(entry["ok"] for entry in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
