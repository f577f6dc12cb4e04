"""Figures 1 to 4: LSA and multi-head LSA, trained with a fixed initial guess."""

from __future__ import annotations

import dataclasses
import math

from zoo.reports.plots import Panel, Series, series
from zoo.reports.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from zoo.studies.paper import setting
from zoo.studies.paper.figures.parts import (
  LOWEST,
  RISK,
  STEP,
  TRAINED,
  Figure,
  curve,
  dots,
  gd_level,
  training,
)
from zoo.studies.paper.setting import NORM, NUM_FEATURES
from zoo.studies.paper.training import Point, Recipe, Runs, point

HEADS = tuple(range(1, 17))
NORMS = tuple(20.0 * step for step in range(9))  # |w*|²
GUESSES = tuple(40.0 * step for step in range(5))  # |g|² and β²
# The values whose curves are shown.
CURVES = {0.0: BLUE, 40.0: GREEN, 80.0: ORANGE, 160.0: VERMILION}
HEAD_CURVES = {1: VERMILION, 2: ORANGE, 4: PURPLE, 8: GREEN, 11: BLUE, 16: SKY}

_ONE_HEAD = point(Recipe('lsa:paper', evaluations=20, eval_batches=8))
_RECIPE = Recipe('multi_head_lsa:paper')


def _heads(
  heads: int, norm: float = NORM, guess: float = 0.0, bias: float = 0.0
) -> Point:
  """Multi-head LSA with |w*|², |g|² and β² as given, trained as in the paper."""
  return point(
    _RECIPE,
    model__num_heads=heads,
    model__initial_guess=math.sqrt(guess / NUM_FEATURES),
    model__initial_bias=math.sqrt(bias),
    task__prior_mean=math.sqrt(norm / NUM_FEATURES),
  )


def _figure_1(runs: Runs) -> tuple[Panel, ...]:
  steps, _ = runs.history(_ONE_HEAD)
  ends = [0, steps[-1]]
  curves = [curve(runs, _ONE_HEAD, 'exact risk', BLUE)]
  if runs.objective == 'sampled':  # otherwise the loss is the exact risk
    curves.insert(0, curve(runs, _ONE_HEAD, 'training loss', ORANGE, 'loss'))
  risk = setting.head_limit(1)
  shown = (
    *curves,
    _sampled_risk(runs),
    series('lowest known risk, one head', 'line', VERMILION, ends, [risk, risk]),
    gd_level(ends),
  )
  return (Panel('a', STEP, RISK, shown, y_scale='log'),)


def _sampled_risk(runs: Runs) -> Series:
  steps, risks = runs.history(_ONE_HEAD, 'eval_risk')
  return series('sampled risk, held-out prompts', 'dots', GREEN, steps, risks)


def _figure_2(runs: Runs) -> tuple[Panel, ...]:
  curves = [
    curve(runs, _heads(h), f'{h} head{"s" * (h > 1)}', colour)
    for h, colour in HEAD_CURVES.items()
  ]
  lowest = [setting.head_limit(h) for h in HEADS]
  finals = (
    series(LOWEST, 'line', BLUE, HEADS, lowest),
    dots(runs, TRAINED, VERMILION, {h: _heads(h) for h in HEADS}),
    gd_level(HEADS),
  )
  return (
    training('a', curves),
    Panel('b', 'heads H', f'{RISK} at the end', finals),
  )


