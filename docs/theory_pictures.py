"""Draws the pictures of docs/concepts.md, docs/dynamics.md and docs/large_dimension.md.

python docs/theory_pictures.py docs/images

It takes some minutes, in which five transformers train.
"""

import math
import pathlib
import sys
import tempfile

import jax
import numpy as np
from flax import nnx
from programs import toys

import configs
import zoo
from studies.paper import asymptotic
from zoo.core.learning_rule import LearningRule
from zoo.models import LTB, YqLSA
from zoo.reports.plots import Panel, level, render_figure, series
from zoo.reports.style import (
  BLACK,
  BLUE,
  GREEN,
  ORANGE,
  PURPLE,
  VERMILION,
  Figure,
  in_style,
  legend_below,
)
from zoo.tasks import LinearRegression
from zoo.theory import best_step_size, dynamics, polynomial_optimum

_SCALES = np.geomspace(1e-3, 0.2, 6)


@in_style()
def draw_step() -> Figure:
  """One step of gradient descent from two guesses, on one prompt."""
  task = LinearRegression(1, 8, prior_mean=2.0, noise_std=0.5)
  prompt = task.sample(jax.random.key(13), batch_size=1)
  x, y = np.asarray(prompt.x)[0, :, 0], np.asarray(prompt.y)[0]
  query, target = float(prompt.x_query[0, 0]), float(prompt.y_query[0])
  ends = np.array([-2.0, 2.0])
  drawn = []
  for start, colour in ((0.0, ORANGE), (2.0, BLUE)):
    step = LearningRule.gradient_descent(np.array([start]), best_step_size(task))
    line = float(step.weights(prompt)[0, 0]) * ends
    drawn.append(series(f'the guess {start:g}', 'line', colour, ends, start * ends))
    drawn.append(
      series(f'one step from the guess {start:g}', 'line', colour, ends, line)
    )
  drawn.append(series('context examples', 'dots', BLACK, x, y))
  drawn.append(series('target of the query', 'dots', GREEN, [query], [target]))
  figure = render_figure((Panel('a', 'feature x', 'label y', tuple(drawn)),))
  (axes,) = figure.axes
  for line in axes.lines:
    name = str(line.get_label())
    if name.startswith('the guess'):
      line.set(marker='', linestyle='--', linewidth=0.9)
    elif name.startswith('one step'):
      line.set_marker('')
    elif name.startswith('target'):
      line.set(markerfacecolor=GREEN, markersize=8)
  legend_below(axes, figure.get_figwidth())
  return figure


def draw_guess_time() -> Figure:
  """The time to learn the guess, of flows and by the laws."""
  times = []
  for length, colours in ((0.5, (BLUE, VERMILION)), (2.0, (GREEN, PURPLE))):
    task = LinearRegression(5, 5, prior_mean=np.full(5, length / 5**0.5))
    for model, colour in zip((YqLSA, LTB), colours, strict=True):
      flow, law = guess_times(model, task)
      name = f'{"yq-LSA" if model is YqLSA else "LTB"}, |w*| = {length:g}'
      times.append(series(name, 'dots', colour, _SCALES, flow))
      times.append(series(f'{name}, law', 'line', colour, _SCALES, law))
  guess = Panel(
    'a', 'scale s of the initial weights', 'time until half of w*', tuple(times), 'log'
  )
  return render_figure((guess,))


def guess_times(
  model: type[YqLSA] | type[LTB], task: LinearRegression
) -> tuple[list[float], list[float]]:
  """When the guesses of flows reach half of w*, and what the law says."""
  starts = [
    model(task.num_features, init_scale=float(scale), rngs=nnx.Rngs(0))
    for scale in _SCALES
  ]
  laws = [dynamics.guess_time(start, task) for start in starts]
  at = np.linspace(0, 4 * max(laws), 200)
  flows = dynamics.gradient_flows(starts, task, at)
  half = np.sum(task.prior_mean**2) / 2
  reached = [
    float(np.interp(half, np.maximum.accumulate(flow.guesses @ task.prior_mean), at))
    for flow in flows
  ]
  return reached, laws


def draw_toys() -> Figure:
  """A factor that is held, and a mechanism that does not last."""
  return render_figure((_clamping(), _transience()))


def _clamping() -> Panel:
  at = np.geomspace(0.1, 300, 120)
  start = np.full((3, 4), 0.02)
  held = start.copy()
  held[0] = 1
  free = toys.product_flow(start, np.ones(4), at)
  clamped = toys.product_flow(held, np.ones(4), at, clamped=0)
  drawn = (
    series('three factors', 'line', BLUE, at, free),
    series('one of them held', 'line', VERMILION, at, clamped),
  )
  return Panel('a', 'time', 'loss of the product', drawn, 'log')


