"""Figure 5: yq-LSA, whose initial guess is trained, compared with gradient descent."""

from __future__ import annotations

from collections.abc import Callable

import zoo
from zoo import estimators, probing
from zoo.probing import Alignment
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLUE, GREEN, PURPLE, VERMILION
from zoo.studies.paper import setting
from zoo.studies.paper.figures.parts import STEP, Figure, curve, training
from zoo.studies.paper.training import Point, Recipe, Runs, point
from zoo.training.sweeps import Row

CONVERGED = 'lr 5e-3, cosine'
PRIORS = {0.0: BLUE, 1.0: GREEN, 2.0: VERMILION}  # each entry of w*
ALIGNMENT_PROMPTS = 4096

_RECIPE = Recipe('yq_lsa:paper')
# The points whose alignment with gradient descent is plotted.
AS_IN_THE_PAPER = point(Recipe('yq_lsa:paper', checkpoints=20))
TO_THE_END = point(Recipe('yq_lsa', checkpoints=20))


def _yq(mean: float) -> Point:
  """yq-LSA trained as in the paper."""
  return AS_IN_THE_PAPER if mean == 2 else point(_RECIPE, task__prior_mean=mean)


def _figure_5(runs: Runs) -> tuple[Panel, ...]:
  curves = [
    curve(runs, _yq(mean), f'w* = ({mean:g}, …, {mean:g})', colour)
    for mean, colour in PRIORS.items()
  ]
  curves.append(curve(runs, TO_THE_END, f'w* = (2, …, 2), {CONVERGED}', PURPLE))
  return training('a', curves), *_alignment(runs)


def _alignment(runs: Runs) -> list[Panel]:
  """Appendix C.2: how far the model is from gradient descent on the same prompts."""
  shown = ('paper', VERMILION, AS_IN_THE_PAPER), (CONVERGED, PURPLE, TO_THE_END)
  found = [
    (label, colour, *_alignments(runs[at], at.recipe.checkpoints))
    for label, colour, at in shown
  ]
  panels = []
  for key, metric in zip('bcd', _METRICS, strict=True):
    axis, scale, sampled, exact_name, exact = metric
    lines = []
    for label, colour, steps, seeds in found:
      for name, kind, value in (
        (exact_name, 'line', exact),
        ('sampled', 'dots', sampled),
      ):
        y = [[value(one) for one in seed] for seed in seeds]
        lines.append(series(f'{label}: {name}', kind, colour, steps, y))
    panels.append(Panel(key, STEP, axis, tuple(lines), y_scale=scale))
  return panels


# The axis, its scale, the sampled value, and the name and value of the exact one.
_METRICS: tuple[tuple[str, str, Callable, str, Callable], ...] = (
  (
    'prediction difference |f − f_GD|',
    'log',
    lambda one: one.prediction_difference.mean,
    'exact RMS',
    lambda one: one.exact.squared_prediction_difference**0.5,
  ),
  (
    'gradient difference |∂f − ∂f_GD|',
    'log',
    lambda one: one.gradient_difference.mean,
    'exact RMS',
    lambda one: one.exact.squared_gradient_difference**0.5,
  ),
  (
    'cosine similarity of ∂f and ∂f_GD',
    'linear',
    lambda one: one.cosine_similarity.mean,
    'exact, pooled',
    lambda one: one.exact.pooled_cosine,
  ),
)


def _alignments(
  rows: list[Row], checkpoints: int
) -> tuple[list[int], list[list[Alignment]]]:
  """The saved steps, and the alignment of each seed with GD at these steps."""
  task = setting.task()
  gd = estimators.gradient_descent(task)
  every = -(-rows[0]['step'] // checkpoints)
  steps = list(range(every, rows[0]['step'] + 1, every))
  seeds = [
    [
      probing.alignment(
        zoo.load(row['workdir'], step).model, gd, task, ALIGNMENT_PROMPTS
      )
      for step in steps
    ]
    for row in rows
  ]
  return steps, seeds


FIGURES = {
  '5': Figure(
    'Figure 5. yq-LSA becomes one step of gradient descent',
    'yq-LSA, whose initial guess is trained: (a) the exact risk during training; '
    '(b, c, d) how far it is from one step of gradient descent from w* = (2, …, 2) on '
    'the same prompts. The root mean squares are exact; the sampled values are means, '
    'as in the paper. At the rate of the paper, 5e-4, Adam cannot carry the guess from '
    '0 to 2 in time; at 5e-3, decaying to 0, it can.',
    (*(_yq(mean) for mean in PRIORS), TO_THE_END),
    _figure_5,
  ),
}