def _figure_3(runs: Runs) -> tuple[Panel, ...]:
  curves = [
    curve(runs, _heads(11, norm), f'|w*|² = {norm:g}', colour)
    for norm, colour in CURVES.items()
  ]
  means = [math.sqrt(norm / NUM_FEATURES) for norm in NORMS]
  infima = [setting.best_risk(setting.task(mean=mean)) for mean in means]
  one_head = [setting.head_limit(1, norm=norm) for norm in NORMS]
  many = (
    series('11 heads, infimum', 'line', BLUE, NORMS, infima),
    dots(runs, '11 heads, trained', BLUE, {n: _heads(11, n) for n in NORMS}),
  )
  one = (
    series('1 head, lowest known risk', 'line', VERMILION, NORMS, one_head),
    dots(runs, '1 head, trained', VERMILION, {n: _heads(1, n) for n in NORMS}),
  )
  gd = gd_level(NORMS)
  axis = 'squared norm of the prior mean, |w*|²'
  return (
    dataclasses.replace(training('a', curves), y_axis=f'{RISK}, 11 heads'),
    Panel('b', axis, f'{RISK} at the end, 11 heads', (*many, gd)),
    Panel('c', axis, f'{RISK} at the end', (*one, *many, gd)),
  )


def _figure_4(runs: Runs) -> tuple[Panel, ...]:
  guess = 'squared norm of the initial guess, |g|²'
  return (
    *_against_square(runs, 'ab', guess, '|g|²', 'guess'),
    *_against_square(runs, 'cd', 'squared initial bias, β²', 'β²', 'bias'),
  )


def _against_square(
  runs: Runs, keys: str, axis: str, symbol: str, field: str
) -> tuple[Panel, Panel]:
  """Curves, and final risks against |g|² or β², for w* = 0."""

  def at(square: float) -> Point:
    return _heads(11, norm=0.0, **{field: square})

  def infimum(square: float) -> float:
    root = math.sqrt(square if field == 'bias' else square / NUM_FEATURES)
    return setting.best_risk(setting.task(mean=0.0), **{field: root})

  curves = [
    curve(runs, at(square), f'{symbol} = {square:g}', colour)
    for square, colour in CURVES.items()
  ]
  finals = (
    series('infimum', 'line', BLUE, GUESSES, [infimum(square) for square in GUESSES]),
    dots(runs, TRAINED, VERMILION, {square: at(square) for square in GUESSES}),
    gd_level(GUESSES, setting.gd_risk(setting.task(mean=0.0))),
  )
  left, right = keys
  return (
    training(left, curves),
    Panel(right, axis, f'{RISK} at the end', finals),
  )


FIGURES = {
  '1': Figure(
    'Figure 1. LSA does not reach gradient descent',
    'Risk of LSA, which has one head and the initial guess 0, during training. Prior '
    'mean w* = (2, …, 2), d = C = 10, trained as in the paper (Adam 5e-4, 5000 steps '
    'of 2048 prompts), as are all models of figures 1 to 4. No separate training loss '
    'is shown for models trained on the exact risk.',
    (_ONE_HEAD,),
    _figure_1,
  ),
  '2': Figure(
    'Figure 2. More heads help, up to d = 10 of them',
    'Multi-head LSA with the initial guess 0 and w* = (2, …, 2): (a) the exact risk '
    'during training; (b) at the end, with the lowest known risk for each number of '
    'heads: for ten or more the infimum, for fewer the result of a search.',
    tuple(_heads(h) for h in HEADS),
    _figure_2,
  ),
  '3': Figure(
    'Figure 3. The gap grows linearly with |w*|²',
    'Multi-head LSA with the initial guess 0: (a) the exact risk of 11 heads during '
    'training; (b) at the end, with the infimum, whose slope is 1/51; (c) the same '
    'with one head for comparison.',
    tuple(_heads(h, n) for n in NORMS for h in (11, 1)),
    _figure_3,
  ),
  '4': Figure(
    'Figure 4. The gap grows linearly with the error of the guess',
    '11 heads, w* = 0, and an initial guess g·x_q + β that is not 0: the exact risk '
    'during training, and at the end with the infimum, whose slope is 1/51 for both.',
    tuple(
      _heads(11, norm=0.0, **{field: square})
      for field in ('guess', 'bias')
      for square in GUESSES
    ),
    _figure_4,
  ),
}
