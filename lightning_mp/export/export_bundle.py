"""From a trained module to a bundle that was checked against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lightning_mp.bundle import MODEL, PIPELINE, SAMPLES, Bundle
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError
from lightning_mp.export import fidelity
from lightning_mp.export.attempt import Answer
from lightning_mp.export.core_graph import OPSET
from lightning_mp.export.encode_raw import encode_raw
from lightning_mp.export.encoded_rows import pipeline_logits
from lightning_mp.export.encoder_graph import encoder_graph
from lightning_mp.export.inference_copy import inference_copy
from lightning_mp.export.missing_fills import MissingFills
from lightning_mp.export.pipeline_graph import write_pipeline
from lightning_mp.export.precision_policy import Precision, PrecisionPolicy
from lightning_mp.export.raw_features import raw_inputs
from lightning_mp.export.raw_rows import Columns, decode_rows, hostile_rows
from lightning_mp.export.real_rows import Batch, RealRows
from lightning_mp.export.sample_inputs import write_samples
from lightning_mp.export.serving_tables import write_tables
from lightning_mp.export.taken_inputs import taken_inputs
from lightning_mp.export.write_bundle import model_classes, write_bundle
from lightning_mp.hardware.session import open_session
from lightning_mp.hardware.targets import Target, TargetName
from lightning_mp.manifest import Manifest
from lightning_mp.schema import FeatureSchema

_CHANGED_ROWS = 64
_SAMPLES = 12
_STRICT_SAMPLES = 64


def export_bundle(
    module: nn.Module,
    dirpath: str | Path,
    *,
    store: FeatureStore,
    rows: int | Iterable[Batch] = 4096,
    precision: Precision | PrecisionPolicy = "fp32",
    target: TargetName = "this",
    gates: Mapping[str, float] | None = None,
    overwrite: bool = False,
) -> Bundle:
    """Write a bundle of a trained module, or refuse to and say by which number.

    The module is copied and stays untouched. The copy, in float32, is the truth that the files are held against on
    real rows of the store: logits, top lists, ties, AUC, NDCG and mean score, overall and by slice, by the gates of
    `lightning_mp.export.parity`; and whatever the policy, the graph must repeat what was exported to 1e-4 in the logit
    in any batch size, encode raw values to the bit, and answer to each input as the module does. A file with float16
    arithmetic is also run as a GPU would run it, with ONNX's reference implementation.

    Args:
        module: `forward(batch) -> logits` (B,) or (B, T), with the `schema` it was built for: a module of this package,
            or of your own. Its `tasks`, where it has any, name the T columns; else the labels do.
        dirpath: The folder to write; it appears whole or not at all.
        store: What it was trained on: its vocabularies go into the graph, its test rows judge it.
        rows: Rows of the store to judge on, at most; or batches of real rows, for a network that takes what no store
            holds, such as a `history` that its data module puts together.
        precision: `"fp32"`; `"fp16-storage"`: embedding tables in float16, arithmetic in float32; `"fp16-mixed"`:
            those, and linear layers in float16 where real rows leave room for it; `"int8-dynamic"`; `"auto"`: what
            the target gains by, and passes its gates. Or a `PrecisionPolicy`.
        target: Where the bundle will run; it decides what `"auto"` tries first.
        gates: Limits other than the defaults, by the gate's path: `{"ranking.overlap_mean": 0.99}`. They are noted in
            `parity.json`.
        overwrite: Replace a bundle that is there, in one step.

    Returns:
        The bundle. Its `parity.json` holds every number.

    Raises:
        ParityError: A gate failed. The report is at `<dirpath>.parity.json`; no bundle was written.
        SchemaError: The module was trained on other features than the store's.
        ConfigurationError: An argument is wrong, or the module cannot be exported.
        ArtifactError: The folder is there already, or cannot be written.
    """
    folder, policy = Path(dirpath), PrecisionPolicy.of(precision)
    reference = inference_copy(module)
    real = RealRows.read(store, _schema(module), rows)
    real = replace(real, taken=taken_inputs(reference, real.rows[:4].tensors()))
    fills = MissingFills.of(store)
    encoder = encoder_graph(real.schema, real.vocabularies, OPSET, fills)

    def surround(answer: Answer, folder: Path, tolerance: float) -> dict[str, Any]:
        write_pipeline(encoder, folder / MODEL, folder / PIPELINE)
        return {"pipeline": _check_pipeline(answer, encoder, real, folder, fills=fills, tolerance=tolerance)}

    def finish(folder: Path) -> None:
        _write_samples(folder, real, fills)
        write_tables(folder, store)

    manifest = Manifest(
        schema=store.schema,
        inputs=raw_inputs(real.schema, fills),
        task=str(getattr(module, "task", "click")),
        model=model_classes(module),
    )
    return write_bundle(
        reference, real.judged(), folder, policy=policy, target=Target.named(target), manifest=manifest,
        joint=surround, finish=finish, gates=gates, overwrite=overwrite,
    )  # fmt: skip


def _check_pipeline(
    answer: Answer, encoder: Any, real: RealRows, folder: Path, *, fills: MissingFills, tolerance: float
) -> dict[str, Any]:
    import onnx

    schema, vocabularies = real.schema, real.vocabularies
    raw = _decoded(real, fills)
    alone = folder / "encoder.onnx"
    onnx.save(encoder, str(alone))
    encode = open_session(alone, target="cpu")
    for rows in (raw, hostile_rows(schema, vocabularies)):
        fidelity.check_encoder(encode, schema, vocabularies, rows, fills)
    alone.unlink()
    few = {name: values[:_CHANGED_ROWS] for name, values in raw.items()}
    session = open_session(folder / PIPELINE, target="cpu")
    return fidelity.check_inputs(
        lambda changed: answer(encode_raw(schema, vocabularies, changed, fills).only(real.taken)),
        lambda changed: pipeline_logits(session, changed),
        few, PIPELINE, tolerance,
    )  # fmt: skip


def _write_samples(folder: Path, real: RealRows, fills: MissingFills) -> None:
    raw = _decoded(replace(real, rows=real.rows[:_SAMPLES]), fills)
    logit = pipeline_logits(open_session(folder / PIPELINE, target="cpu"), raw)
    finite = np.isfinite(logit).reshape(len(logit), -1).all(axis=1)
    write_samples(
        folder / SAMPLES, {name: values[finite] for name, values in raw.items()}, logit[finite],
        real.rows[:_STRICT_SAMPLES].only(real.taken).feeds,
    )  # fmt: skip


def _decoded(real: RealRows, fills: MissingFills) -> Columns:
    rows = real.rows
    return decode_rows(real.schema, real.vocabularies, rows.ids, rows.dense, fills, lists=rows.others)


def _schema(module: nn.Module) -> FeatureSchema:
    schema = getattr(module, "schema", None)
    if not isinstance(schema, FeatureSchema):
        raise ConfigurationError(
            f"`{type(module).__name__}` has no `schema`", "give it the `FeatureSchema` that its network was built for"
        )
    return schema
