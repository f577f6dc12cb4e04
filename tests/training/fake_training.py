"""Programs of NumPy, which compile nothing: for tests of what the loop does with them.

They have the states, shapes and shardings of real programs; only what is compiled is
replaced. A model descends the distance of each number in its arrays to a target, which
moves from step to step, in float32; its loss is that of the first number of each array.
So it has the same bits however the steps are cut into calls, and side by side as alone.
It diverges at large learning rates, and where the prior mean is large.
"""

import functools
import json
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from zoo.config.mesh import make_mesh, on_mesh
from zoo.config.validation import Config, build_task, to_json
from zoo.core.learning_rule import LearningRule
from zoo.measure.comparison import Comparison, without_errors
from zoo.training import run, sweeps
from zoo.training.compilation import Training
from zoo.training.evaluation import Evaluation
from zoo.training.many import stack_abstract
from zoo.training.objective import Numbers
from zoo.training.shardings import State
from zoo.training.step import abstract_state
from zoo.training.summary import num_compared

_KEPT: dict[str, tuple[State, State]] = {}


def make_fake(configs: Sequence[Config], stacked: bool = True) -> Training:
  """What trains a model for each config, `stacked` along a first axis."""
  config = configs[0]
  mesh = make_mesh(config)
  graphs, abstract = _abstract(config)
  if stacked:
    abstract = stack_abstract(abstract, len(configs), None)
  steps, evaluation = _Steps(configs, abstract, stacked), _Evaluation(configs, stacked)
  return Training(
    config=config,
    task=build_task(config),
    mesh=mesh,
    graph=graphs['model'],
    abstract=abstract,
    uses_statistics=False,
    init=steps.init,
    steps=steps,
    key=_key(),
    numbers=Numbers(build_task(config), None),
    compare=lambda state: _compare(configs) if stacked else _compare(configs)[0],
    evaluation=Evaluation(
      sample=evaluation.sample,
      rule=evaluation.rule,
      exact=lambda rule: rule.init.tolist() if stacked else rule.init.tolist()[0],
      inputs=None,
      num_prompts=evaluation.num_prompts,
    ),
    flops=12,
  )


def patch(monkeypatch) -> None:
  """Lets runs and sweeps train with fake programs."""
  fake = {
    'make_training': lambda config, mesh: make_fake([config], False),
    'compile_training': lambda training: training,
    'check_agreement': lambda *inputs: None,
  }
  for name, function in fake.items():
    monkeypatch.setattr(run, name, function)
  monkeypatch.setattr(sweeps, 'make_training', fake['make_training'])
  monkeypatch.setattr(sweeps, 'compile_many', make_fake)


def _compare(configs: Sequence[Config]) -> list[Comparison | None]:
  """Each model's loss, with a baseline that loses as much as the noise of its task."""
  comparisons: list[Any] = []
  for config in configs:
    if num_compared(config) < 2:
      comparisons.append(None)
      continue
    of_model = without_errors([2.0, 1.0])
    noise = float(config.task.get('noise_std', 0.0))
    bayes: Any = {**without_errors([2.0, noise]), 'difference': 1 - noise}
    comparisons.append(
      {'model': of_model, 'bayes': {**bayes, 'difference_stderr': 0.25}}
    )
  return comparisons


@functools.cache
def _key() -> Any:
  return jax.random.key(0)


def _abstract(config: Config) -> tuple[State, State]:
  """The graphs and the state of a config, as shapes, kept by what these depend on."""
  sizes = {name: value for name, value in config.task.items() if type(value) is int}
  whole: Any = config.optimizer
  optimizer = {name: v for name, v in whole.items() if name != 'learning_rate'}
  parts = config.model, optimizer, config.mesh
  key = json.dumps([sizes, *parts], default=to_json)
  if key not in _KEPT:
    mesh = make_mesh(config)
    with on_mesh(mesh, config):
      _KEPT[key] = abstract_state(config, mesh)
  return _KEPT[key]


