"""The figures of arXiv 2512.04268, and those beyond it: what each trains and plots."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

import zoo
from zoo import estimators, probing, theory
from zoo.paper import setting
from zoo.paper.training import Point, Runs, Study, point
from zoo.plots import (
  BLACK,
  BLUE,
  GREEN,
  ORANGE,
  PURPLE,
  VERMILION,
  Panel,
  Plot,
  Series,
  series,
)
from zoo.prompt import Prompt

STEP = 'training step'
RISK = 'in-context risk'
CONVERGED = 'lr 5e-3, cosine'
TRAINED, INFIMUM, GD = 'trained', 'exact infimum', 'one step of gradient descent'

NORM = setting.NUM_FEATURES * setting.PRIOR_MEAN**2  # |w*|² where it does not vary
HEADS = tuple(range(1, 17))
NORMS = tuple(20.0 * step for step in range(9))  # |w*|²
GUESSES = tuple(40.0 * step for step in range(5))  # |g|² and β²
CURVES = {
  0.0: BLUE,
  40.0: GREEN,
  80.0: ORANGE,
  160.0: VERMILION,
}  # of which curves are drawn
HEAD_CURVES = {1: VERMILION, 2: ORANGE, 4: PURPLE, 8: GREEN, 11: BLUE, 16: '#56B4E9'}
PRIORS = {0.0: BLUE, 1.0: GREEN, 2.0: VERMILION}
CONTEXTS = 5, 10, 20, 80  # that are trained
ALL_CONTEXTS = 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 226, 320
ONE_HEAD_CONTEXTS = 5, 10, 20, 80, 320
ALIGNMENT_PROMPTS = 4096
RATIOS = 10.0, 100.0  # of feature variances, that are trained
ALL_RATIOS = tuple(np.geomspace(1, 100, 17).tolist())

_LSA = Study('lsa', 'paper', evaluations=20, eval_batches=8)
_HEADS = Study('multi_head_lsa', 'paper')
_YQ = Study('yq_lsa', 'paper')
_YQ_PAPER = Study('yq_lsa', 'paper', checkpoints=20)
_YQ_CONVERGED = Study('yq_lsa', '', checkpoints=20)


class Figure(NamedTuple):
  """What a figure shows, what it needs trained and computed, and how it is plotted."""

  title: str
  caption: str
  points: tuple[Point, ...]
  plot: Callable[[Runs], tuple[Panel, ...]]


def plot(name: str, runs: Runs) -> Plot:
  """The data of a figure, from its finished runs."""
  return Plot(name, FIGURES[name].plot(runs))


def limit(heads: int, c: int, norm: float) -> float:
  """The infimum of the risk for a number of heads, `norm` being |w*|²."""
  return theory.isotropic_head_limit(setting.NUM_FEATURES, c, heads, math.sqrt(norm))


def _heads(
  heads: int, norm: float = NORM, guess: float = 0.0, bias: float = 0.0
) -> Point:
  """Multi-head LSA with |w*|², |g|² and β² as given, trained as in the paper."""
  d = setting.NUM_FEATURES
  return point(
    _HEADS,
    model__num_heads=heads,
    model__initial_guess=math.sqrt(guess / d),
    model__initial_bias=math.sqrt(bias),
    task__prior_mean=math.sqrt(norm / d),
  )


def _level(name: str, value: float, x: Sequence[int | float]) -> Series:
  """A dashed line at a height, over the range of x."""
  return series(name, 'dashed', BLACK, [min(x), max(x)], [value, value])


def _curve(
  runs: Runs, at: Point, name: str, colour: str, field: str = 'exact_risk'
) -> Series:
  return series(name, 'curve', colour, *runs.history(at, field))


def _dots(
  runs: Runs, name: str, colour: str, points: dict[Any, Point], less: Any = 0.0
) -> Series:
  finals = [runs.final(at) for at in points.values()]
  return series(name, 'dots', colour, list(points), np.transpose(finals) - less)


# Figure 1


def _figure_1(runs: Runs) -> tuple[Panel, ...]:
  at = point(_LSA)
  steps, _ = runs.history(at)
  curves = (
    _curve(runs, at, 'training loss', ORANGE, 'loss'),
    _curve(runs, at, 'exact risk', BLUE),
    _sampled_risk(runs, at),
    series(
      'exact infimum, one head',
      'line',
      VERMILION,
      [0, steps[-1]],
      2 * [limit(1, 10, NORM)],
    ),
    _level(GD, setting.gd_risk(setting.task()), [0, steps[-1]]),
  )
  return (Panel('a', STEP, RISK, curves, y_scale='log'),)


def _sampled_risk(runs: Runs, at: Point) -> Series:
  steps, risks = runs.history(at, 'eval_risk')
  return series('sampled risk, held-out prompts', 'dots', GREEN, steps, risks)


# Figure 2


def _figure_2(runs: Runs) -> tuple[Panel, ...]:
  gd = setting.gd_risk(setting.task())
  curves = [
    _curve(runs, _heads(h), f'{h} head{"s" * (h > 1)}', colour)
    for h, colour in HEAD_CURVES.items()
  ]
  infima = [limit(h, 10, NORM) for h in HEADS]
  finals = (
    series(INFIMUM, 'line', BLUE, HEADS, infima),
    _dots(runs, TRAINED, VERMILION, {h: _heads(h) for h in HEADS}),
    _level(GD, gd, HEADS),
  )
  return (
    Panel('a', STEP, RISK, (*curves, _gd_over_steps(curves)), y_scale='log'),
    Panel('b', 'heads H', f'{RISK} at the end', finals),
  )


def _gd_over_steps(curves: Sequence[Series]) -> Series:
  return _level(GD, setting.gd_risk(setting.task()), [0, curves[0].x[-1]])


# Figure 3


def _figure_3(runs: Runs) -> tuple[Panel, ...]:
  d = setting.NUM_FEATURES
  curves = [
    _curve(runs, _heads(11, norm), f'|w*|² = {norm:g}', colour)
    for norm, colour in CURVES.items()
  ]
  infima = [setting.best_risk(setting.task(mean=math.sqrt(n / d))) for n in NORMS]
  one_head = [limit(1, 10, norm) for norm in NORMS]
  many = (
    series('11 heads, exact infimum', 'line', BLUE, NORMS, infima),
    _dots(runs, '11 heads, trained', BLUE, {n: _heads(11, n) for n in NORMS}),
  )
  one = (
    series('1 head, exact infimum', 'line', VERMILION, NORMS, one_head),
    _dots(runs, '1 head, trained', VERMILION, {n: _heads(1, n) for n in NORMS}),
  )
  gd = _level(GD, setting.gd_risk(setting.task()), NORMS)
  axis = 'squared norm of the prior mean, |w*|²'
  curves.append(_gd_over_steps(curves))
  return (
    Panel('a', STEP, f'{RISK}, 11 heads', tuple(curves), y_scale='log'),
    Panel('b', axis, f'{RISK} at the end, 11 heads', (*many, gd)),
    Panel('c', axis, f'{RISK} at the end', (*one, *many, gd)),
  )


# Figure 4


def _figure_4(runs: Runs) -> tuple[Panel, ...]:
  return (
    *_fixed_guess(
      runs, 'a', 'b', 'squared norm of the initial guess, |g|²', '|g|²', 'guess'
    ),
    *_fixed_guess(runs, 'c', 'd', 'squared initial bias, β²', 'β²', 'bias'),
  )


def _fixed_guess(
  runs: Runs, left: str, right: str, axis: str, symbol: str, field: str
) -> tuple[Panel, Panel]:
  def at(square: float) -> Point:
    return _heads(11, norm=0.0, **{field: square})

  def infimum(square: float) -> float:
    root = math.sqrt(square if field == 'bias' else square / setting.NUM_FEATURES)
    return setting.best_risk(setting.task(mean=0.0), **{field: root})

  curves = [
    _curve(runs, at(square), f'{symbol} = {square:g}', colour)
    for square, colour in CURVES.items()
  ]
  finals = (
    series(INFIMUM, 'line', BLUE, GUESSES, [infimum(square) for square in GUESSES]),
    _dots(runs, TRAINED, VERMILION, {square: at(square) for square in GUESSES}),
    _level(GD, setting.gd_risk(setting.task(mean=0.0)), GUESSES),
  )
  return (
    Panel(left, STEP, RISK, (*curves, _gd_over_steps(curves)), y_scale='log'),
    Panel(right, axis, f'{RISK} at the end', finals),
  )


# Figure 5


def _yq(mean: float) -> Point:
  """yq-LSA trained as in the paper."""
  if mean == 2:  # the one whose alignment with gradient descent is followed
    return point(_YQ_PAPER)
  return point(_YQ, task__prior_mean=mean)


def _figure_5(runs: Runs) -> tuple[Panel, ...]:
  curves = [
    _curve(runs, _yq(mean), f'w* = ({mean:g}, …, {mean:g})', colour)
    for mean, colour in PRIORS.items()
  ]
  curves.append(
    _curve(runs, point(_YQ_CONVERGED), f'w* = (2, …, 2), {CONVERGED}', PURPLE)
  )
  return (
    Panel('a', STEP, RISK, (*curves, _gd_over_steps(curves)), y_scale='log'),
    *_alignment(runs),
  )


def _alignment(runs: Runs) -> list[Panel]:
  """Appendix C.2: how near the model is to gradient descent on the same prompts."""
  runs_of = {
    'paper': (VERMILION, point(_YQ_PAPER)),
    CONVERGED: (PURPLE, point(_YQ_CONVERGED)),
  }
  found = {
    label: (colour, *_alignments(runs[at])) for label, (colour, at) in runs_of.items()
  }
  panels = []
  for key, (axis, scale, sampled, exact_name, exact) in zip(
    'bcd', _ALIGNMENTS, strict=True
  ):
    shown = []
    for label, (colour, steps, seeds) in found.items():
      values = {
        f'{label}: {exact_name}': ('line', exact),
        f'{label}: sampled': ('dots', sampled),
      }
      for name, (kind, value) in values.items():
        y = [[value(one) for one in seed] for seed in seeds]
        shown.append(series(name, kind, colour, steps, y))
    panels.append(Panel(key, STEP, axis, tuple(shown), y_scale=scale))
  return panels


# axis, its scale, what is sampled, the name of what is exact, and what it is
_ALIGNMENTS: tuple[tuple[str, str, Callable, str, Callable], ...] = (
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


def _alignments(rows: list[dict[str, Any]]) -> tuple[list[int], list[list[Any]]]:
  """The kept steps, and for each seed the alignment with gradient descent at these."""
  task = setting.task()
  gd = estimators.gradient_descent(task)
  every = -(-rows[0]['step'] // _YQ_PAPER.checkpoints)
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


# Beyond the paper: the context length


def _default(name: str, heads: int = 1, **task: Any) -> Point:
  """A model whose training converges; `task` has the fields that are not default."""
  fields = {f'task__{field}': value for field, value in task.items()}
  if name == 'yq_lsa' and not fields:
    return point(_YQ_CONVERGED)
  if name == 'multi_head_lsa':
    fields['model__num_heads'] = heads
  return point(Study(name, ''), **fields)


# label: (colour, config, heads)
MODELS = {
  'LSA, 1 head': (VERMILION, 'multi_head_lsa', 1),
  'LSA, 11 heads': (BLUE, 'multi_head_lsa', 11),
  'yq-LSA': (GREEN, 'yq_lsa', 1),
  'LTB': (PURPLE, 'ltb', 1),
}


def _at_context(label: str, c: int) -> Point:
  _, config, heads = MODELS[label]
  other = {} if c == setting.CONTEXT_LENGTH else {'context_length': c}
  return _default(config, heads, **other)


def _context(runs: Runs) -> tuple[Panel, ...]:
  def gd_at(contexts: Sequence[int]) -> Float[np.ndarray, ' c']:
    return np.array([setting.gd_risk(setting.task(c)) for c in contexts])

  def trained(label: str, less: Any = 0.0) -> Series:
    points = {c: _at_context(label, c) for c in CONTEXTS}
    return _dots(runs, f'{label}, trained', MODELS[label][0], points, less)

  gd = gd_at(ALL_CONTEXTS)
  many = np.array([setting.best_risk(setting.task(c)) for c in ALL_CONTEXTS])
  one = np.array([limit(1, c, NORM) for c in ONE_HEAD_CONTEXTS])
  slope = [2 * NORM / (c * setting.NUM_FEATURES + 2) for c in ALL_CONTEXTS]
  risks = (
    series('1 head, exact infimum', 'line', VERMILION, ONE_HEAD_CONTEXTS, one),
    series('11 heads, exact infimum', 'line', BLUE, ALL_CONTEXTS, many),
    series(GD, 'dashed', BLACK, ALL_CONTEXTS, gd),
    *(trained(label) for label in MODELS),
  )
  gap = one - gd_at(ONE_HEAD_CONTEXTS)
  gaps = (
    series('1 head, exact', 'line', VERMILION, ONE_HEAD_CONTEXTS, gap),
    series('11 heads, exact', 'line', BLUE, ALL_CONTEXTS, many - gd),
    series('2|w*|²/(Cd + 2)', 'dashed', BLACK, ALL_CONTEXTS, slope),
    *(trained(label, gd_at(CONTEXTS)) for label in MODELS if label.startswith('LSA')),
  )
  axis = 'context length C'
  return (
    Panel('a', axis, f'{RISK} at the end', risks, 'log', 'log'),
    Panel('b', axis, 'risk above gradient descent', gaps, 'log', 'log'),
  )


# Beyond the paper: features of unequal variance

SMALL_MEAN = 0.5


def _at_ratio(config: str, heads: int, ratio: float) -> Point:
  covariance = tuple(map(tuple, setting.stretched(ratio).tolist()))
  return _default(config, heads, prior_mean=SMALL_MEAN, feature_covariance=covariance)


def _covariance(runs: Runs) -> tuple[Panel, ...]:
  tasks = [
    setting.task(mean=SMALL_MEAN, feature_covariance=setting.stretched(ratio))
    for ratio in ALL_RATIOS
  ]

  def line(name: str, kind: str, colour: str, risk: Callable[[Any], float]) -> Series:
    return series(name, kind, colour, ALL_RATIOS, [risk(task) for task in tasks])

  def trained(label: str) -> Series:
    colour, config, heads = MODELS[label]
    points = {ratio: _at_ratio(config, heads, ratio) for ratio in RATIOS}
    return _dots(runs, f'{label}, trained', colour, points)

  risks = (
    line('GD, best step size', 'dashed', BLACK, setting.gd_risk),
    line('11 heads, exact infimum', 'line', BLUE, setting.best_risk),
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


# Beyond the paper: a shift at test time

SHIFT_CONTEXTS = 5, 7, 10, 14, 20, 28, 40, 56, 80
SHIFT_MEANS = 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0
SHIFT_SCALES = 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5
SHIFT_PROMPTS = 16384


class _Shift(NamedTuple):
  """One way in which the test differs from the training."""

  axis: str
  x_scale: str
  values: tuple
  task: Callable[[Any], Any]
  prompt: Callable[[Prompt, Any], Prompt]  # from one with the longest context


def _first(prompt: Prompt, c: int) -> Prompt:
  return dataclasses.replace(prompt, x=prompt.x[:, :c], y=prompt.y[:, :c])


def _moved(prompt: Prompt, mean: float) -> Prompt:
  prompt, move = _first(prompt, setting.CONTEXT_LENGTH), mean - setting.PRIOR_MEAN
  return dataclasses.replace(
    prompt,
    y=prompt.y + move * prompt.x.sum(axis=-1),
    y_query=prompt.y_query + move * prompt.x_query.sum(axis=-1),
  )


def _scaled(prompt: Prompt, scale: float) -> Prompt:
  prompt = _first(prompt, setting.CONTEXT_LENGTH)
  return jax.tree.map(lambda leaf: leaf * scale, prompt)


_SHIFTS = (
  _Shift('context length C at test', 'log', SHIFT_CONTEXTS, setting.task, _first),
  _Shift(
    'each entry of w* at test',
    'linear',
    SHIFT_MEANS,
    lambda mean: setting.task(mean=mean),
    _moved,
  ),
  _Shift(
    'scale of the features at test',
    'linear',
    SHIFT_SCALES,
    lambda scale: setting.task(
      feature_covariance=scale**2 * np.eye(setting.NUM_FEATURES)
    ),
    _scaled,
  ),
)


def _shift(runs: Runs) -> tuple[Panel, ...]:
  trained = {
    label: [
      zoo.load(row['workdir']).model
      for row in runs[_at_context(label, setting.CONTEXT_LENGTH)]
    ]
    for label in MODELS
  }
  drawn = setting.task(max(SHIFT_CONTEXTS)).sample(jax.random.key(0), SHIFT_PROMPTS)
  panels = []
  for key, shift in zip('abc', _SHIFTS, strict=True):
    tasks = [shift.task(value) for value in shift.values]
    # Every second one is sampled too: enough to see that they agree.
    sampled = [
      _squared_errors([models[0] for models in trained.values()], prompt)
      for prompt in (shift.prompt(drawn, value) for value in shift.values[::2])
    ]
    shown = []
    for index, (label, models) in enumerate(trained.items()):
      colour = MODELS[label][0]
      exact = [[theory.exact_risk(model, task) for task in tasks] for model in models]
      shown.append(series(f'{label}, exact', 'curve', colour, shift.values, exact))
      errors = np.array([squares[index] for squares in sampled])
      mean = errors.mean(axis=1)
      stderr = errors.std(axis=1) / math.sqrt(SHIFT_PROMPTS)
      y = [mean - stderr, mean, mean + stderr]
      shown.append(series(f'{label}, sampled', 'dots', colour, shift.values[::2], y))
    best = [setting.gd_risk(task) for task in tasks]
    shown.append(series('GD tuned to the test', 'dashed', BLACK, shift.values, best))
    panels.append(Panel(key, shift.axis, RISK, tuple(shown), shift.x_scale, 'log'))
  return tuple(panels)


def _squared_errors(models: list[Any], prompt: Prompt) -> Float[np.ndarray, 'm b']:
  """Of each model on each prompt, float64."""
  graphs, states = zip(*map(nnx.split, models), strict=True)
  return np.asarray(_all_squared_errors(graphs, states, prompt), np.float64)


@functools.partial(jax.jit, static_argnums=0)  # all models in one program
def _all_squared_errors(graphs: Any, states: Any, prompt: Prompt) -> list[Array]:
  models = (nnx.merge(*parts) for parts in zip(graphs, states, strict=True))
  return [jnp.square(model(prompt) - prompt.y_query) for model in models]


FIGURES = {
  '1': Figure(
    'LSA does not reach gradient descent',
    'Risk of LSA, which has one head and the initial guess 0, while it trains. Prior '
    'mean w* = (2, …, 2), d = C = 10, trained as in the paper (Adam 5e-4, 5000 steps '
    'of 2048 prompts), as are all models of figures 1 to 4.',
    (point(_LSA),),
    _figure_1,
  ),
  '2': Figure(
    'More heads help, up to d = 10 of them',
    'Multi-head LSA with the initial guess 0 and w* = (2, …, 2): (a) the exact risk '
    'while it trains; (b) at the end, over the exact infimum for that number of heads.',
    tuple(_heads(h) for h in HEADS),
    _figure_2,
  ),
  '3': Figure(
    'The gap grows linearly with |w*|²',
    'Multi-head LSA with the initial guess 0: (a) the exact risk of 11 heads while '
    'they train; (b) at the end, over the infimum, whose slope is 1/51; (c) the same '
    'beside one head.',
    tuple(_heads(h, n) for n in NORMS for h in (11, 1)),
    _figure_3,
  ),
  '4': Figure(
    'The gap grows linearly with the error of the guess',
    '11 heads, w* = 0, and an initial guess g·x_q + β that is not 0: the exact risk '
    'while they train, and at the end over the infimum, whose slope is 1/51 for both.',
    tuple(
      _heads(11, norm=0.0, **{field: square})
      for field in ('guess', 'bias')
      for square in GUESSES
    ),
    _figure_4,
  ),
  '5': Figure(
    'yq-LSA becomes one step of gradient descent',
    'yq-LSA, whose initial guess is trained: (a) the exact risk while it trains; '
    '(b, c, d) how far it is from one step of gradient descent from w* = (2, …, 2) on '
    'the same prompts. The root mean squares are exact; what is sampled are means, as '
    'in the paper. At the rate of the paper, 5e-4, Adam cannot carry the guess from 0 '
    'to 2 in time; at 5e-3, decaying to 0, it can.',
    (*(_yq(mean) for mean in PRIORS), point(_YQ_CONVERGED)),
    _figure_5,
  ),
  'context': Figure(
    'With longer contexts the gap closes',
    'w* = (2, …, 2), trained at the rate 5e-3, decaying to 0: (a) the risk against the '
    'number of examples C; (b) what is left above gradient descent, which falls like '
    '1/C. yq-LSA and LTB coincide.',
    tuple(_at_context(label, c) for label in MODELS for c in CONTEXTS),
    _context,
  ),
  'covariance': Figure(
    'With unequal features gradient descent is no bound',
    'Feature variances in geometric progression, of mean 1; each entry of w* is 0.5. '
    'The best step is a matrix, which attention can learn.',
    tuple(
      _at_ratio(config, heads, ratio)
      for _, config, heads in (MODELS['LSA, 11 heads'], MODELS['yq-LSA'])
      for ratio in RATIOS
    ),
    _covariance,
  ),
  'shift': Figure(
    'What was learned, on other tasks',
    'Models trained at C = 10, w* = (2, …, 2) and features of variance 1, tested '
    f'elsewhere: exact, and sampled on {SHIFT_PROMPTS} prompts with one standard '
    'error. yq-LSA and LTB coincide.',
    tuple(_at_context(label, setting.CONTEXT_LENGTH) for label in MODELS),
    _shift,
  ),
}
