"""Checks that a task of any class has the properties that the library relies on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Float

from zoo.contracts.checks import (
  NUM_PROMPTS,
  Facts,
  check_facts,
  check_facts_after,
  check_finite,
  check_floats,
  check_form,
  check_prompts,
  facts_after,
  facts_of,
  label_shape,
)
from zoo.core import trees
from zoo.core.errors import UserError, check_count, check_object, noted
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import KEPT, Predictor, Task, predicts_all
from zoo.core.tables import format_mean
from zoo.estimators.baselines import HostBaseline, Zero
from zoo.estimators.linear import Ridge
from zoo.host.progress import progress_bar
from zoo.measure.comparison import by_name, checked_baselines
from zoo.measure.curve import sample_losses, spread_lengths
from zoo.measure.intervals import estimate
from zoo.measure.predict import Programs, one_pass
from zoo.tasks.base import BAYES, BaseTask

_NUM_PAIRED = 512  # Bayes is compared with other baselines on this number of prompts.
# All comparisons of one task together refuse a right `bayes` with this probability.
_LEVEL = 1e-4
# A predictor without `predictions` is compiled for each number of examples, so that it
# is compared at so many of them.
_FEW = 32
_ZERO = 'the prediction 0'
# Ridge regression on more features than this takes long.
_MOST_FEATURES = 100
_OF_ALL_TASKS = 3  # Parts of the check: prompts, the loss, prompts drawn again.
# A mean is not known if one prompt holds more than this share of its sum. Of the
# squares of 512 normal numbers the largest holds more with a probability below 1e-23.
_LARGEST_SHARE = 0.2
# One prompt may hold all of a loss that is almost 0. It matters if the prompt alone
# makes the mean larger by this share of the loss of the prediction 0.
_OF_ZERO = 0.05


def check_task(task: Task) -> None:
  """Checks that a task has the properties that the library relies on.

  It checks that prompts are finite, have the declared shapes and label kind, and are a
  function of the key and of the position in the batch; that the loss has a derivative;
  that prompts which are drawn again keep the query, or all inputs; and that baselines
  and shifts work. Baselines are optional: a task without any passes.

  The baseline `bayes` is compared with the other baselines, with the prediction 0, and
  with ridge regression of the penalty 1, on 512 prompts after 0, 1, …, C examples. It
  may not be significantly worse than any of them: the tests of all these comparisons
  together have the level 1e-4, by Bonferroni's correction. A baseline without
  `predictions` is compared at 32 numbers of examples at most. A `bayes_estimate` is
  compared likewise, and gets a warning in place of an error. It also gets a warning if
  a single prompt holds more than a fifth of its loss, as happens to a sample by
  importance that is too small.

  Args:
    task: The task to check.

  Raises:
    UserError: If a property is missing. The message says in one line what is wrong with
      the first one.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> zoo.check_task(task)  # returns nothing if all is well
    >>> zoo.check_task('linear_regression')
    Traceback (most recent call last):
    ...
    zoo.core.errors.UserError: str is not a task: it must be a subclass of ...
  """
  name = type(task).__name__
  check_object('a task', task, BaseTask, 'it must be a subclass of zoo.tasks.BaseTask')
  trees.check_tree(task)
  check_count(f'{name}.num_features', task.num_features)
  check_count(f'{name}.context_length', task.context_length)
  check_count(f'{name}.num_outputs', task.num_outputs)
  sample = functools.partial(_sample, name, task, Programs())
  with progress_bar(f'check_task: {name}', _OF_ALL_TASKS, 'part') as progress:
    prompt = sample(jax.random.key(0), NUM_PROMPTS)
    _check_sampling(name, sample, prompt)
    progress.update()
    _check_loss(name, task, prompt)
    progress.update()
    _check_redraws(name, task, prompt)
    progress.update()
    baselines = checked_baselines(task)
    shifts = by_name(f'{name}.shifts()', task.shifts)
    has_bayes = not baselines.keys().isdisjoint(BAYES)
    progress.total += len(baselines) + has_bayes + len(shifts)
    for baseline_name, baseline in baselines.items():
      _check_baseline(f'the baseline {baseline_name} of {name}', baseline, prompt, task)
      progress.update()
    if has_bayes:
      _check_bayes(name, task, baselines)
      progress.update()
    for shift_name, shifted in shifts.items():
      _check_shift(f'the shift {shift_name} of {name}', shifted, task)
      progress.update()


def _sample(
  name: str, task: Task, programs: Programs, key: Array, batch_size: int
) -> Prompt:
  with noted(f'{name}.sample(key, {batch_size})'):
    prompt = programs.sample(trees.fresh(task), key, batch_size)
  prompt = jax.device_get(prompt)  # Slices of arrays on the host are not compiled.
  check_prompts(task, prompt)
  return prompt


def _check_sampling(
  name: str, sample: Callable[[Array, int], Prompt], prompt: Prompt
) -> None:
  """Checks that a prompt is a pure function of the key and of its batch position."""
  key = jax.random.key(0)
  if not _same(sample(key, NUM_PROMPTS), prompt):
    raise UserError(f'{name}.sample() gives other prompts for the same key')
  longer = sample(key, 2 * NUM_PROMPTS)
  if not _same(jax.tree.map(lambda array: array[:NUM_PROMPTS], longer), prompt):
    raise UserError(
      f'a prompt of {name}.sample() depends on the length of the batch; it must be a '
      'function of the key and its position alone, bit for bit (zoo.tasks.base.dot '
      'adds in order)'
    )
  if _same(sample(jax.random.key(1), NUM_PROMPTS), prompt):
    raise UserError(f'{name}.sample() gives the same prompts from every key')


def _same(prompt: Prompt, other_prompt: Prompt) -> bool:
  if jax.tree.structure(prompt) != jax.tree.structure(other_prompt):
    return False
  same = functools.partial(np.array_equal, equal_nan=True)  # Missing features are NaN.
  return all(jax.tree.leaves(jax.tree.map(same, prompt, other_prompt)))


def _check_loss(name: str, task: Task, prompt: Prompt) -> None:
  loss, shape = task.loss, label_shape(task, len(prompt.x))
  has_one_output = task.num_outputs == 1

  @compiled
  def facts(targets: Array, y_query: Array) -> dict[str, Array]:
    prediction = jnp.full(shape, 0.5, y_query.dtype)
    values = {
      'values': loss(prediction, y_query),
      'slope': jax.grad(lambda p: jnp.sum(loss(p, y_query)))(prediction),
      'all': loss(jnp.zeros_like(targets), targets),
    }
    if has_one_output:
      values['at 0'] = loss(jnp.zeros(2), jnp.array([0.0, 1.0]))
    return values

  with noted(f'{name}.loss'):
    values = jax.device_get(facts(prompt.targets, prompt.y_query))
  check_form(f'{name}.loss', values['values'], (len(prompt.x),))
  check_form(f'the derivative of {name}.loss', values['slope'], shape)
  check_form(f'{name}.loss at every example', values['all'], prompt.targets.shape[:2])
  # A log loss of the logit 0 is log 2 for both targets, 0 and 1.
  is_log_loss = has_one_output and np.allclose(values['at 0'], math.log(2), atol=1e-5)
  if is_log_loss and task.label_kind != 'signs':
    raise UserError(
      f"{name} has a log loss; set label_kind = 'signs', so that it has an accuracy"
    )


def _check_redraws(name: str, task: Task, prompt: Prompt) -> None:
  """Checks that a prompt which is drawn again keeps its query, or all its inputs.

  Rounding is allowed, since `redraw` restores the bits of what is kept.

  Raises:
    UserError: If a prompt does not keep them.
  """
  keys = jax.random.split(jax.random.key(2), NUM_PROMPTS)

  def redrawn(prompt: Prompt, keep: str) -> Prompt:
    again = jax.vmap(lambda key, one: task.redraw_one(key, one, keep))(keys, prompt)
    return dataclasses.replace(again, latents=None)

  prompt, kept = dataclasses.replace(prompt, latents=None), []
  for keep in KEPT:
    try:
      with noted(f'{name}.redraw_one'):
        jax.eval_shape(functools.partial(redrawn, keep=keep), prompt)
    except UserError:  # The task does not draw such prompts.
      continue
    kept.append(keep)
  with noted(f'{name}.redraw_one'):
    others = compiled(lambda prompt: {keep: redrawn(prompt, keep) for keep in kept})(
      prompt
    )
  for keep in kept:
    other = jax.device_get(others[keep])
    check_prompts(task, other)
    for field in ('x_query', 'x') if keep == 'inputs' else ('x_query',):
      before, after = getattr(prompt, field), getattr(other, field)
      if not np.allclose(after, before, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise UserError(
          f'{name}.redraw_one(key, prompt, {keep!r}) changes {field}; it must keep it, '
          'so that the labels are those of the inputs that are kept'
        )


def _check_baseline(what: str, baseline: Predictor, prompt: Prompt, task: Task) -> None:
  c = prompt.x.shape[1]
  lengths = sorted({c // 3, c - 1} & {*range(1, c)}) if predicts_all(baseline) else []

  def facts(prompt: Prompt) -> Facts:
    predictions = facts_of(what, baseline, prompt, task, what)
    predictions |= facts_after(what, baseline, prompt, task, lengths)
    with noted(what):
      return predictions | {'again': baseline(prompt)}

  program = facts if isinstance(baseline, HostBaseline) else compiled(facts)

  def run(prompt: Prompt) -> Facts:
    return jax.device_get(program(prompt))

  values = run(prompt)
  check_finite(what, values['alone'])
  if not np.array_equal(values['again'], values['alone']):
    raise UserError(f'{what} differs from call to call; it must be deterministic')
  check_facts(what, values, run, prompt, what)
  check_facts_after(what, values, what)


def _check_bayes(name: str, task: Task, baselines: dict[str, Predictor]) -> None:
  """Checks that no other baseline is better than `bayes`, at any number of examples.

  A `bayes_estimate` that is worse than another baseline, or whose mean loss is that of
  a few prompts, gets a warning, since it is only an estimate.

  Raises:
    UserError: If `bayes` is significantly worse.
  """
  losses = _losses_by_length(task, baselines)
  for own in filter(baselines.__contains__, BAYES):
    worse = _what_is_worse(own, losses)
    if worse is not None and own == 'bayes':
      raise UserError(f'bayes of {name} is {worse}; it must have the least loss')
    if worse is not None:
      logging.warning('%s of %s is %s', own, name, worse)
    elif own != 'bayes' and (doubt := _what_is_uncertain(losses[own], losses[_ZERO])):
      logging.warning('%s of %s: %s', own, name, doubt)


# The losses of 512 prompts by the number of examples.
_ByLength = dict[int, Float[np.ndarray, ' p']]


def _losses_by_length(
  task: Task, baselines: dict[str, Predictor]
) -> dict[str, _ByLength]:
  """Returns the losses of baselines, of the prediction 0, and of ridge regression."""
  compared: dict[str, Predictor] = {_ZERO: Zero()}
  has_numbers = task.label_kind == 'numbers' and task.num_outputs == 1
  if has_numbers and task.num_features <= _MOST_FEATURES:
    compared['ridge regression'] = Ridge(penalty=1.0)
  compared |= baselines
  c, losses = task.context_length, {}
  fast, slow = {}, {}
  for baseline_name, baseline in compared.items():
    if not isinstance(baseline, HostBaseline):
      group = slow if one_pass(baseline) is None else fast
      group[baseline_name] = baseline
  for group, lengths in (fast, [*range(c + 1)]), (slow, spread_lengths(c, _FEW)):
    sampled = sample_losses(group, task, _NUM_PAIRED, lengths=lengths) if group else {}
    for baseline_name, table in sampled.items():
      losses[baseline_name] = dict(zip(lengths, table.T, strict=True))
  return losses


def _what_is_worse(own: str, losses: dict[str, _ByLength]) -> str | None:
  """Returns where a baseline is significantly worse than another one, or None."""
  from scipy import stats  # It is slow to import.

  for length, of_own in losses[own].items():
    if not np.isfinite(of_own).all():
      return f'not finite after {length} examples'
  gaps = {
    (name, length): (estimate(losses[own][length] - other), np.abs(other).mean())
    for name, by_length in losses.items()
    for length, other in by_length.items()
    if name != own and length in losses[own]
  }

  def errors(key: tuple[str, int]) -> float:
    gap, size = gaps[key]
    # A difference that is only rounding has almost no standard error.
    return (gap.mean - 1e-5 * size) / max(gap.stderr, np.finfo(float).tiny)

  # A baseline such as least squares may have infinite losses, which are worse.
  name, length = max((key for key in gaps if errors(key) > -np.inf), key=errors)
  if not errors((name, length)) > stats.t.isf(_LEVEL / len(gaps), _NUM_PAIRED - 1):
    return None
  gap, _ = gaps[name, length]
  worse = format_mean(gap.mean, gap.half, 3)
  return f'worse than {name} after {length} examples, by {worse}'


def _what_is_uncertain(by_length: _ByLength, zero: _ByLength) -> str | None:
  """Returns why a mean loss is not known, at the number where it is known least."""
  shares = {
    length: losses.max() / losses.sum()
    for length, losses in by_length.items()
    if losses.max() > _OF_ZERO * zero[length].sum()
  }
  length = max(shares, key=shares.__getitem__, default=0)
  if not shares.get(length, 0.0) > _LARGEST_SHARE:
    return None
  found = estimate(by_length[length])
  loss = format_mean(found.mean, found.half, 3)
  return (
    f'after {length} examples one of {_NUM_PAIRED} prompts holds {shares[length]:.0%} '
    f'of the loss, {loss}, so that this mean is not known, and the estimate fails on '
    'some prompts; a sample by importance needs more draws, or draws that fit better'
  )


def _check_shift(what: str, shifted: Task, task: Task) -> None:
  """Checks the form of a shift's prompts, without sampling them."""
  if not isinstance(shifted, BaseTask):
    raise UserError(f'{what} is a {type(shifted).__name__}; it must be a task')
  with noted(what):
    prompt = jax.eval_shape(lambda key: shifted.sample(key, 2), jax.random.key(0))
  for part, array, shape in (
    ('x_query', prompt.x_query, (2, task.num_features)),
    ('y_query', prompt.y_query, label_shape(task, 2)),
  ):
    check_floats(f'{part} of {what}', array, shape)
