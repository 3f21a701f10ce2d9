"""Train, audit and deploy recommenders in mixed precision with PyTorch Lightning.

Importing this package imports nothing heavy: each public name is fetched on first use (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see
    from lightning_mp.callbacks.gradient_clipping import GradientClipping as GradientClipping
    from lightning_mp.callbacks.gradient_underflow_monitor import GradientUnderflowMonitor as GradientUnderflowMonitor
    from lightning_mp.callbacks.keep_in_fp32 import KeepInFP32 as KeepInFP32
    from lightning_mp.callbacks.learning_rate_warmup import LearningRateWarmup as LearningRateWarmup
    from lightning_mp.callbacks.loss_fluctuation_monitor import LossFluctuationMonitor as LossFluctuationMonitor
    from lightning_mp.callbacks.loss_scale_monitor import LossScaleMonitor as LossScaleMonitor
    from lightning_mp.callbacks.non_finite_monitor import NonFiniteMonitor as NonFiniteMonitor
    from lightning_mp.callbacks.norm_guard import NormGuard as NormGuard
    from lightning_mp.callbacks.onnx_export import OnnxExport as OnnxExport
    from lightning_mp.callbacks.precision_lint import PrecisionLint as PrecisionLint
    from lightning_mp.callbacks.precision_report import PrecisionReport as PrecisionReport
    from lightning_mp.callbacks.resumable_random_state import ResumableRandomState as ResumableRandomState
    from lightning_mp.data.audit.audit import audit as audit
    from lightning_mp.data.store.feature_store import FeatureStore as FeatureStore
    from lightning_mp.datamodules.ranking import RankingDataModule as RankingDataModule
    from lightning_mp.datamodules.resumable_loader import ResumableLoader as ResumableLoader
    from lightning_mp.export.check import check_bundle as check_bundle
    from lightning_mp.export.export_bundle import export_bundle as export_bundle
    from lightning_mp.export.export_onnx import export_onnx as export_onnx
    from lightning_mp.export.precision_policy import PrecisionPolicy as PrecisionPolicy
    from lightning_mp.models.multi_task import MultiTaskModule as MultiTaskModule
    from lightning_mp.models.next_item import NextItemModule as NextItemModule
    from lightning_mp.models.ranking import RankingModule as RankingModule
    from lightning_mp.models.retrieval import RetrievalModule as RetrievalModule
    from lightning_mp.networks.dcn_v2 import DCNv2 as DCNv2
    from lightning_mp.networks.deep_fm import DeepFM as DeepFM
    from lightning_mp.networks.feature_embedding import FeatureEmbedding as FeatureEmbedding
    from lightning_mp.networks.mmoe import MMoE as MMoE
    from lightning_mp.networks.sasrec import SASRec as SASRec
    from lightning_mp.networks.tabm import TabM as TabM
    from lightning_mp.networks.two_tower import TwoTower as TwoTower
    from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad as RowWiseAdagrad
    from lightning_mp.plugins.mixed_precision import mixed_precision as mixed_precision
    from lightning_mp.plugins.safe_checkpoint_io import SafeCheckpointIO as SafeCheckpointIO
    from lightning_mp.schema import FeatureSchema as FeatureSchema

__version__ = "0.1.0"

_HOMES = {
    "DCNv2": "lightning_mp.networks.dcn_v2",
    "DeepFM": "lightning_mp.networks.deep_fm",
    "FeatureEmbedding": "lightning_mp.networks.feature_embedding",
    "FeatureSchema": "lightning_mp.schema",
    "FeatureStore": "lightning_mp.data.store.feature_store",
    "GradientClipping": "lightning_mp.callbacks.gradient_clipping",
    "GradientUnderflowMonitor": "lightning_mp.callbacks.gradient_underflow_monitor",
    "KeepInFP32": "lightning_mp.callbacks.keep_in_fp32",
    "LearningRateWarmup": "lightning_mp.callbacks.learning_rate_warmup",
    "LossFluctuationMonitor": "lightning_mp.callbacks.loss_fluctuation_monitor",
    "LossScaleMonitor": "lightning_mp.callbacks.loss_scale_monitor",
    "MMoE": "lightning_mp.networks.mmoe",
    "MultiTaskModule": "lightning_mp.models.multi_task",
    "NextItemModule": "lightning_mp.models.next_item",
    "NonFiniteMonitor": "lightning_mp.callbacks.non_finite_monitor",
    "NormGuard": "lightning_mp.callbacks.norm_guard",
    "OnnxExport": "lightning_mp.callbacks.onnx_export",
    "PrecisionLint": "lightning_mp.callbacks.precision_lint",
    "PrecisionPolicy": "lightning_mp.export.precision_policy",
    "PrecisionReport": "lightning_mp.callbacks.precision_report",
    "RankingDataModule": "lightning_mp.datamodules.ranking",
    "RankingModule": "lightning_mp.models.ranking",
    "ResumableLoader": "lightning_mp.datamodules.resumable_loader",
    "ResumableRandomState": "lightning_mp.callbacks.resumable_random_state",
    "RetrievalModule": "lightning_mp.models.retrieval",
    "RowWiseAdagrad": "lightning_mp.optim.row_wise_adagrad",
    "SASRec": "lightning_mp.networks.sasrec",
    "SafeCheckpointIO": "lightning_mp.plugins.safe_checkpoint_io",
    "TabM": "lightning_mp.networks.tabm",
    "TwoTower": "lightning_mp.networks.two_tower",
    "audit": "lightning_mp.data.audit.audit",
    "check_bundle": "lightning_mp.export.check",
    "export_bundle": "lightning_mp.export.export_bundle",
    "export_onnx": "lightning_mp.export.export_onnx",
    "mixed_precision": "lightning_mp.plugins.mixed_precision",
}

__all__ = [
    "DCNv2",
    "DeepFM",
    "FeatureEmbedding",
    "FeatureSchema",
    "FeatureStore",
    "GradientClipping",
    "GradientUnderflowMonitor",
    "KeepInFP32",
    "LearningRateWarmup",
    "LossFluctuationMonitor",
    "LossScaleMonitor",
    "MMoE",
    "MultiTaskModule",
    "NextItemModule",
    "NonFiniteMonitor",
    "NormGuard",
    "OnnxExport",
    "PrecisionLint",
    "PrecisionPolicy",
    "PrecisionReport",
    "RankingDataModule",
    "RankingModule",
    "ResumableLoader",
    "ResumableRandomState",
    "RetrievalModule",
    "RowWiseAdagrad",
    "SASRec",
    "SafeCheckpointIO",
    "TabM",
    "TwoTower",
    "__version__",
    "audit",
    "check_bundle",
    "export_bundle",
    "export_onnx",
    "mixed_precision",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'lightning_mp' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
