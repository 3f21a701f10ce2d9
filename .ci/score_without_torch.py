"""Score a bundle with what a wheel, numpy and onnxruntime bring: `python score_without_torch.py FOLDER`."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

from lightning_mp.export.sample_inputs import read_samples
from lightning_mp.serve.scorer import Scorer


def is_missing(value: object) -> bool:
    """Whether a request would leave the value out."""
    return value in ("", np.iinfo(np.int64).min) or (isinstance(value, float) and math.isnan(value))


scorer = Scorer.open(Path(sys.argv[1]) / "runs" / "quickstart" / "bundle")
columns, expected = read_samples(scorer.bundle.path / "sample_inputs.npz", scorer.inputs)
values = {name: column.tolist() for name, column in columns.items()}
rows = [{name: v[row] for name, v in values.items() if not is_missing(v[row])} for row in range(len(expected))]
difference = float(np.abs(scorer.score(rows).logit - expected).max())
assert difference <= 1e-5, f"logits differ by {difference} from those the bundle was sealed with"
heavy = {"torch", "lightning", "pyarrow", "onnx", "scipy", "duckdb"} & set(sys.modules)
assert not heavy, f"loaded: {', '.join(sorted(heavy))}"
print(f"{len(rows)} rows scored; largest logit difference to the sealed answers {difference:.2g}")
