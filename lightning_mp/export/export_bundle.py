"""From a trained module to a bundle that was checked against it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import nn

from lightning_mp import __version__
from lightning_mp.artifacts import replacing
from lightning_mp.bundle import METADATA_KEY, MODEL, PARITY, PIPELINE, SAMPLES, Bundle, Manifest, seal, writing
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError, ParityError
from lightning_mp.export import fidelity
from lightning_mp.export.candidate_lists import candidate_lists
from lightning_mp.export.core_graph import OPSET, write_core
from lightning_mp.export.encoded_rows import EncodedRows, module_logits, pipeline_logits, session_logits
from lightning_mp.export.encoder_graph import encoder_graph, raw_inputs
from lightning_mp.export.graph_precision import initializer_types, refuse_half_arithmetic
from lightning_mp.export.half_tables import halve_tables
from lightning_mp.export.inference_copy import inference_copy
from lightning_mp.export.parity import Comparison, Policy, judge
from lightning_mp.export.pipeline_graph import write_pipeline
from lightning_mp.export.raw_rows import decode_rows, hostile_rows
from lightning_mp.export.real_rows import RealRows
from lightning_mp.export.sample_inputs import write_samples
from lightning_mp.hardware.session import open_session
from lightning_mp.schema import FeatureSchema

Precision = Literal["fp32", "fp16-storage", "auto"]
_CHANGED_ROWS = 64
_SAMPLES = 12


def export_bundle(
    module: nn.Module,
    dirpath: str | Path,
    *,
    store: FeatureStore,
    rows: int = 4096,
    precision: Precision = "fp32",
    overwrite: bool = False,
) -> Bundle:
    """Write a bundle of a trained module, or refuse to and say by which number.

    The module is copied and stays untouched. The copy, in float32, is the truth that the files are held against on
    real rows of the store: logits, top lists, ties, AUC, NDCG and mean score, by the gates of
    `lightning_mp.export.parity`; and whatever the policy, the graph must repeat what was exported to 1e-4 in the logit
    in any batch size, encode raw values to the bit, and answer to each input as the module does.

    Args:
        module: `forward(batch) -> logits` (B,), with the `schema` it was built for: a `RankingModule`, or a module of
            your own.
        dirpath: The folder to write; it appears whole or not at all.
        store: What it was trained on: its vocabularies go into the graph, its test rows judge it.
        rows: Rows to judge on, at most.
        precision: `"fp32"`; `"fp16-storage"`: embedding tables in float16, arithmetic in float32; `"auto"`: the latter
            where it passes its gates, else the former.
        overwrite: Replace a bundle that is there, in one step.

    Returns:
        The bundle. Its `parity.json` holds every number.

    Raises:
        ParityError: A gate failed. The report is at `<dirpath>.parity.json`; no bundle was written.
        SchemaError: The module was trained on other features than the store's.
        ConfigurationError: An argument is wrong, or the module cannot be exported.
        ArtifactError: The folder is there already, or cannot be written.
    """
    if precision not in get_args(Precision):
        known = ", ".join(f"'{name}'" for name in get_args(Precision))
        raise ConfigurationError(f"`precision` must be one of {known}, got {precision!r}", "leave it out for 'fp32'")
    target, reference = Path(dirpath), inference_copy(module)
    real = RealRows.read(store, _schema(module), rows)
    refusal = target.with_name(f"{target.name}.{PARITY}")
    policies: tuple[Policy, ...] = ("fp16-storage", "fp32") if precision == "auto" else (precision,)
    with writing(target, overwrite=overwrite) as folder:
        reason = "as asked"
        for policy in policies:
            attempt = _attempt(reference, real, folder, policy)
            if attempt.failed is None:
                break
            if policy == policies[-1]:
                with replacing(refusal) as file:
                    file.write(json.dumps(attempt.report, indent=2, allow_nan=False).encode())
                raise ParityError(attempt.failed, f"read `{refusal}`; no bundle was written")
            reason = f"fp16-storage was not taken: {attempt.failed}"
            _empty(folder)
        if precision == "auto" and policy == "fp16-storage":
            reason = "it passes the gates, and halves the memory of the tables; arithmetic is float32 either way"
        record = {"policy": precision, "used": policy, "reason": reason, "tables": attempt.tables,
                  "initializers": initializer_types(folder / MODEL)}  # fmt: skip
        manifest = _manifest(module, real.schema, record)
        for name in (MODEL, PIPELINE):
            _annotate(folder / name, manifest)
        _write_samples(folder, real)
        (folder / PARITY).write_text(json.dumps(attempt.report, indent=2, allow_nan=False), encoding="utf-8")
        seal(folder, manifest)
    refusal.unlink(missing_ok=True)
    return Bundle.open(target, verify=False)


@dataclass(frozen=True, slots=True)
class _Attempt:
    report: dict[str, Any]
    tables: Mapping[str, str]
    failed: str | None


def _attempt(reference: nn.Module, real: RealRows, folder: Path, policy: Policy) -> _Attempt:
    """Write both graphs in one policy and measure them; `failed` says which gate refused them."""
    deployed, tables = reference, {}
    if policy == "fp16-storage":
        deployed = copy.deepcopy(reference)
        verdicts = halve_tables(deployed)
        tables = {name: why or "float16" for name, why in verdicts.items()}
        if all(verdicts.values()):
            why = "; ".join(f"`{n}`: {w}" for n, w in verdicts.items()) or "the network has no embedding table"
            return _Attempt({"policy": policy, "failed": why, "passed": False}, tables, why)
    sample = real.rows[:4].tensors()
    write_core(deployed, real.schema, sample, folder / MODEL)
    halved = frozenset(f"{name}.weight" for name, verdict in tables.items() if verdict == "float16")
    refuse_half_arithmetic(folder / MODEL, halved)
    encoder = encoder_graph(real.schema, real.vocabularies, OPSET)
    write_pipeline(encoder, folder / MODEL, folder / PIPELINE)
    core = open_session(folder / MODEL, target="cpu")
    report: dict[str, Any] = {"policy": policy, "split": real.split}
    try:
        report["graph"] = fidelity.check_core(deployed, core, real.rows, real.schema)
        report["pipeline"] = _check_pipeline(deployed, encoder, real, folder)
    except ParityError as error:
        return _Attempt({**report, "failed": error.problem, "passed": False}, tables, error.problem)
    lists, length = candidate_lists(real.schema, real.rows)
    comparison = Comparison(
        reference=module_logits(reference, real.rows), exported=session_logits(core, real.rows),
        reference_lists=module_logits(reference, lists), exported_lists=session_logits(core, lists),
        length=length, labels=real.labels,
    )  # fmt: skip
    report.update(comparison.report())
    report["gates"] = judge(report, policy)
    broken = [gate for gate in report["gates"] if not gate["ok"]]
    report["passed"] = not broken
    return _Attempt(report, tables, _sentence(broken[0], policy, real) if broken else None)


def _check_pipeline(deployed: nn.Module, encoder: Any, real: RealRows, folder: Path) -> dict[str, Any]:
    import onnx

    schema, vocabularies = real.schema, real.vocabularies
    raw = decode_rows(schema, vocabularies, real.rows.ids, real.rows.dense)
    alone = folder / "encoder.onnx"
    onnx.save(encoder, str(alone))
    encode = open_session(alone, target="cpu")
    for rows in (raw, hostile_rows(schema, vocabularies)):
        fidelity.check_encoder(encode, schema, vocabularies, rows)
    alone.unlink()
    few = {name: values[:_CHANGED_ROWS] for name, values in raw.items()}
    session = open_session(folder / PIPELINE, target="cpu")
    return fidelity.check_inputs(deployed, session, schema, vocabularies, few)


def _write_samples(folder: Path, real: RealRows) -> None:
    rows: EncodedRows = real.rows[:_SAMPLES]
    raw = decode_rows(real.schema, real.vocabularies, rows.ids, rows.dense)
    logit = pipeline_logits(open_session(folder / PIPELINE, target="cpu"), raw)
    finite = np.isfinite(logit)
    write_samples(folder / SAMPLES, {name: values[finite] for name, values in raw.items()}, logit[finite])


def _schema(module: nn.Module) -> FeatureSchema:
    schema = getattr(module, "schema", None)
    if not isinstance(schema, FeatureSchema):
        raise ConfigurationError(
            f"`{type(module).__name__}` has no `schema`", "give it the `FeatureSchema` that its network was built for"
        )
    return schema


def _manifest(module: nn.Module, schema: FeatureSchema, precision: dict[str, Any]) -> Manifest:
    network = getattr(module, "network", module)  # no `or`: a compiled one refuses to be a truth value
    packages = ("torch", "onnx", "onnxscript", "onnxruntime", "numpy")
    return Manifest(
        schema=schema,
        inputs=raw_inputs(schema),
        task=str(getattr(module, "task", "click")),
        model={"module": _path(module), "network": _path(getattr(network, "_orig_mod", network))},
        precision=precision,
        versions={"lightning_mp": __version__, **{package: version(package) for package in packages}},
    )


def _annotate(path: Path, manifest: Manifest) -> None:
    """Write the manifest into the ONNX file; the digests of files are left out, for the file is one of them."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    model.metadata_props.add(key=METADATA_KEY, value=replace(manifest, files={}).to_json())
    path.write_bytes(model.SerializeToString())


def _sentence(gate: dict[str, Any], policy: str, real: RealRows) -> str:
    what, sign = gate["path"].replace(".", " ").replace("_", " "), "<" if gate["at_least"] else ">"
    return f"{policy}: {what} is {gate['value']:.6g} {sign} {gate['limit']:g} on {len(real.rows):,} {real.split} rows"


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _path(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
