"""The loss of predictors by the number of examples that they have seen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task, predicts_all
from zoo.core.values import fresh, is_value
from zoo.tasks.base import Loss
from zoo.tasks.baselines import HostBaseline
from zoo.theory.trust import TOLERANCE, check_rule, is_ours

_BATCH_SIZE = 512


class Curve(NamedTuple):
  """The loss of a predictor by the number of examples before the query."""

  num_examples: Int[np.ndarray, ' n']
  mean: Float[np.ndarray, ' n']
  standard_error: Float[np.ndarray, ' n']  # of the mean
  # Meaningful even where the mean is infinite, as for least squares with noise after
  # about as many examples as there are features.
  median: Float[np.ndarray, ' n']


def curve(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
  *,
  lengths: Sequence[int] | None = None,
  loss: Loss | None = None,
) -> Curve:
  """The loss of a predictor after 0, 1, …, C examples, or after those in `lengths`.

  All lengths are measured on the same prompts, which depend only on `seed`. A predictor
  that has `predictions` predicts all examples in one pass; any other is called on each
  prefix of the prompts. `loss` defaults to that of the task. Raises UserError for a
  predictor that cannot be called on the task's prompts, and for one of a class outside
  this library whose `predictions` or `learning_rule` contradict its `__call__`.
  """
  found = sample_losses(
    {'': predictor}, task, num_prompts, seed, lengths=lengths, loss=loss
  )
  return summarise(found[''], lengths)


def summarise(
  losses: Float[np.ndarray, 'p n'], lengths: Sequence[int] | None = None
) -> Curve:
  """The curve of the losses of p prompts at n lengths, by default 0, 1, …, n − 1."""
  count, n = losses.shape
  return Curve(
    num_examples=np.asarray(range(n) if lengths is None else lengths),
    mean=losses.mean(axis=0),
    standard_error=losses.std(axis=0, ddof=1) / np.sqrt(count),
    median=np.median(losses, axis=0),
  )


def sample_losses(
  predictors: Mapping[str, Predictor],
  task: Task,
  num_prompts: int,
  seed: int = 0,
  *,
  lengths: Sequence[int] | None = None,
  loss: Loss | None = None,
) -> dict[str, Float[np.ndarray, 'p n']]:
  """The loss of each predictor on each of the same prompts, at each length; float64.

  Raises UserError as `curve` does.
  """
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  check_count('seed', seed, minimum=0)
  if lengths is not None and not len(lengths):
    raise UserError('lengths is empty; it must have at least one number of examples')
  loss = _as_argument(task, loss)
  for predictor in predictors.values():
    check_rule(predictor)
  parts = {name: split(predictor) for name, predictor in predictors.items()}
  found: dict[str, list[np.ndarray]] = {name: [] for name in predictors}
  for i, prompt in enumerate(sample_batches(task, seed, num_prompts, _BATCH_SIZE)):
    at = range(prompt.x.shape[1] + 1) if lengths is None else lengths
    for name, (static, arrays) in parts.items():
      if i == 0 and not is_ours(predictors[name]):
        _check_predictions(static, arrays, prompt)
      values = losses_by_length(static, arrays, loss, prompt, tuple(at))
      found[name].append(np.asarray(values, np.float64))
  return {name: np.concatenate(values) for name, values in found.items()}


def sample_predictions(
  predictors: Mapping[str, Predictor], task: Task, num_prompts: int, seed: int = 1
) -> dict[str, Float[np.ndarray, 'p t *k']]:
  """The predictions of every example of the same prompts, and their `target`.

  Every predictor must predict all examples in one pass.
  """
  statics, arrays = zip(*map(split, predictors.values()), strict=True)
  parts = [
    jax.device_get(_predictions(statics, arrays, prompt))
    for prompt in sample_batches(task, seed, num_prompts, _BATCH_SIZE)
  ]
  return {
    name: np.concatenate(values)
    for name, *values in zip(['target', *predictors], *parts, strict=True)
  }


def sample_batches(
  task: Task, seed: int, num_prompts: int, batch_size: int
) -> Iterator[Prompt]:
  """Samples prompts in batches; they depend on the seed and the batch size.

  They share no key with the weights or the prompts of a training with the same seed.
  Raises UserError for a seed that is negative or no integer.
  """
  key = stream_of(check_count('seed', seed, minimum=0), CURVE_STREAM)
  for start in range(0, num_prompts, batch_size):
    size = min(batch_size, num_prompts - start)
    yield task.sample(jax.random.fold_in(key, start), size)


def losses_by_length(
  static: Static, arrays: PyTree, loss: Loss, prompt: Prompt, lengths: tuple[int, ...]
) -> Float[np.ndarray, 'b n']:
  """The losses after `lengths` of a predictor, given in the parts of `split`."""
  c = prompt.x.shape[1]
  if bad := [k for k in lengths if not 0 <= k <= c]:
    raise UserError(
      f'the length {bad[0]} is not from 0 to {c}, the length of a context'
    )
  if isinstance(static, HostBaseline):  # another library's code cannot be compiled
    prefixes = map(prompt.prefix, lengths)
    each = [loss(static(prefix), prefix.y_query) for prefix in prefixes]
    return np.stack(jax.device_get(each), axis=1)
  # A TPU, and tf32 on a GPU, would otherwise round the products.
  with jax.default_matmul_precision('highest'):
    if lengths != (c,) and one_pass(merge(static, arrays)) is not None:
      losses = _losses_at_all(static, arrays, loss, prompt)
      return np.asarray(losses)[:, list(lengths)]
    each = [_losses(static, arrays, loss, prompt.prefix(k)) for k in lengths]
    return np.stack(jax.device_get(each), axis=1)


def _as_argument(task: Task, loss: Loss | None) -> Loss:
  """A loss, by default the task's, which compiled programs take as an argument."""
  if loss is None and is_value(task):
    return jax.tree_util.Partial(type(task).loss, fresh(task))
  return jax.tree_util.Partial(task.loss if loss is None else loss)


