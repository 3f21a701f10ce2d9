from __future__ import annotations

import pytest
import torch

from lightning_mp.optim.coalesced import coalesced


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "width", "occurrences"), [(50, 3, 200), (7, 1, 40), (1000, 17, 30), (5, 4, 1), (5, 4, 0)]
)
def test_it_is_what_torch_gives(dtype, rows, width, occurrences):
    places = torch.randint(0, rows, (1, occurrences))
    gradient = torch.sparse_coo_tensor(
        places, torch.randn(occurrences, width).to(dtype), (rows, width), check_invariants=True
    )
    ours, theirs = coalesced(gradient), gradient.coalesce()
    assert ours.is_coalesced()
    assert ours.dtype is dtype
    assert torch.equal(ours.indices(), theirs.indices())
    exact = torch.zeros(rows, width, dtype=torch.float64).index_add_(0, places[0], gradient._values().double())
    bound = torch.finfo(dtype).eps * 8 * max(1.0, occurrences / rows) ** 0.5 * 4
    torch.testing.assert_close(ours.to_dense().double(), exact, rtol=bound, atol=bound)


def test_other_forms_are_torchs_own():
    whole = torch.eye(3).to_sparse()
    vector = torch.sparse_coo_tensor([[1, 1, 0]], [1.0, 2.0, 3.0], (4,), check_invariants=True)
    cube = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 2, 3), (4, 2, 3), check_invariants=True)
    for gradient in (whole, vector, cube):
        ours = coalesced(gradient)
        assert ours.is_coalesced()
        assert torch.equal(ours.to_dense(), gradient.to_dense())
    assert coalesced(ours) is ours


def test_overflows_are_kept_for_the_scaler_to_see():
    gradient = torch.sparse_coo_tensor([[1, 1]], torch.tensor([[float("inf")], [1.0]]), (3, 1), check_invariants=True)
    assert coalesced(gradient).values().isinf().all()
