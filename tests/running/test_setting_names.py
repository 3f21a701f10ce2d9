"""Names of settings come from signatures, records and parent classes."""

from __future__ import annotations

import pytest

from lightning_mp.running.setting_names import classes_beside, settings_of


@pytest.mark.parametrize(
    ("class_path", "group", "expected"),
    [
        ("lightning_mp.DCNv2", [], {"embedding_dim", "cross_layers", "hidden"}),
        ("lightning_mp.RankingDataModule", ["columns"], {"user", "item", "time", "event"}),
        ("lightning_mp.RankingDataModule", ["split"], {"validation", "test", "at"}),
        ("lightning_mp.mixed_precision", [], {"precision", "init_scale"}),
        ("torch.optim.AdamW", [], {"lr", "weight_decay"}),
        ("lightning.pytorch.callbacks.RichModelSummary", [], {"max_depth"}),
    ],
)
def test_settings_are_found(class_path, group, expected):
    assert expected <= set(settings_of(class_path, group))


@pytest.mark.parametrize(
    ("class_path", "group"),
    [("no_such.Thing", []), ("lightning_mp.NoSuch", []), ("lightning_mp.DCNv2", ["hidden"]), ("", [])],
)
def test_what_cannot_be_had_has_no_settings(class_path, group):
    assert settings_of(class_path, group) == []


def test_names_of_a_module():
    assert "DCNv2" in classes_beside("lightning_mp.DCNv3")
    assert classes_beside("no_such.Thing") == []
