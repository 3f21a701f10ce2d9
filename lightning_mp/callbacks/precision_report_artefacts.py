"""What a run has beside its numbers: the store it reads, the bundle it wrote, and the findings of other callbacks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl

from lightning_mp.bundle import PARITY
from lightning_mp.callbacks.onnx_export import OnnxExport
from lightning_mp.data.store.feature_store import FeatureStore


def data_facts(trainer: pl.Trainer) -> dict[str, Any] | None:
    """The store that the Trainer's datamodule reads, and what the audit said of it; `None` where there is no store."""
    datamodule = getattr(trainer, "datamodule", None)
    store = getattr(datamodule, "store", None)
    if not isinstance(store, FeatureStore) or not store.exists:
        return None
    manifest = store.manifest
    return {
        "store": str(store.path),
        "version": manifest.version,
        "digest": manifest.schema.digest,
        "rows": {split: manifest.rows(split) for split in manifest.splits},
        "audit": manifest.source.get("audit"),
        "clipped": manifest.clipped,
        "features": [
            {
                "name": f.name, "kind": f.kind, "role": f.role, "stored": f.stored_dtype,
                "transform": f.transform.kind if f.transform is not None else None,
                "note": manifest.notes.get(f.name),
            }
            for f in manifest.schema.features
        ],
    }  # fmt: skip


def export_facts(export: OnnxExport | None) -> dict[str, Any] | None:
    """The bundle that was written, and its parity with the trained module; `None` where none was asked for."""
    if export is None:
        return None
    if export.bundle is None:
        return {"bundle": None, "asked": export.precision.file, "parity": None}
    manifest = export.bundle.manifest
    report = json.loads((export.bundle.path / PARITY).read_text(encoding="utf-8"))
    numbers = {
        f"{part}.{key}": value
        for part in ("logit", "ranking", "auc", "ndcg", "mean_score", "strict")
        for key, value in (report.get(part) or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {"bundle": str(export.bundle.path), "precision": manifest.precision.get("used"), "parity": numbers}


def told_by_others(callbacks: Iterable[Any]) -> list[dict[str, Any]]:
    """Findings of a callback that keeps such, as `PrecisionLint` does."""
    told = []
    for callback in callbacks:
        found = [] if type(callback).__name__ == "PrecisionReport" else getattr(callback, "findings", None)
        for entry in found if isinstance(found, list | tuple) else ():
            words = {name: str(getattr(entry, name, "") or "") for name in ("code", "name", "severity", "problem")}
            cure = str(getattr(entry, "cure", "") or getattr(entry, "hint", "") or "")
            if words["code"] and words["problem"]:
                if place := getattr(entry, "place", ""):
                    words["problem"] += f" (`{place}`)"
                told.append({**words, "cure": cure, "page": f"findings/{words['code']}.md"})
    return told
