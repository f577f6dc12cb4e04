"""The loss of predictors by the number of examples that they have seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, predicts_all, require_task
from zoo.measure.intervals import estimates, half_of
from zoo.measure.predict import (
  LOSS_BATCH_SIZE,
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


class Curve(NamedTuple):
  """The loss of a predictor by the number of examples before the query.

  Attributes:
    num_examples: The numbers of examples, `[n]`.
    mean: The mean loss over prompts at each of them, `[n]`.
    stderr: The standard error of the mean, `[n]`.
    median: The median loss, `[n]`. It is meaningful even where the mean is infinite, as
      it is for least squares with noise after about as many examples as features.
    accuracy: The share of correct labels, `[n]`; None unless the labels are classes.
    num_prompts: The number of prompts. Infinity stands for many, if it is not known.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> found = zoo.curve(task.baselines()['zero'], task, num_prompts=64)
    >>> print(found.mean.round(1), '±', found.half.round(1))  # after 0 to 4 examples
    [1.9 3.6 1.6 1.8 1.7] ± [0.9 1.6 0.7 0.9 0.7]
  """

  num_examples: Int[np.ndarray, ' n']
  mean: Float[np.ndarray, ' n']
  stderr: Float[np.ndarray, ' n']
  median: Float[np.ndarray, ' n']
  accuracy: Float[np.ndarray, ' n'] | None = None
  num_prompts: int | float = math.inf

  @property
  def half(self) -> Float[np.ndarray, ' n']:
    """The standard error of each mean loss times Student's t, `[n]`.

    It is half of a 95 % interval if there are many prompts. Losses are skewed, so that
    mean ± half contains the mean less often if there are few: for the Bayes predictor
    of linear regression with 4 features, 8 examples and noise 0.5, in 93 % of cases
    with 1024 prompts, in 87 % with 64, and in 78 % with 16.
    """
    return half_of(self.stderr, self.num_prompts)


def curve(
  predictor: Predictor,
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
  *,
  lengths: Sequence[int] | None = None,
) -> Curve:
  """Measures the loss of a predictor after 0, 1, …, C examples.

  All numbers of examples are measured on the same prompts, which depend only on `seed`.
  A predictor with the method `predictions` predicts all examples in one pass; any other
  predictor is called on each prefix of the prompts. To compare two predictors prompt by
  prompt, use `zoo.probing.risks`.

  Args:
    predictor: A model, a baseline of a task, or another callable that predicts. It is
      compiled, so it must be written in `jax.numpy`.
    task: The task whose prompts and loss are used.
    num_prompts: The number of prompts, ≥ 2.
    seed: The seed of the prompts, ≥ 0.
    lengths: The numbers of examples to measure at, from 0 to C. None means all of them.

  Returns:
    The mean loss at each number of examples, with its standard error over prompts. The
    property `half` is the number after ±.

  Raises:
    UserError: If the predictor cannot be called on the task's prompts, if its
      `predictions` or `learning_rule` contradict its `__call__`, or if a number is out
      of its range.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> curve = zoo.curve(task.baselines()['bayes'], task, num_prompts=64)
    >>> curve.num_examples.tolist()
    [0, 1, 2, 3, 4]
  """
  loss = scores_of(task)
  if isinstance(lengths, Iterable) and not isinstance(lengths, str):
    lengths = [*lengths]
  scores = sample_losses(
    {'': predictor}, task, num_prompts, seed, lengths=lengths, loss=loss
  )['']
  return summarise(scores, lengths)


def summarise(
  scores: Float[np.ndarray, 'p n *m'], lengths: Sequence[int] | None = None
) -> Curve:
  """Returns the curve of p prompts at n lengths.

  Args:
    scores: Losses `[p, n]`, or losses and accuracies `[p, n, 2]`.
    lengths: The numbers of examples, by default 0, 1, …, n − 1.
  """
  losses, accuracies = scores, None
  if scores.ndim == 3:
    losses, accuracies = scores[..., 0], scores[..., 1]
  mean, stderr = estimates(losses)
  n = losses.shape[1]
  return Curve(
    num_examples=np.asarray(range(n) if lengths is None else lengths),
    mean=mean,
    stderr=stderr,
    median=np.median(losses, axis=0),
    accuracy=None if accuracies is None else accuracies.mean(axis=0),
    num_prompts=len(losses),
  )


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
  """Returns the loss of each predictor on each of the same prompts, in float64.

  All predictors that predict every example in one pass are one compiled program.

  Args:
    predictors: The predictors by name.
    task: The task of the prompts.
    num_prompts: The number of prompts p, ≥ 2.
    seed: The seed of the prompts, ≥ 0.
    lengths: The n numbers of examples to measure at; None means 0, 1, …, C.
    loss: The loss, by default that of the task. It may have a last axis of m scores.
    programs: The programs that several measurements share.

  Returns:
    Losses `[p, n]`, or scores `[p, n, m]`, by the name of the predictor.

  Raises:
    UserError: If a predictor cannot be called on the prompts or contradicts itself, if
      `lengths` is empty or out of range, or if `num_prompts` is below 2.
  """
  programs = programs or Programs()
  loss = loss_of(task) if loss is None else loss
  # A compiled program takes the numbers that a Partial holds as arguments.
  if not isinstance(loss, jax.tree_util.Partial):
    loss = jax.tree_util.Partial(loss)
  num_prompts = check_count('num_prompts', num_prompts, minimum=2)
  require_task(task)
  c = task.context_length
  lengths = [*range(c + 1)] if lengths is None else checked_lengths(lengths, 0, c)
  check_ways([*predictors.values()], task, num_prompts, seed, programs)
  return losses_of(
    predictors,
    task,
    num_prompts,
    seed,
    lengths=lengths,
    loss=loss,
    programs=programs,
  )


def checked_lengths(lengths: Iterable[int], least: int, most: int) -> list[int]:
  """Returns numbers of examples as a list, after a check of each.

  Args:
    lengths: The numbers.
    least: The least one that is allowed.
    most: The largest one.

  Raises:
    UserError: If they are not a list, if there is none, or if one is out of the range.
  """
  if isinstance(lengths, str) or not isinstance(lengths, Iterable):
    raise UserError(f'lengths is {lengths!r}; it must be a list of integers')
  lengths = [check_count('a length', k, minimum=least, maximum=most) for k in lengths]
  if not lengths:
    raise UserError('lengths is empty; it must have at least one number of examples')
  return lengths


def spread_lengths(c: int, most: int) -> list[int]:
  """Returns at most so many numbers of examples from 0 to c, denser near 0."""
  if c < most:
    return [*range(c + 1)]
  spaced = np.geomspace(1, c, most - 1).round().astype(int)
  return sorted({0, *spaced.tolist()})


def losses_of(
  predictors: Mapping[str, Predictor],
  task: Task,
  num_prompts: int,
  seed: int,
  *,
  lengths: Sequence[int],
  loss: Loss,
  programs: Programs,
) -> dict[str, Float[np.ndarray, 'p n *m']]:
  """Returns what `sample_losses` does, for predictors that are checked already."""
  at_query = [*lengths] == [task.context_length]
  together = {
    name: predictor
    for name, predictor in predictors.items()
    if not at_query and one_pass(predictor) is not None
  }
  parts: dict[str, list[np.ndarray]] = {name: [] for name in predictors}
  for prompt in sample_batches(task, seed, num_prompts, LOSS_BATCH_SIZE, programs):
    for name, predictor in predictors.items():
      if name not in together:
        losses = _losses_by_prefix(predictor, prompt, loss, lengths, programs)
        parts[name].append(losses)
    if together:
      losses = programs.run(_losses_everywhere, [*together.values()], prompt, loss)
      for name, everywhere in zip(together, jax.device_get(losses), strict=True):
        parts[name].append(everywhere[:, [*lengths]])
  return {name: np.concatenate(part).astype(np.float64) for name, part in parts.items()}


def sample_predictions(
  predictors: Mapping[str, Predictor], task: Task, num_prompts: int
) -> dict[str, Float[np.ndarray, 'p t *k']]:
  """Returns predictions of every example of the prompts of seed 1, and their `target`.

  Every predictor must predict all examples in one pass.
  """
  in_order, programs = [*predictors.values()], Programs()
  batches = sample_batches(task, 1, num_prompts, LOSS_BATCH_SIZE, programs)
  arrays = gather(
    lambda prompt: programs.run(_targets_and_predictions, in_order, prompt), batches
  )
  return dict(zip(['target', *predictors], arrays, strict=True))


def _targets_and_predictions(
  predictors: Sequence[Predictor], prompt: Prompt
) -> list[Array]:
  return [prompt.targets] + [everywhere(predictor, prompt) for predictor in predictors]


def _losses_by_prefix(
  predictor: Predictor,
  prompt: Prompt,
  loss: Loss,
  lengths: Sequence[int],
  programs: Programs,
) -> Float[np.ndarray, 'b n *m']:
  """Returns the losses of a predictor that is called on each of some prefixes."""
  at_each = [
    programs.run(losses_at_query, [predictor], prompt.prefix(k), loss) for k in lengths
  ]
  return np.stack([np.asarray(losses) for (losses,) in at_each], axis=1)


def _losses_everywhere(
  predictors: Sequence[Predictor], prompt: Prompt, loss: Loss
) -> list[Float[Array, 'b t *m']]:
  return [
    loss(everywhere(predictor, prompt), prompt.targets) for predictor in predictors
  ]


def check_ways(
  predictors: Sequence[Predictor],
  task: Task,
  num_prompts: int,
  seed: int,
  programs: Programs,
) -> None:
  """Checks that the ways in which a predictor predicts agree.

  Its learning rule or exact form must predict the same as `__call__`, and so must
  `predictions` at the query, on the first of the prompts that are measured.

  Raises:
    UserError: If two ways of a predictor differ.
  """
  for predictor in predictors:
    check_predictor(predictor)
    check_rule(predictor)
  both_ways = [*filter(predicts_all, predictors)]
  if not both_ways:
    return
  prompt = next(sample_batches(task, seed, num_prompts, LOSS_BATCH_SIZE, programs))
  both = jax.device_get(programs.run(_both_ways, both_ways, prompt))
  for predictor, (last, alone) in zip(both_ways, both, strict=True):
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
  """Returns what each predictor predicts for the query, in one pass and when called."""
  return [
    (everywhere(predictor, prompt)[:, -1], predictor(prompt))
    for predictor in predictors
  ]
