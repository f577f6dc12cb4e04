"""The loss of predictors by the number of examples that they have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
  scores = sample_scores({'': predictor}, task, num_prompts, seed, lengths)['']
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
  predictors: Mapping[str, Predictor],
  task: Task,
  num_prompts: int,
  seed: int = 0,
  lengths: Sequence[int] | None = None,
  programs: Programs | None = None,
) -> dict[str, tuple[Float[np.ndarray, 'p n'], Float[np.ndarray, 'p n'] | None]]:
  """The losses of each predictor as `sample_losses` has them, and its accuracies.

  These are None for a task whose labels are numbers.
  """
  has_classes = task.label_kind != 'numbers'
  losses = sample_losses(
    predictors,
    task,
    num_prompts,
    seed,
    lengths=lengths,
    loss=scores_of(task) if has_classes else None,
    programs=programs,
  )
  if not has_classes:
    return {name: (values, None) for name, values in losses.items()}
  return {name: (scores[..., 0], scores[..., 1]) for name, scores in losses.items()}


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

  `loss` defaults to that of the task, and may have a last axis of several scores. The
  predictors of all examples in one pass are one program. Several measurements may share
  `programs`. Raises UserError as `curve` does.
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
  both_ways = [*filter(predicts_all, predictors.values())]
  if both_ways:
    _check_predictions(both_ways, next(sample_batches(*batches)), programs)
  at_query = lengths is not None and [*lengths] == [task.context_length]
  together = {
    name: predictor
    for name, predictor in predictors.items()
    if not at_query and one_pass(predictor) is not None
  }

  def measure(prompt: Prompt) -> dict[str, np.ndarray]:
    counts = range(prompt.x.shape[1] + 1) if lengths is None else lengths
    _check_lengths(counts, prompt)
    measured = {
      name: _losses_by_prefix(predictor, prompt, loss, counts, programs)
      for name, predictor in predictors.items()
      if name not in together
    }
    if together:
      losses = programs.run(_losses_everywhere, [*together.values()], prompt, loss)
      for name, values in zip(together, jax.device_get(losses), strict=True):
        measured[name] = values[:, [*counts]]
    return measured

  losses = gather(measure, sample_batches(*batches))
  return {name: losses[name].astype(np.float64) for name in predictors}


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


def _check_lengths(lengths: Sequence[int], prompt: Prompt) -> None:
  """Raises UserError for a number of examples that a prompt does not have."""
  c = prompt.x.shape[1]
  if bad := [k for k in lengths if not 0 <= k <= c]:
    raise UserError(
      f'the length {bad[0]} is not from 0 to {c}, the length of a context'
    )


def _losses_by_prefix(
  predictor: Predictor,
  prompt: Prompt,
  loss: Loss,
  lengths: Sequence[int],
  programs: Programs,
) -> Float[np.ndarray, 'b n *m']:
  """The losses of a predictor that is called on each of some prefixes of prompts."""
  at_each = [
    programs.run(losses_at_query, [predictor], prompt.prefix(k), loss) for k in lengths
  ]
  return np.stack([np.asarray(losses) for (losses,) in at_each], axis=1)


def _losses_everywhere(
  predictors: Sequence[Predictor], prompt: Prompt, loss: Loss
) -> list[Float[Array, 'b t *m']]:
  return [loss(everywhere(one, prompt), prompt.targets) for one in predictors]


def _check_predictions(
  predictors: Sequence[Predictor], prompt: Prompt, programs: Programs
) -> None:
  """Raises UserError if `predictions` at the query are not those of `__call__`."""
  both = jax.device_get(programs.run(_both_ways, predictors, prompt))
  for predictor, (last, alone) in zip(predictors, both, strict=True):
    difference = np.abs(last - alone).max()
    if not difference <= TOLERANCE * np.abs(alone).max():
      name = type(predictor).__name__
      raise UserError(
        f'{name}.predictions() at the query is not {name}.__call__(): they differ by '
        f'{difference:.2g}; change one of them to match, or set predictions = None'
      )


def _both_ways(
  predictors: Sequence[Predictor], prompt: Prompt
) -> list[tuple[Array, Array]]:
  """What each predictor predicts for the query in one pass, and when it is called."""
  return [(everywhere(one, prompt)[:, -1], one(prompt)) for one in predictors]