def _transience() -> Panel:
  at = np.geomspace(1, 1e4, 120)
  start = [[0.3] * 3, [0.15] * 3]
  first, second = toys.competition_flow(start, [0.2, 0.01], 0.01, at).T
  drawn = (
    series('early mechanism', 'line', BLUE, at, first),
    series('late mechanism', 'line', VERMILION, at, second),
  )
  return Panel('b', 'time', 'own loss of each mechanism', drawn, 'log')


def draw_large_dimension() -> Figure:
  """Double descent, and what depth leaves."""
  tau = np.geomspace(0.05, 20, 81) + 1e-9
  limits = [asymptotic.pretraining(10, 0.5, float(ratio), 0.01) for ratio in tau]
  icl, idg = np.minimum(np.transpose(limits), 10)
  ends = asymptotic.pretraining(10, 0.5, math.inf, 0.01)
  ratios = [0.5, 1.0, 2.0, 4.0]
  drawn = [
    series('new tasks', 'line', BLUE, tau, icl),
    series('tasks of the pool', 'line', VERMILION, tau, idg),
    level('new tasks, τ → ∞', ends.icl, tau),
    level('the pool, τ → ∞', ends.idg, tau),
  ]
  descent = Panel(
    'a: C = 10 d, d/2 tasks', 'prompts n / d²', 'error', tuple(drawn), 'log', 'log'
  )
  steps = np.arange(1, 7)
  depth = []
  for ratio, colour in zip(ratios, (BLUE, GREEN, VERMILION, PURPLE), strict=True):
    share = [asymptotic.depth_limit(ratio, int(k)) for k in steps]
    name = f'C = {ratio:g} d'
    depth.append(series(name, 'line', colour, steps, share))
    exact = [_finite(int(10 * ratio), int(k)) for k in steps]
    depth.append(series(f'{name}, d = 10', 'dots', colour, steps, exact))
  shares = Panel(
    'b', 'gradient steps', 'share of the risk left', tuple(depth), y_scale='log'
  )
  return render_figure((descent, shares))


def _finite(context_length: int, steps: int) -> float:
  """The share of the risk that is left with ten features, exactly."""
  return polynomial_optimum(LinearRegression(10, context_length), steps).risk / 10


def draw_softmax() -> Figure:
  """One trained layer of softmax attention, and what is known of it."""
  lengths = np.array([5, 10, 20, 40, 80])
  tasks = [LinearRegression(5, int(c)) for c in lengths]
  trained = [trained_softmax(int(c)) / 5 for c in lengths]
  small = [asymptotic.softmax_risk(task) / 5 for task in tasks]
  linear = [polynomial_optimum(task, 1).risk / 5 for task in tasks]
  limit = [asymptotic.depth_limit(float(c) / 5, 1) for c in lengths]
  print(np.round([trained, small, linear, limit], 4))
  ratios = lengths / 5
  drawn = (
    series('softmax, trained', 'dots', BLUE, ratios, trained),
    series('softmax, small weights', 'line', VERMILION, ratios, small),
    series('linear attention', 'line', GREEN, ratios, linear),
    series('both, d → ∞', 'line', PURPLE, ratios, limit),
  )
  panel = Panel('a', 'examples C / d', 'share of the risk left', drawn, 'log', 'log')
  return render_figure((panel,))


def trained_softmax(context_length: int) -> float:
  """The risk that a transformer of one layer of softmax attention reaches."""
  config = configs.get_config('transformer')
  config.task.context_length = context_length
  config.model.num_layers, config.model.num_heads, config.model.width = 1, 4, 32
  config.model.tokens, config.model.positions = 'joint', 'none'
  config.model.feed_forward, config.model.norm = 'none', 'none'
  config.objective.positions = 'query'
  config.train.num_steps, config.train.batch_size = 5000, 256
  config.optimizer.learning_rate = 3e-3
  config.eval.num_batches, config.eval.num_compared = 256, 0
  with tempfile.TemporaryDirectory() as folder:
    summary = zoo.train(config, folder)
  assert summary is not None
  risk = summary['eval_risk']
  assert risk is not None
  return risk


if __name__ == '__main__':
  folder = pathlib.Path(sys.argv[1])
  draw_step().savefig(folder / 'step.png')
  draw_guess_time().savefig(folder / 'guess_time.png')
  draw_toys().savefig(folder / 'toys.png')
  draw_large_dimension().savefig(folder / 'large_dimension.png')
  draw_softmax().savefig(folder / 'softmax.png')
