"""RankingDataModule: from an event log to batches, by way of a feature store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lightning_mp.data.attribute_table import AttributeTable
from lightning_mp.data.audit.gate import AuditGate
from lightning_mp.data.columns import Columns
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.event_source import Paths
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.guarded_features import LeakageGuard
from lightning_mp.data.label import EventLabel, PreferenceLabel, TakenLabel, TasksLabel, ValueLabel
from lightning_mp.data.leave_last_out import LeaveLastOut
from lightning_mp.data.negatives import Negatives
from lightning_mp.data.prepare import prepare
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.store.store_manifest import StoreManifest
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.datamodules.resumable_loader import ResumableLoader
from lightning_mp.datamodules.row_order import Shuffle
from lightning_mp.datamodules.sampled_negatives import SampledNegatives
from lightning_mp.datamodules.sequence_dataset import SequenceDataset
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import FeatureSchema

SYNTHETIC = "synthetic"
"""As `path`: the log is drawn, not read."""


class RankingDataModule(pl.LightningDataModule):
    """From an event log to batches, by way of a feature store that is made once and mapped from then on.

    Batches are dicts: `ids` (B, F) int32, `history` (B, L) int32 where a feature is a sequence, `dense` (B, D) float16
    or float32, `labels` (B,) float32, (B, T) with several tasks, `group` (B,) int64
    (the user's code in `store.users()`), `row` (B,) int64 (row of the log), `weight` (B,) float32 where there is one;
    in prediction also `target` (B,) int64, the item's code in `store.items()`. Columns are in schema order.

    Training rows come in an order that the seed and the epoch give, and nothing else; the other parts in the order of
    the store. The last batch of an epoch is shorter; a single left-over row, which batch normalisation refuses, joins
    the batch before it. Over several processes each takes its share of one common order.

    Args:
        path: The log: a CSV, Parquet or JSON lines file, a list of files, or a pattern such as `logs/*.csv`;
            `"synthetic"` draws one (`synthetic`) beside the store. Left out, the store is used as it stands.
        store: Folder of the store. It is made, or made anew, when the log or the settings below changed.
        columns: Where the log keeps what.
        label: What a row is labelled with: `{event: click}`, `{value: rating, at_least: 4}`, `{taken: order}`,
            `{tasks: [click, cart, order]}`, or `{preference: {order: 1.0, cart: 0.5, click: 0.1}}`.
        features: In the order of the model's inputs.
        event_map: Kind of each word of the log that is not a kind itself.
        split: Where the parts begin in time; or `{leave_out: 1}`: each user's last events.
        csv: How a CSV file is written.
        items: Table of the items' attributes, joined by their key.
        users: Table of the users' attributes.
        sessions: Pause that ends a user's session, such as `30min`; makes `session` and `dwell` for histories.
        negatives: Draws rows for a log that holds what was taken and not what was shown.
        leakage: How closely features are looked at for what they cannot know.
        audit: What features must be worth in half precision: `{policy: fp16, fail_under: 80, cure: true}`.
        max_bad_share: Share in [0, 1] of rows that may be rejected.
        on_overflow: What becomes of a float16 feature with too large a number: refuse, float32, or clip.
        synthetic: Settings of the synthetic log.
        memory_limit: What sorting events, and the store's writer, may take while the store is made, such as `400MB`.
        batch_size: Rows a batch, in each process.
        shuffle: Order of the training rows: `"global"`; `"block"`, which reads neighbours together: about twice as
            fast, as good on a store's rows, right for stores larger than memory; `"none"`.
        seed: Of the order of the training rows.
        sampled_negatives: Adds `negatives` to training batches, drawn anew each epoch by the loader.
        train_on: `"rows"`, or `"sequences"`, for `NextItemModule`: training batches of `SequenceDataset`.
        num_workers: Processes that make batches. A store's rows need none: a thread gathers them ahead.

    Raises:
        ConfigurationError: A log without columns, label or features, or `batch_size` below 1.
        DataError: In `prepare_data`: the log cannot be used as it is. In a loader: the part has no rows.
        ArtifactError: The store is missing or damaged, or cannot be written.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> folder = tempfile.mkdtemp()
        >>> _ = FeatureStore(folder).write(pa.table({"price": [1.0, 2.0, 3.0], "stars": [5.0, 4.0, 3.0]}))
        >>> data = RankingDataModule(store=folder, batch_size=2)
        >>> [len(batch["row"]) for batch in data.train_dataloader()]
        [3]
    """

    def __init__(
        self,
        path: str | list[str] | None = None,
        *,
        store: str,
        columns: Columns | None = None,
        label: EventLabel | TasksLabel | TakenLabel | ValueLabel | PreferenceLabel | None = None,
        features: list[FeatureSpec] | None = None,
        event_map: dict[str, str | None] | None = None,
        split: TimeSplit | LeaveLastOut | None = None,
        csv: CsvDialect | None = None,
        items: AttributeTable | None = None,
        users: AttributeTable | None = None,
        sessions: str | None = None,
        negatives: Negatives | None = None,
        leakage: LeakageGuard | None = None,
        audit: AuditGate | None = None,
        max_bad_share: float = 0.001,
        on_overflow: Literal["raise", "float32", "clip"] = "raise",
        synthetic: SyntheticLog | None = None,
        memory_limit: str | None = None,
        batch_size: int = 4096,
        shuffle: Literal["global", "block", "none"] = "global",
        seed: int = 0,
        sampled_negatives: SampledNegatives | None = None,
        train_on: Literal["rows", "sequences"] = "rows",
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ConfigurationError(f"`batch_size` must be at least 1, got {batch_size}", "start with 4096")
        given = {"columns": columns, "label": label, "features": features}
        missing = [name for name, value in given.items() if not value]
        if path is not None and missing:
            raise ConfigurationError(f"`path` names a log, and `{missing[0]}` is missing", f"describe `{missing[0]}`")
        self.path = path
        self.store = FeatureStore(store)
        self.columns = columns
        self.label = label
        self.features = features
        self.event_map = event_map
        self.split = split
        self.csv = csv
        self.items, self.users = items, users
        self.sessions = sessions
        self.negatives = negatives
        self.leakage = leakage
        self.audit = audit
        self.max_bad_share, self.on_overflow, self.memory_limit = max_bad_share, on_overflow, memory_limit
        self.synthetic = synthetic
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.sampled_negatives = sampled_negatives
        self.train_on = train_on
        self.num_workers = num_workers
        self._manifest: StoreManifest | None = None
        self._prepared = False

    @property
    def schema(self) -> FeatureSchema:
        """Schema of the store that the batches come from."""
        return self._opened().schema

    @property
    def version(self) -> int:
        """Version of the store that the batches come from."""
        return self._opened().version

    @property
    def log_path(self) -> Paths | None:
        """The log that the store is made from; `None` for a store that is used as it stands."""
        return self.path if self._drawn is None else self._drawn

    @property
    def _drawn(self) -> Path | None:
        """Where the synthetic log goes."""
        return self.store.path.with_name(f"{self.store.path.name}-log.parquet") if self.path == SYNTHETIC else None

    @override
    def prepare_data(self) -> None:
        log, columns, label, features = self.log_path, self.columns, self.label, self.features
        if log is None and columns is not None and not self.store.exists:
            problem = f"`path` is missing: the settings describe a log, and there is no store `{self.store.path}` yet"
            raise ConfigurationError(problem, "pass `--data.path FILE`, or `path=` in Python")
        if log is None or columns is None or label is None or features is None:
            return
        if self._drawn is not None:
            write_log(self._drawn, self.synthetic)
        prepare(
            log,
            self.store,
            columns=columns,
            label=label,
            features=features,
            event_map=self.event_map,
            split=self.split,
            csv=self.csv,
            items=self.items,
            users=self.users,
            sessions=self.sessions,
            negatives=self.negatives,
            leakage=self.leakage,
            audit=self.audit,
            max_bad_share=self.max_bad_share,
            on_overflow=self.on_overflow,
            memory_limit=self.memory_limit,
            progress=None if self._prepared else rank_zero_info,  # a run prepares anew for its test: it was told
        )
        self._prepared = True

    @override
    def setup(self, stage: str) -> None:
        # One version for the whole run: another process may write a newer one meanwhile.
        self._manifest = self.store.manifest

    @override
    def train_dataloader(self) -> ResumableLoader:
        # A Trainer that overfits a few batches needs the same ones each epoch.
        fixed = self.trainer is not None and getattr(self.trainer, "overfit_batches", 0) > 0
        return self._loader("train", shuffle="none" if fixed else self.shuffle)

    @override
    def val_dataloader(self) -> ResumableLoader | list[ResumableLoader]:
        return self._loader("validation") if self._opened().rows("validation") else []

    @override
    def test_dataloader(self) -> ResumableLoader:
        return self._loader("test")

    @override
    def predict_dataloader(self) -> ResumableLoader:
        return self._loader("test", with_items=True)

    def _opened(self) -> StoreManifest:
        if self._manifest is None:
            self._manifest = self.store.manifest
        return self._manifest

    def _loader(self, split: str, *, shuffle: Shuffle = "none", with_items: bool = False) -> ResumableLoader:
        trainer, training = self.trainer, split == "train"
        if not self._opened().rows(split):
            raise DataError(f"the store `{self.store.path}` has no {split} rows", "change `split`")
        table = self.store.load(split, self.version)
        negatives = self.sampled_negatives if training else None
        sequences = training and self.train_on == "sequences"
        return ResumableLoader(
            SequenceDataset(table) if sequences else StoreDataset(table, with_items=with_items, negatives=negatives),
            batch_size=self.batch_size,
            shuffle=shuffle,
            seed=self.seed,
            num_workers=self.num_workers,
            pin_memory=trainer is not None and trainer.strategy.root_device.type == "cuda",
            num_replicas=1 if trainer is None else trainer.world_size,
            rank=0 if trainer is None else trainer.global_rank,
        )
