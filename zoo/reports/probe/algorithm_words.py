"""Which algorithm at which layer, in words."""

from __future__ import annotations

from zoo.probing.nearest.by_layer import Match, Readout
from zoo.probing.nearest.context import SHARE_ROUNDING
from zoo.probing.verdicts import percent

# These algorithms take steps; all others are baselines of the task.
NAMES = {
  'gd': 'gradient descent',
  'preconditioned_gd': 'preconditioned descent',
  'gd_plus_plus': 'GD++',
  'chebyshev': "Chebyshev's steps",
  'richardson': 'any steps (Richardson)',
  'newton': 'iterative Newton',
  'conjugate_gradients': 'conjugate gradients',
}
_HALF = 0.5  # An algorithm that is farther than this is not called near.


def name_layer_algorithms(readout: Readout) -> str:
  """Returns a sentence with the algorithm nearest to the last layer.

  It also says whether the nearest number of steps of this algorithm rises from layer to
  layer. It compares only layers where this algorithm is the nearest, or is not told
  apart from the nearest. It says that the number rises only if the ranges that contain
  it in 95 % of bootstrap samples of prompts do not overlap for the first and the last
  of these layers.

  The parameters of an algorithm, such as the size of its steps, are fitted anew for
  each layer and each number of steps, and the intervals take them as given. So a number
  that rises says that later layers are nearer to the result of more steps. It does not
  show that each layer takes a step: ridge regression whose λ falls from layer to layer
  may be described in the same way.

  Args:
    readout: The distances, one of the two of `LayerAlgorithms`.

  Returns:
    The sentence.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.Transformer(2, 4, num_layers=1, width=8, rngs=nnx.Rngs(0))
    >>> found = zoo.probing.layer_algorithms(model, task, num_prompts=32, num_steps=1)
    >>> from zoo.reports.probe import name_layer_algorithms
    >>> sentence = name_layer_algorithms(found.own)
  """
  last = len(readout.nearest) - 1
  alike = readout.nearest[last]
  name = min(alike, key=lambda name: round(_left(readout.matches[name], last)[0], 8))
  match = readout.matches[name]
  left = _left(match, last)
  nearest = _at(name, match)
  said = f'After the last layer, {last}, the nearest algorithm is {nearest}'
  if left[0] > _HALF:
    said = f'No algorithm is near the last layer, {last}; the nearest is {nearest}'
  said += f', which is {_shown(*left)} of the variation over contexts away from it'
  others = []
  for key in alike:
    if key != name:
      away = _shown(*_left(readout.matches[key], last))
      others.append(NAMES.get(key, f"the task's {key}") + f' at {away}')
  if others:
    said += f'; not told apart from it: {", ".join(others)}'
  near = [layer for layer in range(last + 1) if name in readout.nearest[layer]]
  first = near[0]
  if match.high[first] < match.low[last]:
    said += (
      f'. Its nearest number of steps rises from {_steps(match, first)} after layer '
      f'{first} to {_steps(match, last)} after layer {last}'
    )
  return f'{said}.'


def _left(match: Match, layer: int) -> tuple[float, float]:
  """Returns the distance at the nearest number of steps, and its standard error."""
  steps = int(match.nearest[layer])
  return float(match.unexplained[layer, steps]), float(match.stderr[layer, steps])


def _shown(distance: float, stderr: float) -> str:
  """Returns a distance in percent with its standard error, which is no interval."""
  if distance < SHARE_ROUNDING:
    return percent(0.0)
  return f'{percent(distance)} (s.e. {percent(stderr)})'


def _at(name: str, match: Match) -> str:
  """Returns the algorithm at the last layer's nearest number of steps, in words."""
  if name not in NAMES:
    return f"the task's {name}"
  return f'{NAMES[name]} with {_steps(match, -1, " steps")}'


def _steps(match: Match, layer: int, unit: str = '') -> str:
  """Returns the nearest number of steps, with its range in 95 % of bootstrap samples.

  The largest number that was tried is only a lower bound.
  """
  nearest, low, high = (
    int(steps[layer]) for steps in (match.nearest, match.low, match.high)
  )
  most = match.unexplained.shape[1] - 1
  said = f'at least {nearest}' if nearest == most else str(nearest)
  said += unit.removesuffix('s') if said == '1' else unit
  end = f'at least {high}' if high == most else str(high)
  return said if low == high else f'{said} ({low} to {end} in 95 % of bootstraps)'
