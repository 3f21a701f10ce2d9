"""Batches that no module of ours takes, each with its error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_mp.errors import DataError
from lightning_mp.models.multi_task import MultiTaskModule
from lightning_mp.models.ranking import RankingModule
from lightning_mp.models.usable_batch import any_taken, taken_rows
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.networks.mmoe import MMoE
from lightning_mp.schema import Feature, FeatureSchema

LABEL = {"kind": "numeric", "role": "label", "source_dtype": "float", "stored_dtype": "float32"}
USER = Feature(name="user", kind="id", role="user", source_dtype="int64", stored_dtype="int32", vocabulary_size=10)
SCHEMA = FeatureSchema(features=(USER, Feature(name="click", **LABEL)))


def modules():
    ranking = RankingModule(DCNv2(SCHEMA, hidden=(4,)))
    several = MultiTaskModule(MMoE(SCHEMA, tasks=1, expert_hidden=(4,), tower_hidden=(4,)))
    return [ranking, several]


def step(module, ids):
    return module.training_step({"ids": ids, "labels": torch.zeros(len(ids))}, 0)


@pytest.mark.parametrize("module", modules(), ids=lambda module: type(module).__name__)
@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (
            torch.tensor([[1], [12]]),
            r"feature `user` has id 12 at row 1 of the batch, its table has 10 rows \(0 to 9\)",
        ),
        (torch.tensor([[-1], [2]]), r"feature `user` has id -1 at row 0 of the batch, its table has 10 rows"),
        (torch.tensor([[1.0], [2.0]]), r"feature `user` in `ids` is float32, ids are integers"),
        (torch.tensor([[1.0], [2.0]]).half(), r"feature `user` in `ids` is float16, ids are integers"),
        (torch.zeros(0, 1, dtype=torch.int64), "the batch has no rows"),
    ],
)
def test_ids_that_cannot_be_looked_up(module, ids, problem):
    with pytest.raises(DataError, match=problem):
        step(module, ids)


class Normalised(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.schema = schema
        self.embedding = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, batch):
        return self.norm(self.embedding(batch["ids"][:, 0])).sum(dim=1)


def test_a_batch_of_one_in_front_of_batch_normalisation():
    module = RankingModule(Normalised(SCHEMA))
    with pytest.raises(
        DataError, match="the batch has 1 row, and `norm` normalises over the rows of a batch"
    ) as caught:
        step(module, torch.tensor([[3]]))
    assert "raise `batch_size`" in caught.value.hint
    module.eval()
    module.network.eval()
    logits = module({"ids": torch.tensor([[3]])})
    assert logits.shape == (1,)


def test_no_labels():
    for module in modules():
        with pytest.raises(DataError, match="the batch has no `labels`"):
            module.training_step({"ids": torch.tensor([[3], [4]])}, 0)


def test_the_first_of_several_labels_says_what_was_taken():
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    for labels in ([1.0, 0.0, 0.5], [[1.0, 0.0], [0.0, 1.0], [0.5, 1.0]]):
        batch = {"ids": ids, "labels": torch.tensor(labels)}
        assert any_taken(batch)
        assert taken_rows(batch)["ids"].tolist() == [[1, 2], [5, 6]]
    nothing = {"ids": ids[:2], "labels": torch.tensor([[0.0, 1.0], [0.0, 1.0]])}
    assert not any_taken(nothing)
    assert any_taken({"ids": ids})
    with pytest.raises(DataError, match="none of the 2 rows of the batch has a label above 0"):
        taken_rows(nothing)