class _Steps:
  """Stands for the compiled steps, and for the compiled initialization."""

  def __init__(self, configs, abstract, stacked):
    self._abstract, self._stacked = abstract, stacked
    self._wanted = jax.tree.leaves(abstract)
    self._numbers = [_Numbers(config) for config in configs]

  def init(self) -> State:
    leaves = []
    for i, wanted in enumerate(self._wanted):
      shape = wanted.shape[1:] if self._stacked else wanted.shape
      starts = [numbers.start(i, shape) for numbers in self._numbers]
      leaves.append(np.stack(starts) if self._stacked else starts[0])
    return self._put(leaves)

  def __call__(self, state, key, start, stop, numbers) -> tuple[State, dict[str, Any]]:
    leaves = _by_model(state, self._stacked)
    for array in jax.tree.leaves(state):  # which is donated
      array.delete()
    n, step = len(self._numbers), int(start)
    metrics = {
      'loss': np.ones(n, 'f'),
      'grad_norm': np.ones(n, 'f'),
      'finite': np.ones(n, bool),
    }
    while step < int(stop) and metrics['finite'].any():
      for m, of_model in enumerate(self._numbers):
        loss = of_model.step([leaf[m, ...] for leaf in leaves], step)
        metrics['loss'][m], metrics['grad_norm'][m] = loss, np.sqrt(loss)
      metrics['finite'] = np.isfinite(metrics['loss'])
      step += 1
    for leaf in leaves:
      metrics['finite'] &= np.isfinite(leaf).reshape(n, -1).all(axis=1)
    if not self._stacked:
      leaves = [leaf[0] for leaf in leaves]
      metrics = {name: value[0] for name, value in metrics.items()}
    return self._put(leaves), jax.device_put({**metrics, 'step': np.int32(step)})

  def _put(self, leaves: Sequence[np.ndarray]) -> State:
    put = [
      jax.device_put(np.asarray(leaf, wanted.dtype), wanted.sharding)
      for leaf, wanted in zip(leaves, self._wanted, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(self._abstract), put)


def _by_model(state: Any, stacked: bool) -> list[np.ndarray]:
  """Copies of all arrays, whose first axis is that of the models."""
  leaves = [np.array(leaf) for leaf in jax.tree.leaves(jax.device_get(state))]
  return leaves if stacked else [leaf[None] for leaf in leaves]


class _Numbers:
  """What a model is trained to, by its config."""

  def __init__(self, config: Config):
    self._seed, self._eval_seed = config.seed, config.eval.seed
    self._rate = np.float32(config.optimizer.learning_rate)
    self._mean = np.float32(np.mean(config.task.get('prior_mean', 0.0)))
    self._noise = np.float32(1 + config.task.get('noise_std', 0.0))

  def start(self, i: int, shape: tuple[int, ...]) -> np.ndarray:
    """The i-th array at step 0."""
    size = int(np.prod(shape))
    return np.random.default_rng((self._seed, i)).random(size, 'f').reshape(shape)

  def step(self, leaves: Sequence[np.ndarray], step: int) -> np.float32:
    """Updates the arrays in place; the loss before, also the gradient's square."""
    target, loss = self._mean + self._draw(step), np.float32(0)
    with np.errstate(all='ignore'):
      for leaf in leaves:
        if leaf.dtype.kind == 'f':
          gradient = leaf - target
          loss = loss + np.square(gradient.flat[0])
          leaf -= self._rate * gradient
        elif leaf.dtype.kind in 'iu':
          leaf += leaf.dtype.type(1)
    return loss

  def risk(self, leaves: Sequence[np.ndarray], draws: Any) -> Any:
    """The loss of each of these prompts."""
    with np.errstate(all='ignore'):
      at = np.float32(sum(leaf.flat[0] for leaf in leaves) / len(leaves))
      return np.square(at - self._mean - self._noise * draws)

  def held_out(self, num_batches: int, batch_size: int) -> np.ndarray:
    rng = np.random.default_rng((self._eval_seed, 10**6))
    return rng.standard_normal((num_batches, batch_size), 'f')

  def _draw(self, step: int) -> np.float32:
    seeds = f'{self._seed},{step}'.encode()
    return self._noise * np.float32(zlib.crc32(seeds) / 2**32)


class _Evaluation:
  """Measures the mean over all arrays; less is possible after more examples."""

  def __init__(self, configs: Sequence[Config], stacked: bool):
    self._stacked, config = stacked, configs[0]
    self._sizes = config.eval.num_batches, config.train.batch_size
    self.num_prompts = self._sizes[0] * self._sizes[1]
    self._numbers = [_Numbers(config) for config in configs]
    optima = [1 / config.task.get('context_length', 1) for config in configs]
    self.references = [(2 * optimum, optimum) for optimum in optima]

  def rule(self, model_state: Any) -> Any:
    rules = [
      optimum + float(numbers.risk(leaves, np.float32(0)))
      for (_, optimum), (numbers, leaves) in zip(
        self.references, self._models(model_state), strict=True
      )
    ]
    exact = np.array(rules)
    return LearningRule(
      exact, np.zeros((exact.size, 1, 1)), np.zeros(()), np.zeros((1, 1))
    )

  def sample(self, model_state: Any, inputs: None) -> Any:
    models = self._models(model_state)
    losses = np.stack(
      [
        numbers.risk(leaves, numbers.held_out(*self._sizes))
        for numbers, leaves in models
      ]
    )
    with np.errstate(all='ignore'):
      means = losses.mean(axis=2), np.square(losses).mean(axis=2)
    return jax.device_put(
      {'model': means if self._stacked else (means[0][0], means[1][0])}
    )

  def _models(self, model_state: Any) -> list[tuple[Any, list[np.ndarray]]]:
    arrays = _by_model(model_state, self._stacked)
    return [
      (numbers, [leaf[m, ...] for leaf in arrays])
      for m, numbers in enumerate(self._numbers)
    ]
