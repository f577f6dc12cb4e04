"""Claims of the paper, and the verdicts that follow from their numbers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from zoo import reports
from zoo.reports.plots import Plot

HOLDS, NOT_SHARP, FAILS = 'holds', 'holds, not sharp', 'fails'
NOT_DECIDED = 'not decided'

Figures = Mapping[str, Plot]  # the figures by name


@dataclasses.dataclass(frozen=True)
class Evidence:
  """The numbers on which the verdict on a claim rests.

  `exact` has the numbers that theory computes and `measured` those that are read from
  figures, both by name. `holds` says whether the claim holds by these numbers, and is
  None if a figure is missing or `is_open`. `sharp` is False if a stronger statement is
  true. `is_open` is True if the interval of a measured number does not decide.
  """

  exact: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  measured: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
  holds: bool | np.bool_ | None = None
  sharp: bool | np.bool_ = True
  is_open: bool = False


@dataclasses.dataclass(frozen=True)
class Claim:
  """A claim of the paper.

  Attributes:
    measure: Returns the numbers of the claim, and whether it holds, from the figures.
    key: The name of the claim.
    source: The place of the claim in the paper.
    statement: What the paper claims.
    figures: The names of the figures from which the measured numbers are read.
    note: A remark, such as what is true instead.
  """

  measure: Callable[[Figures], Evidence]
  key: str
  source: str
  statement: str
  figures: tuple[str, ...] = ()
  note: str = ''


def judge(claim: Claim, figures: Figures) -> reports.JudgedClaim:
  """Computes the numbers of a claim in float64, and its verdict.

  Args:
    claim: The claim.
    figures: The figures that were drawn, by name. If a figure of the claim is missing,
      the claim has no measured numbers, and its verdict is None.

  Returns:
    The claim with its numbers and its verdict, as in `claims.json`.
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
  """Returns the verdict in words; None if a figure is missing."""
  if evidence.is_open:
    return NOT_DECIDED
  if evidence.holds is None:
    return None
  if not evidence.holds:
    return FAILS
  return HOLDS if evidence.sharp else NOT_SHARP
