"""The codes of what an export and a check find: stable names that a page of the docs stands behind."""

from __future__ import annotations

from typing import Final

EXPORT_CODES: Final[dict[str, str]] = {
    "MP301": "graph unlike the module",
    "MP302": "input acts like another",
    "MP303": "raw values encoded otherwise",
    "MP304": "ids outside their vocabulary",
    "MP305": "layer kept in float32",
    "MP306": "strict float16 run",
    "MP307": "number formats",
    "MP308": "logits not finite",
    "MP309": "logits moved",
    "MP310": "ranking changed",
    "MP311": "quality changed",
    "MP312": "scores depend on the batch",
    "MP320": "files",
    "MP321": "manifest in the graphs",
    "MP322": "session",
    "MP323": "sample answers",
    "MP324": "compute capability",
    "MP325": "float16 arithmetic",
    "MP326": "bfloat16 arithmetic",
    "MP327": "operators",
    "MP328": "TF32",
    "MP329": "provider",
    "MP330": "processor",
    "MP331": "GPU",
    "MP332": "versions",
}
"""Name of each code. A code is never given to another finding."""

_BY_NAME: Final = {
    **{name: code for code, name in EXPORT_CODES.items()},
    "session of model.onnx": "MP322",
    "session of pipeline.onnx": "MP322",
}
_BY_GATE: Final = {
    "strict": "MP306", "non_finite": "MP308", "logit": "MP309", "slices": "MP309", "ranking": "MP310", "auc": "MP311",
    "ndcg": "MP311", "mean_score": "MP311",
}  # fmt: skip


def code_of(question: str) -> str:
    """Code of a question of `check`; those that bear a provider's name are `MP329`.

    Example:
        >>> code_of("session of model.onnx"), code_of("CUDAExecutionProvider")
        ('MP322', 'MP329')
    """
    return _BY_NAME.get(question, "MP329")


def code_of_gate(path: str) -> str:
    """Code of a gate of `lightning_mp.export.parity`, by its path.

    Example:
        >>> code_of_gate("ranking.overlap_mean")
        'MP310'
    """
    return _BY_GATE[path.partition(".")[0]]
