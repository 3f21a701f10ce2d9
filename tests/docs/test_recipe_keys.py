"""The table of a feature's keys says what `FeatureSpec` takes, no more and no less."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.errors import ConfigurationError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "recipe-keys.md"
CODE = re.compile(r"`([^`]+)`")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    section = PAGE.read_text(encoding="utf-8").partition("### `features`")[2]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"
    ]
    return {cells[0].strip("`"): cells[1:] for cells in lines}


def words(hint: object) -> set[str]:
    """The words that a type allows, through its unions."""
    if get_origin(hint) is Literal:
        return {str(word) for word in get_args(hint)}
    return set().union(*(words(inner) for inner in get_args(hint)))


def test_the_keys_are_those_of_the_record(rows):
    assert list(rows) == [field.name for field in fields(FeatureSpec)]


@pytest.mark.parametrize("key", ["kind", "role", "of", "transform", "missing", "dtype", "source"])
def test_the_allowed_words_are_those_of_the_type(rows, key):
    named = {
        word for word in CODE.findall(rows[key][0]) if key != "missing" or word not in ("id", "categorical", "numeric")
    }
    assert named == words(get_type_hints(FeatureSpec)[key])


def test_the_defaults_are_those_of_the_record(rows):
    for field in fields(FeatureSpec):
        shown = rows[field.name][1].strip("`")
        if field.default is MISSING:
            assert shown == "required", field.name
        elif field.name in ("column", "transform", "missing"):
            continue  # filled in later: `missing` is tried below
        else:
            known = {None: "-", (): "none", True: "true", False: "false"}
            assert shown == (
                str(field.default) if type(field.default) is int else known.get(field.default, field.default)
            )


def test_the_rules_for_missing_values(rows):
    by_kind = [CODE.findall(part) for part in rows["missing"][0].replace("`id` and ", "").split(";")]
    for kind, *allowed in by_kind:
        for rule in words(get_type_hints(FeatureSpec)["missing"]):
            value = 1.0 if rule == "constant" else None
            if rule in allowed:
                FeatureSpec(name="x", kind=kind, missing=rule, missing_value=value)
            else:
                with pytest.raises(ConfigurationError, match="`missing` must be one of"):
                    FeatureSpec(name="x", kind=kind, missing=rule, missing_value=value)
    defaults = [
        FeatureSpec(name="x", kind="categorical").missing_rule,
        FeatureSpec(name="x", kind="numeric").missing_rule,
        FeatureSpec(name="x", kind="numeric", role="weight").missing_rule,
    ]
    assert CODE.findall(rows["missing"][1]) == defaults
