"""The deepest complaint of a message is the one that counts."""

from __future__ import annotations

import random

import pytest

from lightning_mp.running.parse_failure import read

NESTED = """\
Parser key "model":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'lightning.pytorch.core.module.LightningModule'>, <class 'NoneType'>]
  Errors:
    - Problem with given class_path 'package.Module':
        Parser key "network":
          Does not validate against any of the Union subtypes
          Errors:
            - Type Callable[[int], Module] expects a function or a callable class: Option 'layrs' is not accepted. Got value: Namespace(class_path='package.Net', init_args=Namespace(layrs=3))
            - Problem with given class_path 'package.Net':
                Option 'layrs' is not accepted
          Given value type: <class 'dict'>
    - Expected a <class 'NoneType'>
  Given value type: <class 'dict'>
  Given value: {'class_path': 'package.Module', 'note': "Option 'x' is not accepted"}"""  # noqa: E501


def test_the_way_down_and_the_name_are_kept():
    failure, *others = read(NESTED)
    assert all(other.steps == failure.steps for other in others)
    assert (failure.reason, failure.name) == ("unknown", "layrs")
    assert [(step.kind, step.name) for step in failure.steps] == [
        ("key", "model"),
        ("class", "package.Module"),
        ("key", "network"),
        ("class", "package.Net"),
    ]


@pytest.mark.parametrize(
    ("message", "reason", "name"),
    [
        ("Subcommand 'fit' does not accept option 'sed'", "unknown", "sed"),
        ("unrecognized arguments: --trainer.x=3", "unknown", "trainer.x"),
        ("Unrecognized arguments: --trainer.x 3", "unknown", "trainer.x"),
        ('Key "fit.data" is required but not included in config object or its value is None.', "missing", "fit.data"),
        ("the following arguments are required: columns.user, item", "missing", "columns.user"),
        ("something that no one has said before", "other", ""),
    ],
)
def test_each_kind_of_complaint_is_known(message, reason, name):
    (failure,) = read(message)
    assert (failure.reason, failure.name) == (reason, name)


def test_any_text_gives_an_answer():
    random.seed()
    letters = "abc 'Option\"-:\n  é"
    for _ in range(300):
        text = "".join(random.choice(letters) for _ in range(random.randrange(80)))
        assert all(failure.reason for failure in read(text))
