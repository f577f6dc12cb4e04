"""Numbers of instruments on small models, kept in `tests/data/probing/golden.json`.

They say whether a change of code changes a number. They are no truths: those are in the
other tests. `python -m tests.probing.golden` writes them anew, which a commit should
only do if it says why they change.
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import zoo
from tests.compiled import built
from tests.probing.models import biased, induction, recall, sample
from tests.settings import isotropic
from zoo import probing

FILE = pathlib.Path(__file__).parents[1] / 'data' / 'probing' / 'golden.json'
_D, _C = 3, 4
_TASK = isotropic(_D, _C, prior_mean=np.array([1.0, -0.5, 2.0]), noise_std=0.3)

Numbers = dict[str, float | None]


@functools.cache
def _transformer() -> Any:
  """A transformer of random weights, for regression."""
  return built(
    lambda: zoo.models.Transformer(
      _D, _C, num_layers=2, width=8, num_heads=2, rngs=nnx.Rngs(0)
    )
  )


@functools.cache
def _noisy_induction() -> Any:
  """The heads of `induction` with noise, so that no share is 0 or 1."""
  model = nnx.clone(induction(2, 2)[0])
  generator = np.random.default_rng(0)
  for layer in model.layers:
    for part in (layer.mixer.value, layer.mixer.out):
      noise = generator.normal(size=part.kernel.shape)
      part.kernel[...] = part.kernel[...] + jnp.asarray(0.15 * noise, jnp.float32)
  return model


def _pair() -> tuple[Any, Any]:
  task = recall(2, 2)
  clean = sample(task, jax.random.key(0), 64)
  return clean, task.redraw(jax.random.key(1), clean, 'inputs')


def _of_rows(rows: Any) -> Numbers:
  """The numbers of a table by row and column."""
  return {
    f'{i} {name}': float(value)
    for i, record in enumerate(rows.records())
    for name, value in record.items()
    if isinstance(value, int | float)
  }


def _circuit() -> Numbers:
  found = probing.circuit(
    _noisy_induction(), recall(2, 2), num_prompts=64, num_searches=1
  )
  names = 'recovered', 'random', 'without', 'clean', 'corrupt', 'gap'
  ends: Numbers = {name: getattr(found, name).mean for name in names}
  sizes: Numbers = {'kept': len(found.kept), 'edges': len(found.edges)}
  # Edges of equal scores may change places.
  scores = {
    f'{edge.sender} to {edge.receiver}': edge.score.mean for edge in found.edges
  }
  return ends | sizes | scores


def _strategies() -> Numbers:
  baselines = _TASK.baselines()
  known = {name: baselines[name] for name in ('ridge', 'gd', 'zero')}
  found = probing.strategies(_transformer(), _TASK, known, num_prompts=128)
  assert found.by_prompt is not None
  return _of_rows(found.rows) | {'power': found.by_prompt.power}


def _elimination() -> Numbers:
  baselines = _TASK.baselines()
  known = {name: baselines[name] for name in ('ridge', 'gd', 'averaging')}

  def between(prompt: zoo.Prompt) -> Any:
    return 0.7 * known['ridge'](prompt) + 0.3 * known['gd'](prompt)

  found = probing.elimination(between, _TASK, known, 2048, num_telling=32)
  assert found.telling is not None
  telling = _of_rows(found.telling.rows)
  return _of_rows(found.rows) | {f'telling {name}': telling[name] for name in telling}


def _lens() -> Numbers:
  rows = probing.lens(_transformer(), _TASK, num_prompts=128).rows
  # Before the first layer tokens span few directions, and the fitted map is rounding.
  return _of_rows(probing.Rows(rows[1:]))


def _head_scores() -> Numbers:
  clean = sample(recall(2, 2), jax.random.key(0), 512)
  return _of_rows(probing.head_scores(_noisy_induction(), clean))


def _heads() -> Numbers:
  return _of_rows(probing.heads(biased(), _TASK))


def _weights_of_heads() -> Numbers:
  model = zoo.models.Transformer(
    _D, _C, num_outputs=4, num_layers=1, width=16, num_heads=2, rngs=nnx.Rngs(0)
  )
  numbers: Numbers = {}
  for head in range(2):
    at = model, 0, head
    numbers[f'copying {head}'] = probing.copying_score(*at)
    numbers[f'ov {head}'] = float(np.square(probing.ov(*at)).sum())
    numbers[f'qk {head}'] = float(np.square(probing.qk(*at)).sum())
  return numbers


def _task_vectors() -> Numbers:
  found = probing.task_vectors(_transformer(), _TASK, num_prompts=2)
  ends = {'in_context': found.in_context.mean, 'without': found.without.mean}
  return _of_rows(found.rows) | ends


def _coefficient() -> Numbers:
  found = probing.local_learning_coefficient(
    biased(), _TASK, _square, num_prompts=64, num_steps=100, step_size=1e-7
  )
  return {
    'mean': found.value.mean,
    'stderr': found.value.stderr,
    'loss': found.loss,
    'accepted': found.accepted,
  }


def _square(model: Any, prompt: zoo.Prompt) -> Any:
  return jnp.square(model(prompt) - prompt.y_query)


def _probe() -> Numbers:
  only = 'algorithm', 'risks', 'alignment', 'guess', 'heads'
  report = probing.probe(biased(), _TASK, num_prompts=128, only=only)
  return dict(_leaves('', json.loads(report.to_json())))


def _leaves(name: str, value: Any) -> list[tuple[str, float]]:
  """The numbers of JSON, each with its path."""
  if isinstance(value, dict | list):
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for key, part in parts for leaf in _leaves(f'{name}.{key}', part)]
  return [(name, float(value))] if isinstance(value, int | float) else []


def _effects(**arguments: Any) -> Numbers:
  found = probing.effects(_noisy_induction(), recall(2, 2), *_pair(), **arguments)
  return _of_rows(found.rows)


def _path_effects() -> Numbers:
  found = probing.path_effects(
    _noisy_induction(), recall(2, 2), *_pair(), 'layers.1.mixer.key'
  )
  return _of_rows(found.rows)


INSTRUMENTS: dict[str, Callable[[], Numbers]] = {
  'circuit': _circuit,
  'strategies': _strategies,
  'elimination': _elimination,
  'lens': _lens,
  'head_scores': _head_scores,
  'heads': _heads,
  'qk, ov and copying_score': _weights_of_heads,
  'task_vectors': _task_vectors,
  'local_learning_coefficient': _coefficient,
  'probe': _probe,
  'effects': functools.partial(_effects, sites=['layers.0.mixer.heads'], heads=True),
  'effects, integrated': functools.partial(_effects, method='integrated'),
  'path_effects': _path_effects,
}


def as_kept(numbers: Numbers) -> Numbers:
  """The numbers to six digits, with None for those that are not finite."""
  return {
    name: float(f'{value:.6g}') if value is not None and math.isfinite(value) else None
    for name, value in numbers.items()
  }


if __name__ == '__main__':
  FILE.parent.mkdir(exist_ok=True)
  found = {name: as_kept(read()) for name, read in INSTRUMENTS.items()}
  FILE.write_text(json.dumps(found, indent=1) + '\n')
