"""Mean and variance of two sets together, from those of each."""

from __future__ import annotations


def pooled(one: tuple[int, float, float], other: tuple[int, float, float]) -> tuple[int, float, float]:
    """Count, mean and squared distances of two sets together.

    Source:
        Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (1979).
    """
    if not one[0] or not other[0]:
        return one if one[0] else other
    count, apart = one[0] + other[0], other[1] - one[1]
    share = other[0] / count
    return count, one[1] + apart * share, one[2] + other[2] + apart * apart * one[0] * share