def _check_predictions(static: Static, arrays: PyTree, prompt: Prompt) -> None:
  """Raises UserError if `predictions` at the query are not those of `__call__`."""
  predictor = merge(static, arrays)
  if isinstance(predictor, HostBaseline) or not predicts_all(predictor):
    return
  with jax.default_matmul_precision('highest'):
    everywhere, alone = jax.device_get(_at_the_query(static, arrays, prompt))
  difference = np.abs(everywhere - alone).max()
  if not difference <= TOLERANCE * np.abs(alone).max():
    name = type(predictor).__name__
    raise UserError(
      f'{name}.predictions() at the query is not {name}.__call__(): they differ by '
      f'{difference:.2g}; change one of them to match, or set predictions = None'
    )


@functools.partial(jax.jit, static_argnums=0)
def _at_the_query(static: Static, arrays: PyTree, prompt: Prompt) -> tuple[Array, ...]:
  predictor: Any = merge(static, arrays)
  return predictor.predictions(prompt)[:, -1], predictor(prompt)


@functools.partial(jax.jit, static_argnums=0)
def _losses_at_all(
  static: Static, arrays: PyTree, loss: Loss, prompt: Prompt
) -> Float[Array, 'b t']:
  predict = one_pass(merge(static, arrays))
  assert predict is not None
  return loss(predict(prompt), prompt.targets)


@functools.partial(jax.jit, static_argnums=0)
def _losses(
  static: Static, arrays: PyTree, loss: Loss, prompt: Prompt
) -> Float[Array, ' b']:
  return loss(merge(static, arrays)(prompt), prompt.y_query)


@functools.partial(jax.jit, static_argnums=0)
def _predictions(
  statics: tuple[Static, ...], arrays: tuple[PyTree, ...], prompt: Prompt
) -> list[Array]:
  """The targets, and the predictions of each predictor, given in parts by `split`."""
  found = [prompt.targets]
  for static, array in zip(statics, arrays, strict=True):
    predict = one_pass(merge(static, array))
    assert predict is not None, 'it has no predictions'
    found.append(predict(prompt))
  return found


def one_pass(
  predictor: Predictor | nnx.Module,
) -> Callable[[Prompt], Float[Array, 'b t *k']] | None:
  """The function that predicts all examples of a prompt in one pass, if any."""
  if predicts_all(predictor):
    return predictor.predictions
  if isinstance(predictor, FollowsRule):
    return lambda prompt: predictor.learning_rule().predictions(prompt)
  return None


# The static part of a predictor in a compiled program.
Static = nnx.GraphDef | Predictor | None


def split(predictor: Predictor | nnx.Module) -> tuple[Static, PyTree]:
  """A predictor as a static part, which can be hashed, and arrays.

  The weights of a model, and the numbers of a value, are arguments of compiled
  programs; any other predictor is part of them.
  """
  if isinstance(predictor, nnx.Module):
    return nnx.split(predictor)
  if isinstance(predictor, HostBaseline):  # it is never compiled
    return predictor, None
  if is_value(predictor) or isinstance(predictor, LearningRule):
    return None, fresh(predictor)
  if not callable(predictor):
    raise UserError(
      f'{type(predictor).__name__} cannot predict; it must be a model, an estimator, a '
      'learning rule, or another callable that predicts from a prompt'
    )
  return predictor, None


def merge(static: Static, arrays: PyTree) -> Predictor:
  """The predictor that was split."""
  if isinstance(static, nnx.GraphDef):
    return nnx.merge(static, arrays)
  return arrays if static is None else static
