"""A temporary folder that is not there: an error that says what to do."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data import table_spool
from lightning_mp.data.scratch_array import IN_MEMORY, scratch_array
from lightning_mp.errors import ArtifactError


def test_no_folder_that_can_be_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "absent")])
    with pytest.raises(ArtifactError, match="the temporary folder: No usable temporary directory found"):
        scratch_array(IN_MEMORY + 1, np.int8)
    monkeypatch.setattr(table_spool, "IN_MEMORY", 0)
    with pytest.raises(ArtifactError, match="the temporary folder: No usable temporary directory found"):
        table_spool.TableSpool().add(pa.table({"a": [1]}))
