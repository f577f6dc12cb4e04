"""Figures 1 to 5 of arXiv 2512.04268: their models and plots.

Figures 1 to 4 show LSA and multi-head LSA, trained with a fixed initial guess. Figure 5
compares yq-LSA, whose guess is trained, with gradient descent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from studies.paper import setting
from studies.paper.setting import NORM, NUM_FEATURES
from studies.paper.training import PaperPoint, Recipe, Runs, point
from studies.runner import load
from zoo import estimators, probing
from zoo.measure.predict import Programs
from zoo.probing import Alignment
from zoo.reports.plots import Panel, Series, level, series
from zoo.reports.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from zoo.training.sweeps import Row

STEP = 'training step'
RISK = 'in-context risk'
TRAINED, LOWEST, GD = 'trained', 'lowest known risk', 'one step of gradient descent'


class PaperFigure(NamedTuple):
  """A figure and the models that it needs.

  Attributes:
    title: The title.
    caption: The caption.
    points: The models to train.
    plot: Returns the panels from the trained models.
  """

  title: str
  caption: str
  points: tuple[PaperPoint, ...]
  plot: Callable[[Runs], tuple[Panel, ...]]


def gd_level(x: Sequence[int | float], risk: float | None = None) -> Series:
  """Returns a level line at a risk, by default that of GD in the paper's setting."""
  risk = setting.gd_risk(setting.task()) if risk is None else risk
  return level(GD, risk, [min(x), max(x)])


def training_curve(
  runs: Runs, at: PaperPoint, name: str, colour: str, field: str = 'exact_risk'
) -> Series:
  """Returns a curve of a field that was logged in training, with its range over seeds.

  Args:
    runs: The trained models.
    at: The model.
    name: The name of the curve in the legend.
    colour: The colour.
    field: The logged field.
  """
  return series(name, 'curve', colour, *runs.history(at, field))


def dots(
  runs: Runs,
  name: str,
  colour: str,
  points: Mapping[int, PaperPoint] | Mapping[float, PaperPoint],
  less: ArrayLike = 0.0,
) -> Series:
  """Returns dots at the exact risk of each model after training.

  Args:
    runs: The trained models.
    name: The name of the dots in the legend.
    colour: The colour.
    points: The models, by their x.
    less: A number, or one for each model, that is subtracted from the risks.
  """
  finals = [[row['exact_risk'] for row in runs.rows[at]] for at in points.values()]
  finals = np.transpose(finals) - np.asarray(less)
  return series(name, 'dots', colour, list(points), finals)


def training(key: str, curves: Sequence[Series]) -> Panel:
  """Returns a panel of risks during training, with the risk of one step of GD."""
  gd = gd_level([0, curves[0].x[-1]])
  return Panel(key, STEP, RISK, (*curves, gd), y_scale='log')


HEADS = tuple(range(1, 17))
SQUARED_NORMS = tuple(20.0 * step for step in range(9))  # |w*|²
SQUARES = tuple(40.0 * step for step in range(5))  # |g|² and β²
# The values of |w*|², |g|² or β² whose training curves are shown.
CURVES = {0.0: BLUE, 40.0: GREEN, 80.0: ORANGE, 160.0: VERMILION}
HEAD_CURVES = {1: VERMILION, 2: ORANGE, 4: PURPLE, 8: GREEN, 11: BLUE, 16: SKY}

_ONE_HEAD = PaperPoint(Recipe('lsa:paper', evaluations=20, eval_batches=8))


def _heads(
  heads: int, norm: float = NORM, guess: float = 0.0, bias: float = 0.0
) -> PaperPoint:
  """Returns multi-head LSA, trained as in the paper.

  Args:
    heads: The number of heads.
    norm: |w*|², the squared norm of the prior mean.
    guess: |g|², the squared norm of the initial guess.
    bias: β², the square of the initial bias.
  """
  fields = {
    'model.num_heads': heads,
    'model.initial_guess': math.sqrt(guess / NUM_FEATURES),
    'model.initial_bias': math.sqrt(bias),
    'task.prior_mean': math.sqrt(norm / NUM_FEATURES),
  }
  return point(Recipe('multi_head_lsa:paper'), fields)


