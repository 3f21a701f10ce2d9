"""An option that a checkpoint replaces is refused; one that says the same is not."""

from __future__ import annotations

import pytest
from jsonargparse import Namespace

from lightning_mp.errors import ArtifactError, ConfigurationError
from lightning_mp.running.checkpoint_options import require_checkpoint, require_unchanged

NETWORK = Namespace(class_path="package.Net", init_args=Namespace(layers=2, hidden=[64, 32], name=None))
MODEL = Namespace(class_path="package.Module", init_args=Namespace(task="click", network=NETWORK))


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "a.ckpt").write_bytes(b"")
    return str(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--model.task", "click"],
        ["--model.network.layers=2", "--model.network.init_args.hidden=[64, 32]"],
        ["--model.network.name=null", "--model.network", "package.Net", "--trainer.max_epochs", "3"],
        ["--model.unheard_of", "1"],
    ],
)
def test_what_the_checkpoint_says_too_is_let_through(checkpoint, options):
    require_unchanged(checkpoint, MODEL, options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model.task=preference"], ["`--model.task preference`", "'click'"]),
        (["--model.network.layers", "3"], ["`--model.network.layers 3`", "with 2"]),
        (["--model.init_args.network.init_args.hidden=[8]"], ["[8]`", "[64, 32]"]),
        (["--model.network", "package.Other"], ["package.Other", "'package.Net'"]),
    ],
)
def test_what_the_checkpoint_would_replace_is_refused_with_both_values(checkpoint, options, words):
    with pytest.raises(ConfigurationError) as error:
        require_unchanged(checkpoint, MODEL, options)
    for word in words:
        assert word in str(error.value)


def test_a_checkpoint_must_be_there(tmp_path):
    with pytest.raises(ArtifactError, match="there is no checkpoint"):
        require_checkpoint(str(tmp_path / "none.ckpt"), evaluates=False)
    for keyword in ("best", "last", "registry:model", "s3://bucket/a.ckpt"):
        require_checkpoint(keyword, evaluates=False)
        require_unchanged(keyword, MODEL, [])


@pytest.mark.parametrize("keyword", ["best", "last"])
def test_a_word_is_no_trained_model(keyword):
    with pytest.raises(ConfigurationError, match=f"`--ckpt_path {keyword}` names no file: without one, a model"):
        require_checkpoint(keyword, evaluates=True)


def test_a_damaged_checkpoint_is_refused(checkpoint):
    with pytest.raises(ArtifactError, match=r"a.ckpt` is no checkpoint, or was cut short"):
        require_checkpoint(checkpoint, evaluates=False)
