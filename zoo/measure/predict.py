"""What any predictors predict on any prompts: all that is measured stands on this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PyTree

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task, predicts_all
from zoo.core.values import fresh, is_value
from zoo.tasks.base import Loss
from zoo.tasks.baselines import HostBaseline
from zoo.theory.trust import compiled

# Prompts sampled at once: a compromise between memory and the number of calls.
BATCH_SIZE = 4096

# Of the predictors, prompts and further arguments: arrays.
Function = Callable[..., Any]
# The static part of a predictor in a compiled program.
_Static = nnx.GraphDef | Predictor | None


def run(
  function: Function,
  predictors: Sequence[Predictor | nnx.Module],
  prompt: Prompt,
  *given: PyTree,
) -> Any:
  """`function(predictors, prompt, *given)` as one compiled program.

  Weights, prompts and `given` are arguments of the program, which is kept for the next
  call. A baseline of another library cannot be compiled; the function is called on it
  as it is. Raises UserError for such a baseline beside other predictors, and for an
  object that cannot predict.
  """
  parts = [split(predictor) for predictor in predictors]
  # A TPU, and tf32 on a GPU, would otherwise round the products.
  with jax.default_matmul_precision('highest'):
    for predictor in predictors:
      if isinstance(predictor, HostBaseline):
        _check_alone(predictor, len(predictors))
        return function(predictors, prompt, *given)
    statics, arrays = zip(*parts, strict=True)
    return compiled(_run, function, statics)(arrays, prompt, given)


def _run(
  function: Function,
  statics: tuple[_Static, ...],
  arrays: tuple[PyTree, ...],
  prompt: Prompt,
  given: tuple[PyTree, ...],
) -> Any:
  predictors = [merge(*parts) for parts in zip(statics, arrays, strict=True)]
  return function(predictors, prompt, *given)


def _check_alone(baseline: HostBaseline, number: int) -> None:
  if number > 1:
    raise UserError(
      f'{type(baseline).__name__} is fitted to each prompt by another library, so '
      'it cannot be compiled and has no gradient; compare with another predictor'
    )


def gather(measure: Callable[[Prompt], Any], prompts: Iterable[Prompt]) -> Any:
  """What `measure` finds in batches of prompts, joined along axis 0 on the host."""
  parts = [jax.device_get(measure(prompt)) for prompt in prompts]
  return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


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


def loss_of(task: Task) -> Loss:
  """The loss of a task, which compiled programs take as an argument."""
  if is_value(task):
    return jax.tree_util.Partial(type(task).loss, fresh(task))
  return jax.tree_util.Partial(task.loss)


# Functions for `run`.


def at_query(
  predictors: Sequence[Predictor], prompt: Prompt
) -> list[Float[Array, ' b *k']]:
  """The predictions of each predictor for the query."""
  return [predictor(prompt) for predictor in predictors]


def losses_at_query(
  predictors: Sequence[Predictor], prompt: Prompt, loss: Loss
) -> list[Float[Array, ' b']]:
  """The losses of each predictor at the query."""
  return [loss(predictor(prompt), prompt.y_query) for predictor in predictors]


def everywhere(
  predictors: Sequence[Predictor], prompt: Prompt
) -> list[Float[Array, 'b t *k']]:
  """The predictions of each predictor for every example, in one pass."""
  found = []
  for predictor in predictors:
    predict = one_pass(predictor)
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


def split(predictor: Predictor | nnx.Module) -> tuple[_Static, PyTree]:
  """A predictor as a static part, which can be hashed, and arrays.

  The weights of a model, and the numbers of a value, are arguments of compiled
  programs; any other predictor is part of them.
  """
  if isinstance(predictor, nnx.Module):
    return nnx.split(predictor)
  if is_value(predictor) or isinstance(predictor, LearningRule):
    return None, fresh(predictor)
  if not callable(predictor):
    raise UserError(
      f'{type(predictor).__name__} cannot predict; it must be a model, an estimator, a '
      'learning rule, or another callable that predicts from a prompt'
    )
  return predictor, None


def merge(static: _Static, arrays: PyTree) -> Predictor:
  """The predictor that was split."""
  if isinstance(static, nnx.GraphDef):
    return nnx.merge(static, arrays)
  return arrays if static is None else static
