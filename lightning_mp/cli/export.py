"""`lightning-mp export CKPT --store DIR --out DIR`: turn a checkpoint into a bundle."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning_mp.cli.argument_parser import CommandParser
from lightning_mp.cli.check import TARGETS
from lightning_mp.errors import ArtifactError, ConfigurationError

PRECISIONS = ("auto", "fp32", "fp16-storage", "fp16-mixed", "int8-dynamic")


def main(argv: Sequence[str]) -> int:
    """Export a checkpoint, judged on real rows of the store it was trained on.

    Args:
        argv: Arguments after `export`.

    Returns:
        0.

    Raises:
        ArtifactError: The checkpoint cannot be read, or the bundle cannot be written.
        ConfigurationError: The checkpoint is not of a module of this package, or its class needs more than it holds.
        ParityError: The exported model does not answer as the trained one does.
        SchemaError: The store is not the one that the model was trained on.
    """
    parser = CommandParser("export", "Turn a checkpoint into a bundle.")
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a checkpoint that `lightning-mp fit` wrote")
    parser.add_argument("--store", type=Path, required=True, metavar="DIR", help="the feature store it was trained on")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the bundle to write")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", metavar="NAME",
                        help=f"number formats of the file: {', '.join(PRECISIONS)} (default: %(default)s)")  # fmt: skip
    parser.add_argument("--target", choices=TARGETS, default="this", metavar="NAME",
                        help="where it is to run; decides what auto tries (default: %(default)s machine)")  # fmt: skip
    parser.add_argument("--tf32", action="store_true", help="let GPUs multiply float32 in TF32; moves logits by 1e-3")
    parser.add_argument("--rows", type=int, default=4096, help="rows to judge on (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace a bundle that is there")
    options = parser.parse_args(argv)

    from lightning_mp.bundle import PARITY, require_free

    require_free(options.out, overwrite=options.overwrite)

    from lightning_mp.data.store.feature_store import FeatureStore
    from lightning_mp.export.export_bundle import export_bundle
    from lightning_mp.export.precision_policy import PrecisionPolicy

    bundle = export_bundle(
        load_checkpoint(options.checkpoint),
        options.out,
        store=FeatureStore(options.store),
        rows=options.rows,
        precision=PrecisionPolicy(file=options.precision, tf32=options.tf32),
        target=options.target,
        overwrite=options.overwrite,
    )
    report, precision = json.loads((bundle.path / PARITY).read_text(encoding="utf-8")), bundle.manifest.precision
    print(f"bundle {bundle.path}: {precision['used']} ({precision['reason']})")
    print(
        f"on {report['rows']:,} {report['split']} rows: largest logit difference {report['logit']['max']:.2g}, "
        f"top-{report['ranking']['k']} overlap {report['ranking']['overlap_mean']:.4f}"
    )
    print(f"serve it with: lightning-mp serve {bundle.path}")
    return 0


def load_checkpoint(path: Path) -> Any:
    """The module of a checkpoint that this package wrote.

    Args:
        path: The checkpoint.

    Raises:
        ArtifactError: It cannot be read.
        ConfigurationError: It is not of a module of this package, or its class needs more than it holds.
    """
    import torch

    from lightning_mp.models.checkpoint_file import require_sound
    from lightning_mp.models.checkpoint_record import KEY

    require_sound(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch, zipfile and pickle each have their own
        what = " ".join(str(error).split())[:200]
        raise ArtifactError(f"`{path}` cannot be read: {what}", "give another checkpoint") from error
    record = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(record, dict) or "module" not in record:
        raise ConfigurationError(
            f"`{path}` is not a checkpoint of lightning_mp", "export it from Python: `export_bundle`"
        )
    home, _, name = record["module"].rpartition(".")
    try:
        module_class = getattr(import_module(home), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"`{path}` is of `{record['module']}`, which cannot be imported: {error}",
            "run where that module is installed",
        ) from error
    try:
        with warnings.catch_warnings():
            # Lightning builds the module with a method that jsonargparse has renamed.
            words = "(?s).*(instantiate_classes|JSONARGPARSE_DEPRECATION_WARNINGS)"
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=words)
            return module_class.load_from_checkpoint(path, map_location="cpu")
    except TypeError as error:  # an argument of its __init__ is not in the checkpoint
        raise ConfigurationError(
            f"`{path}` does not hold all that `{record['module']}` is made from: {error}",
            "load it in Python and call `lightning_mp.export.export_bundle.export_bundle`",
        ) from error
