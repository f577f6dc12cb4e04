"""Predictions of any predictor on any prompts; all measurements are built on these."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key, PyTree

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count, check_object
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.protocols import (
  FollowsRule,
  Predictor,
  Task,
  predicts_all,
  require_task,
)
from zoo.core.taps import is_edited
from zoo.core.trees import fresh, is_pytree
from zoo.estimators.baselines import HostBaseline
from zoo.tasks.base import ChangedTask, Loss

# This number of prompts is sampled at once: a compromise between memory and calls.
BATCH_SIZE = 4096
# All losses of predictors are measured on prompts that are drawn in batches of this
# size, so that equal numbers of prompts of a seed are the same prompts.
LOSS_BATCH_SIZE = 512

# A function maps predictors, prompts and further arguments to arrays.
Function = Callable[..., Any]
# A compiled program has this static part of a predictor.
_Static = nnx.GraphDef | Predictor | None


class Programs:
  """The compiled programs of one measurement, which all its parts share.

  Each program is traced anew, by the code as it is, and compiled unless an equal
  program is known.
  """

  def __init__(self):
    self._run = compiled(_run, num_static=2)
    self._sample = compiled(
      lambda batch_size, task, key: task.sample(key, batch_size), num_static=1
    )

  def sample(self, task: Task, key: Key[Array, ''], batch_size: int) -> Prompt:
    """Returns the prompts of `task.sample`."""
    return self._sample(batch_size, task, key)

  def run(
    self,
    function: Function,
    predictors: Sequence[Predictor | nnx.Module],
    prompt: Prompt,
    *inputs: PyTree,
  ) -> Any:
    """Runs `function(predictors, prompt, *inputs)` as one compiled program.

    Weights, prompts and `inputs` are arguments of the program. A baseline of another
    library cannot be compiled; the function is called on it as it is.

    Args:
      function: The function to compile.
      predictors: The predictors, as a sequence.
      prompt: Prompts `[b]`.
      *inputs: Further arguments, as pytrees of arrays.

    Returns:
      What the function returns.

    Raises:
      UserError: If a baseline of another library is one of several predictors, or if an
        object cannot predict.
    """
    statics, arrays = zip(*map(split, predictors), strict=True)
    # A TPU, and tf32 on a GPU, would otherwise round the products.
    with jax.default_matmul_precision('highest'):
      if any(isinstance(predictor, HostBaseline) for predictor in predictors):
        return _run_on_host(function, predictors, prompt, *inputs)
      try:
        hash(statics)
      except TypeError:  # A graph with a dict cannot be hashed, so it is not shared.
        program = compiled(functools.partial(_run, function, statics))
        return program(arrays, prompt, inputs)
      return self._run(function, statics, arrays, prompt, inputs)


def run_once(
  function: Function,
  predictors: Sequence[Predictor | nnx.Module],
  prompt: Prompt,
  *inputs: PyTree,
) -> Any:
  """Calls `Programs.run` once; a caller that repeats it should keep a `Programs`."""
  return Programs().run(function, predictors, prompt, *inputs)


def _run_on_host(
  function: Function,
  predictors: Sequence[Predictor | nnx.Module],
  prompt: Prompt,
  *inputs: PyTree,
) -> Any:
  """Calls the function of one predictor without compiling it.

  Returns:
    What the function returns.

  Raises:
    UserError: If there are several predictors, one of which cannot be compiled.
  """
  for predictor in predictors:
    if len(predictors) > 1 and isinstance(predictor, HostBaseline):
      raise UserError(
        f'{type(predictor).__name__} is fitted to each prompt by another library, so '
        'it cannot be compiled and has no gradient; compare with another predictor'
      )
  return function(predictors, prompt, *inputs)


def _run(
  function: Function,
  statics: tuple[_Static, ...],
  arrays: tuple[PyTree, ...],
  prompt: Prompt,
  inputs: tuple[PyTree, ...],
) -> Any:
  """Calls the function of the predictors that `split` has taken apart; it is traced."""
  predictors = []
  for static, leaves in zip(statics, arrays, strict=True):
    if isinstance(static, nnx.GraphDef):
      predictors.append(nnx.merge(static, leaves))
    else:
      predictors.append(leaves if static is None else static)
  return function(predictors, prompt, *inputs)


def predict(
  predictor: Predictor,
  prompt: Prompt,
  num_examples: Sequence[int] | np.ndarray | None = None,
) -> Float[np.ndarray, ' b *k']:
  """Returns the prediction for each query, from the first examples of its prompt.

  See also `zoo.curve`, the loss after each number of examples, and `zoo.distribution`,
  which says how sure a prediction is.

  Args:
    predictor: A model, a baseline of a task, or another callable that predicts.
    prompt: Prompts `[b]` with c examples each.
    num_examples: The number of examples to use for each prompt, integers `[b]` from 0
      to c. The other examples only fill the arrays, and may be anything. None uses all
      c.

  Returns:
    The predictions on the host: `[b]`, or `[b, k]` if the task has k outputs. A
    predictor that predicts all examples in one pass needs one compiled program; any
    other needs one for each different number of examples.

  Raises:
    UserError: If `prompt` is not a valid prompt, if the predictor cannot predict, or if
      `num_examples` has another shape or range, or is not of integers.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> bayes = task.baselines()['bayes']
    >>> print(zoo.predict(bayes, prompt, num_examples=[0, 2, 4]).round(2))
    [ 0.    2.18 -0.04]
  """
  checked_prompt(prompt)
  b, c = prompt.x.shape[:2]
  if num_examples is None:
    return np.asarray(run_once(at_query, [predictor], prompt)[0])
  counts = np.asarray(num_examples)
  if counts.shape != (b,) or counts.dtype.kind not in 'iu':
    raise UserError(
      f'num_examples is of type {counts.dtype} and shape {counts.shape}; it must be an '
      f'integer for each of the {b} prompts'
    )
  different = np.unique(counts).tolist()
  for count in different:
    check_count('num_examples', count, 0, c)
  if one_pass(predictor) is not None:
    return np.asarray(
      run_once(after_some, [predictor], prompt, counts.astype(np.int32))
    )
  whole: Prompt = jax.device_get(prompt)
  predictions: dict[int, Any] = {}
  programs = Programs()
  for count in different:
    at = np.flatnonzero(counts == count)
    x, y = whole.x[at, :count], whole.y[at, :count]
    short = Prompt(x, y, whole.x_query[at], whole.y_query[at])
    (at_count,) = jax.device_get(programs.run(at_query, [predictor], short))
    predictions |= dict(zip(at.tolist(), at_count, strict=True))
  return np.stack([predictions[i] for i in range(b)])


def after_some(
  predictors: Sequence[Predictor], prompt: Prompt, counts: Int[Array, ' b']
) -> Float[Array, ' b *k']:
  """Returns the predictions after some examples.

  The query takes the place of the next example.
  """
  at = jnp.arange(prompt.x.shape[1] + 1)[None] - counts[:, None]
  x = jnp.concatenate([prompt.x, prompt.x_query[:, None]], axis=1)
  x = jnp.where(at[..., None] < 0, x, 0)
  x = jnp.where(at[..., None] == 0, prompt.x_query[:, None], x)
  is_seen = (at < 0)[:, :-1].reshape(*prompt.y.shape[:2], *[1] * (prompt.y.ndim - 2))
  y = jnp.where(is_seen, prompt.y, 0)
  moved = Prompt(x[:, :-1], y, x[:, -1], prompt.y_query)
  (predictor,) = predictors
  return everywhere(predictor, moved)[jnp.arange(len(counts)), counts]


def gather(measure: Callable[[Any], Any], prompts: Iterable[Any]) -> Any:
  """Returns what `measure` finds in batches of prompts, joined on the host.

  The parts are joined along axis 0. Each item of `prompts` may also be several prompts
  together.
  """
  parts = [jax.device_get(measure(prompt)) for prompt in prompts]
  return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def in_batches(prompt: Prompt, count: int, batch_size: int) -> Iterator[Prompt]:
  """Yields the first `count` prompts in batches of at most `batch_size`."""
  for start in range(0, count, batch_size):
    part = slice(start, min(start + batch_size, count))
    yield jax.tree.map(lambda array, part=part: array[part], prompt)


def sample_batches(
  task: Task,
  seed: int,
  num_prompts: int,
  batch_size: int,
  programs: Programs | None = None,
) -> Iterator[Prompt]:
  """Yields prompts in batches; they depend on the seed and the batch size alone.

  They share no key with the weights or the prompts of a training with the same seed.
  They are prompts that the task holds out.

  Raises:
    UserError: If the seed is negative or not an integer.
  """
  key = stream_of(check_count('seed', seed, minimum=0), CURVE_STREAM)
  task, programs = task.held_out(), programs or Programs()
  for start in range(0, num_prompts, batch_size):
    size = min(batch_size, num_prompts - start)
    yield programs.sample(fresh(task), jax.random.fold_in(key, start), size)


def loss_of(task: Task) -> Loss:
  """Returns the loss of a task, which compiled programs take as an argument."""
  # A changed task has the loss, and so the programs, of the task that it changes.
  while isinstance(task, ChangedTask):
    task = task.task
  return jax.tree_util.Partial(type(task).loss, fresh(task))


def scores_of(task: Task) -> Loss:
  """Returns the loss of a task, stacked with the accuracy if the labels are classes.

  The result is like that of `loss_of`. For classes the accuracy stands behind the loss,
  on a new last axis.
  """
  require_task(task)
  if task.label_kind == 'numbers':
    return loss_of(task)
  return jax.tree_util.Partial(_scores, fresh(task))


def _scores(
  task: Task, prediction: Float[Array, '*n'], target: Float[Array, '*n']
) -> Float[Array, '*m 2']:
  accuracy = task.accuracy(prediction, target)
  assert accuracy is not None
  return jnp.stack([task.loss(prediction, target), accuracy], axis=-1)


# These functions are arguments of `Programs.run`.


def at_query(
  predictors: Sequence[Predictor], prompt: Prompt
) -> list[Float[Array, ' b *k']]:
  """Returns the predictions of each predictor for the query."""
  return [predictor(prompt) for predictor in predictors]


def losses_at_query(
  predictors: Sequence[Predictor], prompt: Prompt, loss: Loss
) -> list[Float[Array, ' b *m']]:
  """Returns the losses, or scores, of each predictor at the query."""
  return [loss(predictor(prompt), prompt.y_query) for predictor in predictors]


def everywhere(predictor: Predictor, prompt: Prompt) -> Float[Array, 'b t *k']:
  """Returns the predictions of a predictor for every example, in one pass."""
  predict = one_pass(predictor)
  assert predict is not None, 'it has no predictions'
  return predict(prompt)


def one_pass(
  predictor: Predictor | nnx.Module,
) -> Callable[[Prompt], Float[Array, 'b t *k']] | None:
  """Returns the function that predicts all examples in one pass, or None."""
  if predicts_all(predictor):
    return predictor.predictions
  if isinstance(predictor, FollowsRule) and not is_edited(predictor):
    return lambda prompt: predictor.learning_rule().predictions(prompt)
  return None


def check_predictor(predictor: object) -> None:
  """Raises UserError unless an object predicts from prompts."""
  wanted = 'a model, an estimator, a learning rule, or another callable that predicts'
  needs = f'it must be {wanted} from a prompt'
  if hasattr(predictor, 'model') and hasattr(predictor, 'task'):
    needs += '; give its attribute model'  # It is what `zoo.load` returns.
  check_object('a predictor', predictor, Predictor, needs)


def split(predictor: Predictor | nnx.Module) -> tuple[_Static, PyTree]:
  """Splits a predictor into a static part, which can be hashed, and arrays.

  The weights of a model and the leaves of a pytree are arguments of compiled programs.
  Any other predictor is part of the program itself.

  Returns:
    The static part, and the arrays. The two together make the predictor again.
  """
  check_predictor(predictor)
  if isinstance(predictor, nnx.Module):
    return nnx.split(predictor)
  if is_pytree(predictor):
    return None, fresh(predictor)
  return predictor, None
