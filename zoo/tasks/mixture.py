"""Prompts that come each from one of several tasks."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Key

from zoo.core.errors import UserError, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.core.registry import TASKS, check_registered, create_task, parameters
from zoo.core.values import (
  arguments,
  derived,
  derived_size,
  leaf,
  set_field,
  size,
  static,
  value,
)
from zoo.tasks.base import BaseTask, register_task
from zoo.tasks.baselines import Examples
from zoo.tasks.posteriors import Posterior

_SIZES = 'num_features', 'context_length'
_MOST_LETTERS = 100_000
# The weight of a part, the name of its task, and the arguments.
_Part = tuple[float, str, dict[str, Any]]


@register_task('mixture')
class Mixture(BaseTask):
  """Prompts that come each from one of several tasks (Bai et al., arXiv 2306.04637).

  A model must find from the examples which of the parts it has before it, and so select
  an algorithm. The parts are registered tasks with the same sizes and the same kind of
  labels, which hold out no prompts. There is a baseline `bayes` if each part has a
  `posterior`, as linear, sparse and quadratic regression and pools have with noise,
  logistic and probit regression, and mixtures of these. `bayes_1` is the Bayes
  predictor of the first part alone.

  Prompts are those of `sample_one` of the parts, so that a mixture of linear regression
  alone has other prompts than the task alone, of the same distribution.

  The latents of a prompt are the number of its part, from 0, and those of every part,
  of which it shows one.
  """

  parts: str = static(
    default='linear_regression(noise_std=0.1) + linear_regression(noise_std=1.0)',
    holds=str,
    allowed='a sum of tasks, such as `0.3 * a(noise_std=0.1) + 0.7 * b`',
    about='The tasks with their arguments, and weights: a part is as probable as its '
    'share of all weights.',
  )
  num_features: int = size(default=5)
  context_length: int = size(default=10)
  tasks: Any = derived()  # a tuple of the parts
  weights: Any = derived()  # their probabilities, [k]
  num_outputs: int = derived_size()
  label_kind: str = derived_size()

  def __post_init__(self):
    parsed = _parse(self.parts)
    sizes = {'num_features': self.num_features, 'context_length': self.context_length}
    tasks = [_make(name, given, sizes) for _, name, given in parsed]
    first = tasks[0]
    wanted = sizes | {'num_outputs': first.num_outputs, 'label_kind': first.label_kind}
    for (_, name, _), task in zip(parsed, tasks, strict=True):
      if task.held_out() is not task:
        raise UserError(f'parts: {name} holds out some of its prompts; it stands alone')
      for field, one in wanted.items():
        if (found := getattr(task, field)) != one:
          raise UserError(
            f'parts: {field} of {name} is {found!r}; it must be {one!r}, as all parts '
            'have the same'
          )
      if _loss_of(task) is not _loss_of(first):
        raise UserError(f'parts: {name} has a loss of its own; all parts have the same')
    weights = np.array([weight for weight, _, _ in parsed])
    set_field(self, 'tasks', tuple(tasks))
    set_field(self, 'weights', weights / weights.sum())
    set_field(self, 'num_outputs', first.num_outputs)
    set_field(self, 'label_kind', first.label_kind)

  @classmethod
  def of(cls, *tasks: BaseTask, weights: Sequence[float] | None = None) -> Mixture:
    """The mixture of objects of registered tasks, equally probable without `weights`.

    Raises UserError for tasks of different sizes, of a class that is not registered, or
    with an argument that JSON cannot hold.
    """
    if not tasks or len(tasks) != len(weights or tasks):
      raise UserError(
        f'there are {len(tasks)} tasks and {len(weights or tasks)} weights; each task '
        'has one, and there must be a task'
      )
    for field in _SIZES:
      if len({*(found := [getattr(task, field) for task in tasks])}) > 1:
        raise UserError(
          f'the tasks have {field} = {", ".join(map(str, found))}; all parts of a '
          'mixture have the same'
        )
    terms = []
    for task, weight in zip(tasks, weights or [1.0] * len(tasks), strict=True):
      names = [name for name, cls in TASKS.items() if cls is type(task)]
      if not names:
        raise UserError(
          f'{type(task).__name__} is not registered as a task; register it, so that it '
          f'can be loaded by name; known: {", ".join(sorted(TASKS))}'
        )
      name = names[0]
      given = ', '.join(
        f'{key}={_plain(key, content)!r}'
        for key, content in arguments(task).items()
        if key not in _SIZES
      )
      terms.append(f'{float(weight)!r} * {name}({given})')
    first = tasks[0]
    return cls(' + '.join(terms), first.num_features, first.context_length)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    which_key, prompt_key = jax.random.split(key)
    which = jax.random.categorical(which_key, jnp.log(jnp.asarray(self.weights, float)))
    prompts = [task.sample_one(prompt_key) for task in self.tasks]
    latents = {'part': which, 'of_parts': tuple(one.latents for one in prompts)}
    if any(one.context_targets is not None for one in prompts):
      prompts = [
        one
        if one.context_targets is not None
        else dataclasses.replace(one, context_targets=one.y)
        for one in prompts
      ]
    prompts = [dataclasses.replace(one, latents=None) for one in prompts]
    # Over a batch, `lax.switch` would also draw all of them.
    prompt = jax.tree.map(lambda *ones: jnp.stack(ones)[which], *prompts)
    return dataclasses.replace(prompt, latents=latents)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    return self.tasks[0].loss(prediction, target)

  def mean_weights(self) -> Float[np.ndarray, ' d'] | None:
    means = [task.mean_weights() for task in self.tasks]
    if any(mean is None for mean in means):
      return None
    return self.weights @ np.stack(means)

  def posterior(self) -> Posterior | None:
    each = [task.posterior() for task in self.tasks]
    if any(one is None for one in each):
      return None
    return MixturePosterior(tuple(each), self.weights, self.label_kind)

  def baselines(self) -> dict[str, Predictor]:
    """The Bayes predictors of the mixture and of each part, and what all parts have."""
    found: dict[str, Predictor] = {}
    if (posterior := self.posterior()) is not None:
      found['bayes'] = posterior
    else:
      without = [type(one).__name__ for one in self.tasks if one.posterior() is None]
      logging.log_first_n(
        logging.WARNING,
        'there is no bayes of this mixture, since %s says nothing about how probable '
        'its prompts are; regression with noise does, linear or logistic',
        1,
        ' and '.join(without),
      )
    each = [task.baselines() for task in self.tasks]
    for i, own in enumerate(each, 1):
      if 'bayes' in own:
        found[f'bayes_{i}'] = own['bayes']
    for name, one in each[0].items():
      if name != 'bayes' and all(own.get(name) == one for own in each):
        found[name] = one
    return found

  def shifts(self) -> dict[str, Task]:
    """Each part alone, and longer contexts."""
    parts: dict[str, Task] = {f'part_{i}': task for i, task in enumerate(self.tasks, 1)}
    return parts | super().shifts()


@value
class MixturePosterior(Posterior):
  """The predictions of tasks, weighed by how probable each makes the examples.

  They are means of numbers, or logits, whose probabilities are weighed.
  """

  one_by_one = True  # as some of the parts are

  parts: tuple[Posterior, ...] = leaf()
  weights: Float[np.ndarray, ' k'] = leaf()
  label_kind: str = 'numbers'

  def weigh(self, given: Examples) -> tuple[Float[Array, ''], Float[Array, '*k']]:
    each = [part.weigh(given) for part in self.parts]
    densities, found = (jnp.stack(ones) for ones in zip(*each, strict=True))
    scores = jnp.log(jnp.asarray(self.weights, densities.dtype)) + densities
    density = logsumexp(scores)
    if self.label_kind == 'numbers':
      return density, jnp.dot(jax.nn.softmax(scores), found)
    if self.label_kind == 'classes':
      return density, logsumexp(scores[:, None] + jax.nn.log_softmax(found), axis=0)
    positive = logsumexp(scores + jax.nn.log_sigmoid(found))
    return density, positive - logsumexp(scores + jax.nn.log_sigmoid(-found))


def _plain(name: str, content: object) -> object:
  """The content of a task's field as a literal; raises UserError if it has none."""
  if isinstance(content, np.ndarray | np.generic | jax.Array):
    return np.asarray(content).tolist()
  if content is None or isinstance(content, bool | int | float | str | tuple | list):
    return content
  raise UserError(
    f'the field {name!r} is a {type(content).__name__}, which a mixture cannot name'
  )


