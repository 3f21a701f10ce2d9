"""The one useful thing in a message of jsonargparse: what was refused, and the way down to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from lightning_mp.running.yaml_position import Step

Reason = Literal["unknown", "missing", "value", "class", "other"]

_KEY = re.compile(r'^(?:Parser key|Problem with key|Configuration check failed ::) "(?P<key>[^"]+)":?$')
_CLASS = re.compile(r"^Problem with given class_path '(?P<path>[^']+)':$")
_CALLABLE = re.compile(r"^Type .+ expects a function or a callable class: (?P<inner>.*?)(?P<rest>\. Got value: .*)?$")
_CLASS_IN_VALUE = re.compile(r"class_path='(?P<path>[^']+)'")
_LEAVES: tuple[tuple[Reason, re.Pattern[str]], ...] = (
    ("unknown", re.compile(r"^Option '(?P<name>[^']+)' is not accepted$")),
    ("unknown", re.compile(r"^Subcommand '(?P<command>[^']+)' does not accept option '(?P<name>[^']+)'$")),
    ("unknown", re.compile(r"^Group '(?P<group>[^']+)' does not accept option '(?P<name>[^']+)'$")),
    ("unknown", re.compile(r"^[Uu]nrecognized arguments: (?P<option>-\S*?)(?:[=\s].*)?$")),
    ("missing", re.compile(r"^the following arguments are required: (?P<name>[^,\s]+).*$")),
    ("missing", re.compile(r'^Key "(?P<name>[^"]+)" is required.*$')),
    ("value", re.compile(r"^(?P<detail>Expected (?:a|an|one of) .*?)\. Got value: (?P<value>.*)$")),
    ("value", re.compile(r"^(?P<detail>Expected (?:a|an|one of) (?!<class 'NoneType'>).*)$")),
    ("value", re.compile(r"^(?P<detail>Not a valid subclass of \w+)$")),
    ("other", re.compile(r"^(?P<detail>Key must be a string, got: .*)$")),
    ("class", re.compile(r"^(?P<detail>No module named '(?P<name>[^']+)'.*)$")),
    ("class", re.compile(r"^(?P<detail>module '[^']+' has no attribute '(?P<name>[^']+)'.*)$")),
    ("class", re.compile(r"^(?P<detail>Import path (?P<name>\S+) does not correspond to a subclass of .*)$")),
)
_GIVEN = re.compile(r"^Given value: (?P<value>.*?)(?:\. Got value: .*)?$")
_NOISE = ("Subtypes:", "Given value", "Does not validate", "Errors:", "Subclass types expect", "Not a valid subclass")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseFailure:
    """What a parser refused.

    Args:
        reason: An unknown name, a missing one, a value of a wrong type, a class that is not there, or more.
        steps: The way from the top of the recipe to the object or group that was being read.
        name: The setting, dotted where it lies deeper; empty where the failure names none.
        detail: What the parser says of it.
        value: The text that was refused, for `value`.
        option: The option as typed, where the command line was refused before it was read.
    """

    reason: Reason
    steps: tuple[Step, ...]
    name: str = ""
    detail: str = ""
    value: str | None = None
    option: str | None = None


def read(message: str) -> list[ParseFailure]:
    r"""Find the deepest complaints in a message.

    jsonargparse answers a typo with the complaints of every type the setting might have had, nested as the settings
    are; the one that got furthest down is the one that understood what was meant.

    Args:
        message: As given to the parser's `error`.

    Returns:
        At least one; several where a setting takes records of several types and each refused it as far down.

    Example:
        >>> failure, = read("Parser key \"trainer.max_steps\":\n  Expected a <class 'int'>. Got value: two")
        >>> failure.reason, [step.name for step in failure.steps], failure.value
        ('value', ['trainer.max_steps'], 'two')
    """
    above: list[tuple[int, Step]] = []
    best: list[ParseFailure] = []
    for line in message.splitlines():
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        if text.startswith("- "):
            text, indent = text[2:], indent + 2
        above = [(depth, step) for depth, step in above if depth < indent]
        step = _step(text)
        if step is not None:
            above.append((indent, step))
            continue
        if given := _GIVEN.match(text):  # stands below the alternatives that were tried on it
            best = [replace(f, value=given["value"]) if f.reason == "value" and f.value is None else f for f in best]
        found = _leaf(text, tuple(step for _, step in above))
        if found is not None and (not best or _rank(found) >= _rank(best[0])):
            best = [*best, found] if best and _rank(found) == _rank(best[0]) else [found]
    if best:
        return best
    lines = [text for line in message.splitlines() if (text := line.strip(" -")) and not text.startswith(_NOISE)]
    return [ParseFailure(reason="other", steps=(), detail=lines[-1] if lines else message)]


def _step(text: str) -> Step | None:
    if (found := _CALLABLE.match(text)) and _KEY.match(found["inner"]):
        text = found["inner"]
    if found := _KEY.match(text):
        return Step("key", found["key"])
    if found := _CLASS.match(text):
        return Step("class", found["path"])
    return None


def _leaf(text: str, steps: tuple[Step, ...]) -> ParseFailure | None:
    if found := _CALLABLE.match(text):
        owner = _CLASS_IN_VALUE.search(found["rest"] or "")
        if owner and not found["inner"].startswith(("module ", "No module")):
            steps = (*steps, Step("class", owner["path"]))
        text = found["inner"]
    for reason, pattern in _LEAVES:
        found = pattern.match(text)
        if found is None:
            continue
        groups = found.groupdict()
        if group := groups.get("group"):
            steps = (*steps, Step("key", group))
        option = groups.get("option")
        return ParseFailure(
            reason=reason,
            steps=steps,
            name=groups.get("name") or (option or "").lstrip("-"),
            detail=groups.get("detail") or text,
            value=groups.get("value"),
            option=option,
        )
    return None


def _rank(failure: ParseFailure) -> tuple[int, bool]:
    vague = failure.detail.startswith(("Import path", "Not a valid subclass"))
    return len(failure.steps), not vague
