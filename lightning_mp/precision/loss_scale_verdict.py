"""Say in words that a loss scale has collapsed, or soon will."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_mp.precision.loss_scale import LossScaleHistory, ScaleForecast
from lightning_mp.precision.overflow_event import OverflowEvent


def collapse(
    history: LossScaleHistory, events: Sequence[OverflowEvent], *, min_scale: float, patience: int
) -> tuple[str, str] | None:
    """Judge whether the loss scale has collapsed.

    Args:
        history: Counts of the run.
        events: Skipped steps, the latest last.
        min_scale: Scale below which it counts as collapsed.
        patience: Skips in a row after which it counts as collapsed.

    Returns:
        The problem and a hint, or None while all is well.

    Example:
        >>> collapse(LossScaleHistory(scale=0.5), [], min_scale=1.0, patience=20)[0]
        'the loss scale fell to 0.5, below the minimum of 1'
    """
    in_a_row = history.longest_consecutive
    if history.is_dead:
        problem = (
            f"the loss scale is {history.scale:g} and stuck there for good: every gradient is lost, and the next "
            "finite batch writes NaN into the weights"
        )
    elif history.scale < min_scale:
        problem = f"the loss scale fell to {history.scale:g}, below the minimum of {min_scale:g}"
    elif in_a_row >= patience:
        problem = f"{in_a_row} optimizer steps in a row were skipped; the loss scale is {history.scale:g}"
    else:
        return None
    if events:
        problem += f"; {_cause(events[-1])}"
    return problem, _cure(events[-1] if events else None)


def forecast_text(forecast: ScaleForecast, *, min_scale: float) -> tuple[str, str]:
    """Say when the loss scale will die.

    Args:
        forecast: The forecast.
        min_scale: Scale below which it counts as collapsed.

    Returns:
        The problem and a hint.
    """
    return (
        f"the loss scale can only fall: {forecast.skip_rate:.2%} of the steps are skipped, too many for it to grow in "
        f"between; it goes below {min_scale:g} in about {forecast.steps_to_minimum} steps and destroys the weights in "
        f"about {forecast.steps_to_destruction}",
        "use `lightning_mp.mixed_precision`, whose scaler has a floor and grows sooner, or a shorter `growth_interval`",
    )


def _cause(event: OverflowEvent) -> str:
    place = f" in {', '.join(f'`{name}`' for name in event.layers[:3])}" if event.layers else ""
    return f"the last overflow began in the {event.origin} pass{place}, at step {event.step}"


def _cure(event: OverflowEvent | None) -> str:
    if event is None or event.origin == "backward":
        return "start from a smaller `init_scale`, or keep the named layers in float32 with `KeepInFP32`"
    if event.layers and event.layers[0].startswith("batch"):
        return "find the rows with an infinity or a NaN in the data; no loss scale cures them"
    return (
        "no loss scale cures an overflow of the forward pass: keep the named layers in float32 with "
        "`KeepInFP32`, or scale the inputs"
    )
