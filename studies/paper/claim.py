"""Claims, and the verdicts that follow from their numbers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from zoo import reports
from zoo.reports.plots import Plot

HOLDS, NOT_SHARP, FAILS = 'holds', 'holds, not sharp', 'fails'

Figures = Mapping[str, Plot]  # by name


@dataclasses.dataclass(frozen=True)
class Evidence:
  """The numbers that bear on a claim, by name, and whether it holds by them."""

  exact: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  measured: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
  holds: bool | np.bool_ | None = None  # None: not measured
  sharp: bool | np.bool_ = True  # False if a stronger statement is true


@dataclasses.dataclass(frozen=True)
class Claim:
  """A claim of the paper, and the function that computes its numbers and decides."""

  measure: Callable[[Figures], Evidence]
  key: str
  source: str
  statement: str
  figures: tuple[str, ...] = ()  # that the measured numbers are read from
  note: str = ''


def judge(claim: Claim, figures: Figures) -> reports.JudgedClaim:
  """The claim with its numbers in float64 and its verdict, as in `claims.json`.

  Without a figure that it needs it has no measured numbers, and the verdict None.
  """
  with jax.enable_x64(True):
    evidence = claim.measure(figures)
  return {
    'key': claim.key,
    'source': claim.source,
    'statement': claim.statement,
    'verdict': verdict(evidence),
    'exact': {name: float(number) for name, number in evidence.exact.items()},
    'measured': {
      name: None if number is None else float(number)
      for name, number in evidence.measured.items()
    },
    'function': claim.measure.__name__,
    'figures': list(claim.figures),
    'note': claim.note,
  }


def verdict(evidence: Evidence) -> str | None:
  """The verdict in words; None if what it needs was not measured."""
  if evidence.holds is None:
    return None
  if not evidence.holds:
    return FAILS
  return HOLDS if evidence.sharp else NOT_SHARP
