"""Figures beyond the paper: longer contexts, and features of unequal variance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import ArrayLike, Float

from studies.paper import setting
from studies.paper.figures import GD, RISK, TO_THE_END, PaperFigure, dots
from studies.paper.setting import NORM, NUM_FEATURES
from studies.paper.training import Field, PaperPoint, Recipe, Runs, point
from zoo.reports.plots import Panel, Series, series
from zoo.reports.style import BLACK, BLUE, GREEN, PURPLE, VERMILION
from zoo.tasks import LinearRegression

CONTEXTS = 5, 10, 20, 80  # the context lengths of the trained models
ALL_CONTEXTS = 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 226, 320
ONE_HEAD_CONTEXTS = 5, 10, 20, 80, 320
SMALL_MEAN = 0.5
# The largest over the smallest feature variance: first for the trained models, and then
# for the lines of theory.
RATIOS = 10.0, 100.0
ALL_RATIOS = tuple(np.geomspace(1, 100, 17).tolist())

# Each label has its colour, its config and its number of heads.
SHOWN = {
  'LSA, 1 head': (VERMILION, 'multi_head_lsa', 1),
  'LSA, 11 heads': (BLUE, 'multi_head_lsa', 11),
  'yq-LSA': (GREEN, 'yq_lsa', 1),
  'LTB': (PURPLE, 'ltb', 1),
}


def _trained(label: str, **task: Field) -> PaperPoint:
  """Returns a model to be trained to convergence, with some fields of its task set."""
  _, config, heads = SHOWN[label]
  if config == 'yq_lsa' and not task:
    return TO_THE_END
  fields = {f'task.{field}': value for field, value in task.items()}
  if config == 'multi_head_lsa':
    fields['model.num_heads'] = heads
  return point(Recipe(config), fields)


def _at_context(label: str, c: int) -> PaperPoint:
  return _trained(label, **({} if c == 10 else {'context_length': c}))


def _context(runs: Runs) -> tuple[Panel, ...]:
  def gd_at(contexts: Sequence[int]) -> Float[np.ndarray, ' c']:
    return np.array([setting.gd_risk(setting.task(c)) for c in contexts])

  def trained(label: str, less: ArrayLike = 0.0) -> Series:
    points = {c: _at_context(label, c) for c in CONTEXTS}
    return dots(runs, f'{label}, trained', SHOWN[label][0], points, less)

  gd = gd_at(ALL_CONTEXTS)
  many = np.array([setting.best_risk(setting.task(c)) for c in ALL_CONTEXTS])
  one_head = np.array([setting.head_limit(1, c) for c in ONE_HEAD_CONTEXTS])
  slope = [2 * NORM / (c * NUM_FEATURES + 2) for c in ALL_CONTEXTS]
  risks = (
    series('1 head, lowest known risk', 'line', VERMILION, ONE_HEAD_CONTEXTS, one_head),
    series('11 heads, infimum', 'line', BLUE, ALL_CONTEXTS, many),
    series(GD, 'dashed', BLACK, ALL_CONTEXTS, gd),
    *[trained(label) for label in SHOWN],
  )
  gap = one_head - gd_at(ONE_HEAD_CONTEXTS)
  gaps = (
    series('1 head, lowest known', 'line', VERMILION, ONE_HEAD_CONTEXTS, gap),
    series('11 heads, infimum', 'line', BLUE, ALL_CONTEXTS, many - gd),
    series('2|w*|²/(Cd + 2)', 'dashed', BLACK, ALL_CONTEXTS, slope),
    *[trained(label, gd_at(CONTEXTS)) for label in SHOWN if label.startswith('LSA')],
  )
  axis = 'context length C'
  return (
    Panel('a', axis, f'{RISK} at the end', risks, 'log', 'log'),
    Panel('b', axis, 'risk above gradient descent', gaps, 'log', 'log'),
  )


def _unequal(ratio: float) -> Float[np.ndarray, 'd d']:
  """Returns a diagonal covariance of features with mean variance 1.

  The variances are in geometric progression.

  Args:
    ratio: The largest variance divided by the smallest.
  """
  variances = np.geomspace(1, ratio, NUM_FEATURES)
  return np.diag(variances * NUM_FEATURES / variances.sum())


def _at_ratio(label: str, ratio: float) -> PaperPoint:
  covariance = tuple(map(tuple, _unequal(ratio).tolist()))
  return _trained(label, prior_mean=SMALL_MEAN, feature_covariance=covariance)


def _covariance(runs: Runs) -> tuple[Panel, ...]:
  plain = setting.task(mean=SMALL_MEAN)
  tasks = [
    dataclasses.replace(plain, feature_covariance=_unequal(ratio))
    for ratio in ALL_RATIOS
  ]

  def line(
    name: str, kind: str, colour: str, risk: Callable[[LinearRegression], float]
  ) -> Series:
    return series(name, kind, colour, ALL_RATIOS, [risk(task) for task in tasks])

  def trained(label: str) -> Series:
    points = {ratio: _at_ratio(label, ratio) for ratio in RATIOS}
    return dots(runs, f'{label}, trained', SHOWN[label][0], points)

  risks = (
    line('GD, best step size', 'dashed', BLACK, setting.gd_risk),
    line('11 heads, infimum', 'line', BLUE, setting.best_risk),
    line(
      'optimum: GD with a matrix step',
      'line',
      GREEN,
      lambda task: setting.best_risk(task, None),
    ),
    trained('LSA, 11 heads'),
    trained('yq-LSA'),
  )
  axis = 'largest over smallest feature variance'
  return (Panel('a', axis, f'{RISK} at the end', risks, 'log'),)


BEYOND = {
  'context': PaperFigure(
    'Beyond the paper. With longer contexts the gap closes',
    'w* = (2, …, 2), trained at the rate 5e-3, decaying to 0: (a) the risk against the '
    'number of examples C; (b) the excess over gradient descent, which falls like 1/C.',
    tuple(_at_context(label, c) for label in SHOWN for c in CONTEXTS),
    _context,
  ),
  'covariance': PaperFigure(
    'Beyond the paper. With unequal features gradient descent is not a bound',
    'Feature variances in geometric progression, of mean 1; each entry of w* is 0.5.',
    tuple(
      _at_ratio(label, ratio)
      for label in ('LSA, 11 heads', 'yq-LSA')
      for ratio in RATIOS
    ),
    _covariance,
  ),
}
