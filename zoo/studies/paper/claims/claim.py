"""Claims, and the verdicts that follow from their numbers."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import SupportsFloat

import jax

from zoo import reports
from zoo.reports.plots import Plot

HOLDS, NOT_SHARP, FAILS = 'holds', 'holds, not sharp', 'fails'

Numbers = Mapping[str, SupportsFloat]
Measured = Mapping[str, SupportsFloat | None]
Figures = Mapping[str, Plot]  # by name


def nothing_exact() -> Numbers:
  """The exact numbers of a claim that has none."""
  return {}


def nothing_measured(figures: Figures) -> Measured:
  """The measured numbers of a claim that needs no training."""
  return {}


def sharp_as_stated() -> bool:
  """The rule `sharp` of a claim for which no sharper statement is known."""
  return True


@dataclasses.dataclass(frozen=True)
class Claim:
  """A claim of the paper, the numbers that bear on it, and the rule for its verdict.

  `exact` and `measured` return numbers by name in a literal dict; the report shows the
  source code of each number. The arguments of `holds` and `sharp` name the numbers that
  they need. The measured numbers are read from the named `figures`.
  """

  key: str
  source: str
  statement: str
  exact: Callable[[], Numbers]
  holds: Callable[..., bool]
  measured: Callable[[Figures], Measured] = nothing_measured
  sharp: Callable[..., bool] = sharp_as_stated
  figures: tuple[str, ...] = ()
  note: str = ''


def close(one: float, other: float) -> bool:
  """Whether two exact numbers are the same up to rounding in float64."""
  return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def within(share: float, one: float, other: float) -> bool:
  """Whether `one` differs from `other` by at most that share of `other`."""
  return abs(one / other - 1) <= share


def judge(claim: Claim, figures: Figures) -> reports.Claim:
  """The claim with its numbers in float64 and its verdict, as in `claims.json`.

  Numbers from missing figures are None, and so is a verdict that needs them.
  """
  with jax.enable_x64(True):
    exact = {name: float(value) for name, value in claim.exact().items()}
  calls = sources(claim.measured)
  measured: dict[str, float | None] = dict.fromkeys(calls)
  if all(name in figures for name in claim.figures):
    for name, value in claim.measured(figures).items():
      measured[name] = None if value is None else float(value)
  return {
    'key': claim.key,
    'source': claim.source,
    'statement': claim.statement,
    'verdict': verdict(claim, {**exact, **measured}),
    'exact': exact,
    'measured': measured,
    'calls': {**sources(claim.exact), **calls},
    'holds_if': rule_source(claim.holds),
    'sharp_if': rule_source(claim.sharp),
    'figures': list(claim.figures),
    'note': claim.note,
  }


def verdict(claim: Claim, numbers: Mapping[str, float | None]) -> str | None:
  """The verdict by a claim's rules; None if a number that they need is missing."""

  def decide(rule: Callable[..., bool]) -> bool | None:
    given = {name: numbers[name] for name in inspect.signature(rule).parameters}
    return None if None in given.values() else rule(**given)

  holds = decide(claim.holds)
  if not holds:
    return None if holds is None else FAILS
  sharp = decide(claim.sharp)
  if sharp is None:
    return None
  return HOLDS if sharp else NOT_SHARP


def sources(function: Callable[..., object]) -> dict[str, str]:
  """The source code of each number in the dict that a function returns, by name."""
  *steps, value = _body(function)
  assert isinstance(value, ast.Dict)
  return {
    ast.literal_eval(key): '; '.join(map(ast.unparse, [*steps, number]))
    for key, number in zip(value.keys, value.values, strict=True)
    if key is not None
  }


def rule_source(rule: Callable[..., bool]) -> str:
  """The source code of a rule in one line."""
  return '; '.join(map(ast.unparse, _body(rule)))


def _body(function: Callable[..., object]) -> list[ast.AST]:
  """The statements of a function, followed by the value that it returns."""
  tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
  assert isinstance(tree, ast.FunctionDef)
  *steps, last = tree.body
  assert isinstance(last, ast.Return)
  assert last.value is not None
  return [*(step for step in steps if not _is_docstring(step)), last.value]


def _is_docstring(step: ast.AST) -> bool:
  return isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
