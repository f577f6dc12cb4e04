"""The loss of predictors by the number of examples that they have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, predicts_all
from zoo.measure.predict import (
  Programs,
  check_predictor,
  everywhere,
  gather,
  loss_of,
  losses_at_query,
  one_pass,
  sample_batches,
  scores_of,
)
from zoo.tasks.base import Loss
from zoo.theory.trust import TOLERANCE, check_rule

_BATCH_SIZE = 512


class Curve(NamedTuple):
  """The loss of a predictor by the number of examples before the query."""

  num_examples: Int[np.ndarray, ' n']
  mean: Float[np.ndarray, ' n']
  standard_error: Float[np.ndarray, ' n']  # of the mean
  # Meaningful even where the mean is infinite, as for least squares with noise after
  # about as many examples as there are features.
  median: Float[np.ndarray, ' n']
  # The share of right labels; None unless they are classes.
  accuracy: Float[np.ndarray, ' n'] | None = None


def curve(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
  *,
  lengths: Sequence[int] | None = None,
) -> Curve:
  """The loss of a predictor after 0, 1, …, C examples, or after those in `lengths`.

  All lengths are measured on the same prompts, which depend only on `seed`. A predictor
  that has `predictions` predicts all examples in one pass; any other is called on each
  prefix of the prompts. Raises UserError for a predictor that cannot be called on the
  task's prompts, and for one of a class outside this library whose `predictions` or
  `learning_rule` contradict its `__call__`.
  """
  scores = sample_scores(predictor, task, num_prompts, seed, lengths)
  return summarise(*scores, lengths)


def summarise(
  losses: Float[np.ndarray, 'p n'],
  accuracies: Float[np.ndarray, 'p n'] | None = None,
  lengths: Sequence[int] | None = None,
) -> Curve:
  """The curve of the losses of p prompts at n lengths, by default 0, 1, …, n − 1."""
  count, n = losses.shape
  return Curve(
    num_examples=np.asarray(range(n) if lengths is None else lengths),
    mean=losses.mean(axis=0),
    standard_error=losses.std(axis=0, ddof=1) / np.sqrt(count),
    median=np.median(losses, axis=0),
    accuracy=None if accuracies is None else accuracies.mean(axis=0),
  )


def sample_scores(
  predictor: Predictor,
  task: Task,
  num_prompts: int,
  seed: int = 0,
  lengths: Sequence[int] | None = None,
  programs: Programs | None = None,
) -> tuple[Float[np.ndarray, 'p n'], Float[np.ndarray, 'p n'] | None]:
  """The losses of a predictor as `sample_losses` has them, and its accuracies.

  These are None for a task whose labels are numbers.
  """
  has_classes = task.label_kind != 'numbers'
  score = scores_of(task) if has_classes else None
  each = {'': predictor}
  given: Any = {'lengths': lengths, 'loss': score, 'programs': programs}
  found = sample_losses(each, task, num_prompts, seed, **given)['']
  return (found[..., 0], found[..., 1]) if has_classes else (found, None)


def sample_losses(
  predictors: Mapping[str, Predictor],
  task: Task,
  num_prompts: int,
  seed: int = 0,
  *,
  lengths: Sequence[int] | None = None,
  loss: Loss | None = None,
  programs: Programs | None = None,
) -> dict[str, Float[np.ndarray, 'p n *m']]:
  """The loss of each predictor on each of the same prompts, at each length; float64.

  `loss` defaults to that of the task, and may have a last axis of several scores.
  Several measurements may share `programs`. Raises UserError as `curve` does.
  """
  programs = programs or Programs()
  loss = loss_of(task) if loss is None else loss
  # A program takes the numbers that it holds as arguments.
  if not isinstance(loss, jax.tree_util.Partial):
    loss = jax.tree_util.Partial(loss)
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  if lengths is not None and not len(lengths):
    raise UserError('lengths is empty; it must have at least one number of examples')
  batches = (task, seed, num_prompts, _BATCH_SIZE, programs)
  for predictor in predictors.values():
    check_predictor(predictor)
    check_rule(predictor)
    if predicts_all(predictor):
      _check_predictions(predictor, next(sample_batches(*batches)), programs)

  def measure(prompt: Prompt) -> dict[str, np.ndarray]:
    at = range(prompt.x.shape[1] + 1) if lengths is None else lengths
    return {
      name: _losses_by_length(predictor, prompt, loss, at, programs)
      for name, predictor in predictors.items()
    }

  found = gather(measure, sample_batches(*batches))
  return {name: values.astype(np.float64) for name, values in found.items()}


def sample_predictions(
  predictors: Mapping[str, Predictor], task: Task, num_prompts: int
) -> dict[str, Float[np.ndarray, 'p t *k']]:
  """The predictions of every example of the prompts of seed 1, and their `target`.

  Every predictor must predict all examples in one pass.
  """
  each, programs = [*predictors.values()], Programs()
  batches = sample_batches(task, 1, num_prompts, _BATCH_SIZE, programs)
  found = gather(
    lambda prompt: programs.run(_targets_and_predictions, each, prompt), batches
  )
  return dict(zip(['target', *predictors], found, strict=True))


def _targets_and_predictions(
  predictors: Sequence[Predictor], prompt: Prompt
) -> list[Array]:
  return [prompt.targets, *(everywhere(each, prompt) for each in predictors)]


def _losses_by_length(
  predictor: Predictor,
  prompt: Prompt,
  loss: Loss,
  lengths: Sequence[int],
  programs: Programs,
) -> Float[np.ndarray, 'b n *m']:
  """The losses of a predictor after each of some numbers of examples."""
  c = prompt.x.shape[1]
  if bad := [k for k in lengths if not 0 <= k <= c]:
    raise UserError(
      f'the length {bad[0]} is not from 0 to {c}, the length of a context'
    )
  if [*lengths] != [c] and one_pass(predictor) is not None:
    losses = programs.run(_losses_everywhere, [predictor], prompt, loss)
    return np.asarray(losses)[:, [*lengths]]
  each = [
    programs.run(losses_at_query, [predictor], prompt.prefix(k), loss) for k in lengths
  ]
  return np.stack([np.asarray(losses) for (losses,) in each], axis=1)


def _losses_everywhere(
  predictors: Sequence[Predictor], prompt: Prompt, loss: Loss
) -> Float[Array, 'b t *m']:
  (predictor,) = predictors
  return loss(everywhere(predictor, prompt), prompt.targets)


def _check_predictions(
  predictor: Predictor, prompt: Prompt, programs: Programs
) -> None:
  """Raises UserError if `predictions` at the query are not those of `__call__`."""
  at_all, alone = jax.device_get(programs.run(_both_ways, [predictor], prompt))
  difference = np.abs(at_all[:, -1] - alone).max()
  if not difference <= TOLERANCE * np.abs(alone).max():
    name = type(predictor).__name__
    raise UserError(
      f'{name}.predictions() at the query is not {name}.__call__(): they differ by '
      f'{difference:.2g}; change one of them to match, or set predictions = None'
    )


def _both_ways(predictors: Sequence[Predictor], prompt: Prompt) -> tuple[Array, Array]:
  (predictor,) = predictors
  return everywhere(predictor, prompt), predictor(prompt)
