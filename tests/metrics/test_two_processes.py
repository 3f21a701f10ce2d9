from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

from lightning_mp.metrics.calibration_error import CalibrationError
from lightning_mp.metrics.calibration_ratio import CalibrationRatio
from lightning_mp.metrics.group_auc import GroupAUC
from lightning_mp.metrics.mrr import MRR
from lightning_mp.metrics.ndcg import NDCG
from lightning_mp.metrics.recall import Recall

OF_USERS = (GroupAUC, NDCG, Recall, MRR)
METRICS = (*OF_USERS, CalibrationError, CalibrationRatio)


def measured(metric, rows, part=slice(None)):
    columns = [column[part] for column in rows]
    for batch in zip(*(column.split(64) for column in columns), strict=True):
        metric.update(*batch[: 3 if isinstance(metric, OF_USERS) else 2])
    return metric.compute().item(), getattr(metric, "counted", None)


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    rows = torch.load(f"{folder}/rows.pt")
    part = slice(0, 150) if rank == 0 else slice(150, None)  # users have rows in both
    torch.save([measured(make(), rows, part) for make in METRICS], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_give_what_one_gives(tmp_path):
    rows = (torch.randn(400).half(), torch.randint(2, (400,)), torch.randint(30, (400,)))
    torch.save(rows, tmp_path / "rows.pt")
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    one = [measured(make(), rows) for make in METRICS]
    for rank in range(2):
        other = torch.load(tmp_path / f"{rank}.pt")
        assert other[:-1] == one[:-1]
        assert other[-1][0] == pytest.approx(one[-1][0], rel=1e-7)  # sums of two parts
