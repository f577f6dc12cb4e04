"""Claims, and the verdicts that follow from their numbers."""

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from zoo import reports
from zoo.reports.plots import Plot
from zoo.studies.paper import setting

HOLDS, NOT_SHARP, FAILS = 'holds', 'holds, not sharp', 'fails'

Figures = Mapping[str, Plot]  # by name


@dataclasses.dataclass(frozen=True)
class Claim:
  """A claim of the paper, the numbers that bear on it, and the rule for its verdict.

  Numbers and rules are expressions in Python, which the report shows. Those of `exact`
  and `measured` numbers use the names of `zoo.studies.paper.setting`, and what their
  `steps`, statements, have assigned; the measured ones also use `figures`. Rules also
  use the numbers by their names.
  """

  key: str
  source: str
  statement: str
  holds: str
  exact: Mapping[str, str] = dataclasses.field(default_factory=dict)
  exact_steps: str = ''
  measured: Mapping[str, str] = dataclasses.field(default_factory=dict)
  measured_steps: str = ''
  sharp: str = 'True'  # for a claim for which no sharper statement is known
  figures: tuple[str, ...] = ()  # that the measured numbers are read from
  note: str = ''


def judge(claim: Claim, figures: Figures) -> reports.Claim:
  """The claim with its numbers in float64 and its verdict, as in `claims.json`.

  Numbers from missing figures are None, and so is a verdict that needs them.
  """
  with jax.enable_x64(True):
    exact = _evaluate(claim.exact, claim.exact_steps)
  measured: dict[str, float | None] = dict.fromkeys(claim.measured)
  if all(name in figures for name in claim.figures):
    measured = _evaluate(claim.measured, claim.measured_steps, figures=figures)
  sources = (claim.exact_steps, claim.exact), (claim.measured_steps, claim.measured)
  return {
    'key': claim.key,
    'source': claim.source,
    'statement': claim.statement,
    'verdict': verdict(claim, {**exact, **measured}),
    'exact': exact,
    'measured': measured,
    'calls': {
      name: f'{steps}; {number}' if steps else number
      for steps, numbers in sources
      for name, number in numbers.items()
    },
    'holds_if': claim.holds,
    'sharp_if': claim.sharp,
    'figures': list(claim.figures),
    'note': claim.note,
  }


def verdict(claim: Claim, numbers: Mapping[str, float | None]) -> str | None:
  """The verdict by a claim's rules; None if a number that they need is missing."""

  def decide(rule: str) -> bool | None:
    used = {node.id for node in ast.walk(ast.parse(rule)) if isinstance(node, ast.Name)}
    if any(numbers[name] is None for name in used & numbers.keys()):
      return None
    steps, _, value = rule.rpartition('; ')
    scope = {**vars(setting), **numbers}
    exec(steps, scope)
    return bool(eval(value, scope))

  holds = decide(claim.holds)
  if not holds:
    return None if holds is None else FAILS
  sharp = decide(claim.sharp)
  if sharp is None:
    return None
  return HOLDS if sharp else NOT_SHARP


def _evaluate(numbers: Mapping[str, str], steps: str, **names: Any) -> dict[str, Any]:
  """The numbers by name, after the steps; None stays None."""
  scope = {**vars(setting), **names}
  exec(steps, scope)
  found = {name: eval(number, scope) for name, number in numbers.items()}
  return {
    name: None if value is None else float(value) for name, value in found.items()
  }