def _figure_1(runs: Runs) -> tuple[Panel, ...]:
  steps, _ = runs.history(_ONE_HEAD)
  ends = [0, steps[-1]]
  curves = [training_curve(runs, _ONE_HEAD, 'exact risk', BLUE)]
  if runs.objective == 'sampled':  # with the other objective the loss is the exact risk
    curves.insert(0, training_curve(runs, _ONE_HEAD, 'training loss', ORANGE, 'loss'))
  risk, sampled = setting.head_limit(1), runs.history(_ONE_HEAD, 'eval_risk')
  shown = (
    *curves,
    series('sampled risk, held-out prompts', 'dots', GREEN, *sampled),
    series('lowest known risk, one head', 'line', VERMILION, ends, [risk, risk]),
    gd_level(ends),
  )
  return (Panel('a', STEP, RISK, shown, y_scale='log'),)


def _figure_2(runs: Runs) -> tuple[Panel, ...]:
  curves = [
    training_curve(runs, _heads(h), f'{h} head{"s" * (h > 1)}', colour)
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
    training_curve(runs, _heads(11, norm), f'|w*|² = {norm:g}', colour)
    for norm, colour in CURVES.items()
  ]
  means = [math.sqrt(norm / NUM_FEATURES) for norm in SQUARED_NORMS]
  infima = [setting.best_risk(setting.task(mean=mean)) for mean in means]
  one_head = [setting.head_limit(1, norm=norm) for norm in SQUARED_NORMS]
  many = (
    series('11 heads, infimum', 'line', BLUE, SQUARED_NORMS, infima),
    dots(runs, '11 heads, trained', BLUE, {n: _heads(11, n) for n in SQUARED_NORMS}),
  )
  single = (
    series('1 head, lowest known risk', 'line', VERMILION, SQUARED_NORMS, one_head),
    dots(runs, '1 head, trained', VERMILION, {n: _heads(1, n) for n in SQUARED_NORMS}),
  )
  gd = gd_level(SQUARED_NORMS)
  axis = 'squared norm of the prior mean, |w*|²'
  return (
    dataclasses.replace(training('a', curves), y_axis=f'{RISK}, 11 heads'),
    Panel('b', axis, f'{RISK} at the end, 11 heads', (*many, gd)),
    Panel('c', axis, f'{RISK} at the end', (*single, *many, gd)),
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
  """Returns a panel of training curves and one of final risks, for w* = 0."""

  def at(square: float) -> PaperPoint:
    return _heads(11, norm=0.0, **{field: square})

  def infimum(square: float) -> float:
    root = math.sqrt(square if field == 'bias' else square / NUM_FEATURES)
    return setting.best_risk(setting.task(mean=0.0), **{field: root})

  curves = [
    training_curve(runs, at(square), f'{symbol} = {square:g}', colour)
    for square, colour in CURVES.items()
  ]
  finals = (
    series('infimum', 'line', BLUE, SQUARES, [infimum(square) for square in SQUARES]),
    dots(runs, TRAINED, VERMILION, {square: at(square) for square in SQUARES}),
    gd_level(SQUARES, setting.gd_risk(setting.task(mean=0.0))),
  )
  left, right = keys
  return (
    training(left, curves),
    Panel(right, axis, f'{RISK} at the end', finals),
  )


CONVERGED = 'lr 5e-3, cosine'
PRIORS = {0.0: BLUE, 1.0: GREEN, 2.0: VERMILION}  # the value of each entry of w*
ALIGNMENT_PROMPTS = 4096

# The models whose alignment with gradient descent is plotted.
AS_IN_THE_PAPER = PaperPoint(Recipe('yq_lsa:paper', checkpoints=20))
TO_THE_END = PaperPoint(Recipe('yq_lsa', checkpoints=20))


def _yq(mean: float) -> PaperPoint:
  """Returns yq-LSA trained as in the paper, by the value of each entry of w*."""
  if mean == 2:
    return AS_IN_THE_PAPER
  return point(Recipe('yq_lsa:paper'), {'task.prior_mean': mean})


def _figure_5(runs: Runs) -> tuple[Panel, ...]:
  curves = [
    training_curve(runs, _yq(mean), f'w* = ({mean:g}, …, {mean:g})', colour)
    for mean, colour in PRIORS.items()
  ]
  curves.append(
    training_curve(runs, TO_THE_END, f'w* = (2, …, 2), {CONVERGED}', PURPLE)
  )
  return training('a', curves), *_alignment(runs)


def _alignment(runs: Runs) -> list[Panel]:
  """Returns the panels of appendix C.2: how far models are from GD on equal prompts."""
  shown = ('paper', VERMILION, AS_IN_THE_PAPER), (CONVERGED, PURPLE, TO_THE_END)
  aligned = [
    (label, colour, *_alignments(runs.rows[at], at.recipe.checkpoints))
    for label, colour, at in shown
  ]
  panels = []
  for key, metric in zip('bcd', _METRICS, strict=True):
    axis, scale, sampled, exact_name, exact = metric
    lines = []
    for label, colour, steps, seeds in aligned:
      for name, kind, value in (
        (exact_name, 'line', exact),
        ('sampled', 'dots', sampled),
      ):
        y = [[value(alignment) for alignment in seed] for seed in seeds]
        lines.append(series(f'{label}: {name}', kind, colour, steps, y))
    panels.append(Panel(key, STEP, axis, tuple(lines), y_scale=scale))
  return panels


# Each metric has an axis, its scale, the sampled value, and the name and the value of
# the exact one.
_METRICS: tuple[tuple[str, str, Callable, str, Callable], ...] = (
  (
    'prediction difference |f − f_GD|',
    'log',
    lambda alignment: alignment.prediction_difference.mean,
    'exact RMS',
    lambda alignment: alignment.exact.squared_prediction_difference**0.5,
  ),
  (
    'gradient difference |∂f − ∂f_GD|',
    'log',
    lambda alignment: alignment.gradient_difference.mean,
    'exact RMS',
    lambda alignment: alignment.exact.squared_gradient_difference**0.5,
  ),
  (
    'cosine similarity of ∂f and ∂f_GD',
    'linear',
    lambda alignment: alignment.cosine_similarity.mean,
    'exact, pooled',
    lambda alignment: alignment.exact.pooled_cosine,
  ),
)


def _alignments(
  rows: list[Row], checkpoints: int
) -> tuple[list[int], list[list[Alignment]]]:
  """Returns the saved steps, and the alignment of each seed with GD at these steps."""
  task = setting.task()
  gd = estimators.gradient_descent(task)
  every = -(-rows[0]['step'] // checkpoints)
  steps = list(range(every, rows[0]['step'] + 1, every))
  programs = Programs()

  def aligned(row: Row, step: int) -> Alignment:
    model = load(row, step)
    return probing.alignment(model, gd, task, ALIGNMENT_PROMPTS, programs=programs)

  seeds = [[aligned(row, step) for step in steps] for row in rows]
  return steps, seeds


# The figures of the paper by name.
OF_THE_PAPER: dict[str, PaperFigure] = {
  '1': PaperFigure(
    'Figure 1. LSA does not reach gradient descent',
    'Risk of LSA, which has one head and the initial guess 0, during training with w* '
    '= (2, …, 2), d = C = 10, as in the paper (Adam 5e-4, 5000 steps of 2048 prompts), '
    'like all models of figures 1 to 4.',
    (_ONE_HEAD,),
    _figure_1,
  ),
  '2': PaperFigure(
    'Figure 2. More heads help, up to d = 10 of them',
    'Multi-head LSA with the initial guess 0 and w* = (2, …, 2): (a) the exact risk '
    'during training; (b) at the end, with the lowest known risk for each number of '
    'heads: for ten or more the infimum, for fewer the result of a search.',
    tuple(_heads(h) for h in HEADS),
    _figure_2,
  ),
  '3': PaperFigure(
    'Figure 3. The gap grows linearly with |w*|²',
    'Multi-head LSA with the initial guess 0: (a) the exact risk of 11 heads during '
    'training; (b) at the end, with the infimum, whose slope is 1/51; (c) the same '
    'with one head for comparison.',
    tuple(_heads(h, n) for n in SQUARED_NORMS for h in (11, 1)),
    _figure_3,
  ),
  '4': PaperFigure(
    'Figure 4. The gap grows linearly with the error of the guess',
    '11 heads, w* = 0, and an initial guess g·x_q + β that is not 0: the exact risk '
    'during training, and at the end with the infimum, whose slope is 1/51 for both.',
    tuple(
      _heads(11, norm=0.0, **{field: square})
      for field in ('guess', 'bias')
      for square in SQUARES
    ),
    _figure_4,
  ),
  '5': PaperFigure(
    'Figure 5. yq-LSA becomes one step of gradient descent',
    'yq-LSA, whose initial guess is trained: (a) the exact risk during training; '
    '(b, c, d) how far it is from one step of gradient descent from w* = (2, …, 2) on '
    'the same prompts, at the rate of the paper, 5e-4, and at 5e-3, decaying to 0.',
    (*(_yq(mean) for mean in PRIORS), TO_THE_END),
    _figure_5,
  ),
}
