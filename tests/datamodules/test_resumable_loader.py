from __future__ import annotations

import signal
import subprocess
import sys

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import Dataset

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.resumable_loader import ResumableLoader
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.errors import ArtifactError, ConfigurationError

ROWS = 20_000


class Rows(Dataset):
    def __init__(self, rows=50):
        self.values = torch.arange(rows) * 10

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        return {"row": rows, "x": self.values[rows]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    draw = np.random.default_rng()
    store = FeatureStore(tmp_path_factory.mktemp("store"), dtype_mapping={"a": "float16"})
    store.write(pa.table({"a": draw.normal(size=ROWS), "b": draw.normal(size=ROWS), "c": draw.integers(0, 9, ROWS)}))
    return store


def stream(loader):
    return [batch["row"].tolist() for batch in loader]


@pytest.mark.parametrize("shuffle", ["global", "block", "none"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 7, 19, 20])
def test_a_resumed_loader_goes_on_with_the_very_next_batch(store, shuffle, workers, stop):
    def loader():
        return ResumableLoader(
            StoreDataset(store.load()), batch_size=1000, shuffle=shuffle, seed=4, num_workers=workers
        )

    through = loader()
    expected = []
    for epoch in range(2):
        through.set_epoch(epoch)
        expected += stream(through)
    first = loader()
    seen = []
    for batch in first:
        if len(seen) == stop:
            break
        seen.append(batch["row"].tolist())
        state = first.state_dict()
    state = state if stop else loader().state_dict()
    assert (state["epoch"], state["batch"]) == ((1, 0) if stop == 20 else (0, stop))
    second = loader()
    second.load_state_dict(state)
    for epoch in range(state["epoch"], 2):
        second.set_epoch(epoch)
        seen += stream(second)
    assert seen == expected


@pytest.mark.parametrize("shuffle", ["global", "block", "none"])
def test_every_way_gives_the_same_batches(store, shuffle):
    def batches(**more):
        return list(ResumableLoader(StoreDataset(store.load()), batch_size=900, shuffle=shuffle, seed=1, **more))

    threaded = batches()
    table = store.load()
    place = np.argsort(table.row)
    for batch in threaded:
        rows = place[batch["row"].numpy()]
        assert torch.equal(batch["dense"], torch.tensor(table.dense[rows]))
        assert torch.equal(batch["ids"], torch.tensor(table.ids[rows]))
    for other in (batches(prefetch_batches=0), batches(num_workers=1)):
        for mine, theirs in zip(threaded, other, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_what_changed_since_the_checkpoint_is_named():
    state = ResumableLoader(Rows(50), batch_size=4, seed=1).state_dict()
    others = {
        "a number of rows of 50, the loader has 60": ResumableLoader(Rows(60), batch_size=4, seed=1),
        "batch_size 4, the loader has 5": ResumableLoader(Rows(50), batch_size=5, seed=1),
        "seed 1, the loader has 2": ResumableLoader(Rows(50), batch_size=4, seed=2),
        "shuffle 'global', the loader has 'block'": ResumableLoader(Rows(50), batch_size=4, seed=1, shuffle="block"),
        "a number of processes of 1, the loader has 2": ResumableLoader(Rows(50), batch_size=4, seed=1, num_replicas=2),
    }
    for problem, loader in others.items():
        with pytest.raises(ConfigurationError, match=problem):
            loader.load_state_dict(state)


def test_the_epoch_may_be_told_after_the_iterator_was_made():
    late, right = (ResumableLoader(Rows(), batch_size=4) for _ in range(2))
    batches = iter(late)
    late.set_epoch(5)
    right.set_epoch(5)
    assert [batch["row"].tolist() for batch in batches] == stream(right)


def test_a_second_run_over_a_loader_begins_at_its_beginning():
    loader = ResumableLoader(Rows(), batch_size=4)
    expected = stream(loader)
    for batch in loader:
        assert batch["row"].tolist() == expected[0]
        break
    assert stream(loader) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_generator_is_left_alone(workers):
    before = torch.random.get_rng_state()
    stream(ResumableLoader(Rows(), batch_size=4, num_workers=workers))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_file_that_is_cut_between_epochs_is_met_with_an_error(tmp_path):
    store = FeatureStore(tmp_path / "store")
    store.write(pa.table({"x": np.random.default_rng().normal(size=3000)}))
    loader = ResumableLoader(StoreDataset(store.load()), batch_size=100)
    stream(loader)
    part = store.path / "v000001" / "part-00000.arrow"
    whole = part.read_bytes()
    part.unlink()
    part.write_bytes(whole[:-8])  # another file of that name: the map of the first one stays whole
    with pytest.raises(ArtifactError, match="bytes, its manifest says"):
        stream(loader)


@pytest.mark.parametrize("shuffle", ["none", "block"])
def test_what_is_written_to_a_batch_reaches_no_other_epoch_and_no_file(store, shuffle):
    loader = ResumableLoader(StoreDataset(store.load()), batch_size=1000, shuffle=shuffle)
    before = [{name: tensor.clone() for name, tensor in batch.items()} for batch in loader]
    file = (store.path / "v000001" / "part-00000.arrow").read_bytes()
    kept = []
    for batch in loader:
        for tensor in batch.values():
            tensor.zero_()
        kept.append(batch)
    for batch, expected in zip(loader, before, strict=True):
        assert all(torch.equal(batch[name], expected[name]) for name in batch)
    assert (store.path / "v000001" / "part-00000.arrow").read_bytes() == file
    del loader
    assert not any(tensor.any() for batch in kept for tensor in batch.values())  # kept ones stay what they were made


CUT = """
import os, resource, sys
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.resumable_loader import ResumableLoader
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.errors import ArtifactError

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
path, shuffle, keep = sys.argv[1], sys.argv[2], int(sys.argv[3])
loader = ResumableLoader(
    StoreDataset(FeatureStore(path).load()), batch_size=100, shuffle=shuffle, prefetch_batches=0
)
batches = iter(loader)
print(float(next(batches)["dense"].abs().sum()) > 0, flush=True)
part = os.path.join(path, "v000001", "part-00000.arrow")
os.truncate(part, keep or os.path.getsize(part) - 1)
if keep:
    print(sum(float(batch["dense"].abs().sum()) for batch in batches), flush=True)  # the process ends here
else:
    print(sum(len(batch["row"]) for batch in batches), flush=True)
    try:
        next(iter(loader))
    except ArtifactError as error:
        print(error, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be cut on Windows")
@pytest.mark.parametrize("shuffle", ["none", "global"])
@pytest.mark.parametrize("keep", [0, 4096])
def test_a_file_that_is_cut_under_its_reader_does_what_the_docs_say(tmp_path, shuffle, keep):
    store = FeatureStore(tmp_path / "store")
    store.write(pa.table({"x": np.random.default_rng().normal(size=50_000)}))
    code = [sys.executable, "-c", CUT, str(store.path), shuffle, str(keep)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=300, check=False)
    lines = done.stdout.splitlines()
    assert lines[0] == "True"
    if keep:  # pages are gone: the system ends the process
        assert (done.returncode, len(lines)) == (-signal.SIGBUS, 1), done.stderr
    else:  # the last page is still there: the epoch ends, the next one is refused
        assert done.returncode == 0, done.stderr
        assert lines[1] == "49900"
        assert "bytes, its manifest says" in lines[2]


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch["row"].tolist())
        return (self.weight * batch["x"].float()).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def fit(loader, **more):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(accelerator="cpu", devices=1, enable_model_summary=False, **quiet, **more)
    module = Model()
    trainer.fit(module, loader)
    return module.seen


def test_limits_of_the_trainer_are_kept_to():
    expected = []
    for epoch in range(2):
        loader = ResumableLoader(Rows(), batch_size=10)
        loader.set_epoch(epoch)
        expected += stream(loader)[:3]
    assert fit(ResumableLoader(Rows(), batch_size=10), max_epochs=2, limit_train_batches=3) == expected


def test_overfitting_needs_the_stored_order():
    seen = fit(ResumableLoader(Rows(), batch_size=10, shuffle="none"), max_epochs=2, overfit_batches=2)
    assert seen == [list(range(10)), list(range(10, 20))] * 2
