"""Checks that a task of any class has the properties that the library relies on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from zoo.core import trees
from zoo.core.errors import UserError, check_count, check_object
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import KEPT, Predictor, Task, predicts_all
from zoo.estimators.baselines import HostBaseline
from zoo.measure.contracts.checks import (
  NUM_PROMPTS,
  Facts,
  by_name,
  check_facts,
  check_facts_after,
  check_finite,
  check_floats,
  check_form,
  check_prompts,
  checked_baselines,
  facts_after,
  facts_of,
  label_shape,
  noted,
)
from zoo.measure.curves import sample_losses, summarise
from zoo.measure.predict import Programs
from zoo.tasks.base import BaseTask

_NUM_PAIRED = 512  # Bayes is compared with other baselines on this number of prompts.
# A difference of five standard errors occurs by chance once in three million
# comparisons.
_SIGNIFICANT = 5


def check_task(task: Task) -> None:
  """Checks that a task has the properties that the library relies on.

  It checks that prompts are finite, have the declared shapes and label kind, and are a
  function of the key and of the position in the batch; that the loss has a derivative;
  that prompts which are drawn again keep the query, or all inputs; and that baselines
  and shifts work. The baseline `bayes` is compared with the other baselines on 512
  prompts: it may not be worse than any of them by more than five standard errors of the
  difference. Baselines are optional: a task without any passes.

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
  prompt = sample(jax.random.key(0), NUM_PROMPTS)
  _check_sampling(name, sample, prompt)
  _check_loss(name, task, prompt)
  _check_redraws(name, task, prompt)
  baselines = checked_baselines(task)
  for baseline_name, baseline in baselines.items():
    _check_baseline(f'the baseline {baseline_name} of {name}', baseline, prompt, task)
  if 'bayes' in baselines:
    _check_bayes(name, task, baselines)
  shifts = by_name(f'{name}.shifts()', task.shifts)
  for shift_name, shifted in shifts.items():
    _check_shift(f'the shift {shift_name} of {name}', shifted, task)


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
  c = task.context_length
  lengths = sorted({0, c // 2, c})
  compared = {
    baseline_name: baseline
    for baseline_name, baseline in baselines.items()
    if not isinstance(baseline, HostBaseline)
  }
  sampled = sample_losses(compared, task, _NUM_PAIRED, lengths=lengths)
  for baseline_name, baseline_losses in sampled.items():
    gap = summarise(sampled['bayes'] - baseline_losses)
    # A difference that is only rounding has almost no standard error.
    rounding = 1e-5 * np.abs(baseline_losses).mean(axis=0)
    worse = gap.mean > _SIGNIFICANT * gap.standard_error + rounding
    if worse.any():
      at = int(np.argmax(worse))
      raise UserError(
        f'bayes of {name} is worse than {baseline_name} after {lengths[at]} examples, '
        f'by {gap.mean[at]:.3g} ± {gap.half[at]:.2g}; it must have the least loss'
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