def _loss_of(task: BaseTask) -> object:
  """The method of the loss of a task, of a mixture that of its parts."""
  return _loss_of(task.tasks[0]) if isinstance(task, Mixture) else type(task).loss


def _make(name: str, given: dict[str, Any], sizes: dict[str, int]) -> BaseTask:
  """A part, with the sizes of the mixture if its constructor takes them."""
  if repeated := sorted(given.keys() & sizes.keys()):
    raise UserError(f'parts: {name} has {repeated[0]}, which is that of the mixture')
  try:
    taken = parameters(TASKS[check_registered('task', name, TASKS)])
    own = {field: one for field, one in sizes.items() if field in taken}
    return create_task(name, **given, **own)
  except UserError as error:
    raise UserError(f'parts: {name}: {error}') from None


def _parse(text: object) -> list[_Part]:
  """The parts that a text names; raises UserError."""
  error = UserError(
    f'parts is {str(text)[:80]!r}; it must be a sum of tasks, such as '
    "'0.3 * linear_regression(noise_std=0.1) + 0.7 * sparse_regression'"
  )
  if not isinstance(text, str) or len(text) > _MOST_LETTERS:
    raise error
  try:
    return [*_terms(ast.parse(text.strip(), mode='eval').body)]
  except UserError:
    raise
  except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
    raise error from None


def _terms(node: ast.expr) -> Iterator[_Part]:
  """The terms of a sum; raises ValueError for anything else."""
  match node:
    case ast.BinOp(left, ast.Add(), right):
      yield from _terms(left)
      yield from _terms(right)
    case ast.BinOp(ast.Constant(weight), ast.Mult(), task):
      ((factor, name, given),) = _terms(task)
      weight = check_number(f'the weight of {name}', weight, above=0.0)
      yield factor * weight, name, given
    case ast.Name(name):
      yield 1.0, name, {}
    case ast.Call(ast.Name(name), [], keywords):
      given = {str(one.arg): ast.literal_eval(one.value) for one in keywords}
      yield 1.0, name, given
    case _:
      raise ValueError
