"""Measured losses of baselines beside known values from formulas and other code."""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import zoo
from zoo.core import losses
from zoo.core.errors import UserError, check_name
from zoo.core.prompt import Prompt
from zoo.core.protocols import Task
from zoo.estimators.baselines import HostBaseline
from zoo.measure.curve import sample_losses
from zoo.measure.intervals import half_of

_NUM_HOST_PROMPTS = 600
# Rounding in float32 may change a value by this share of max(|value|, 1).
_ROUNDING = 1e-6


class Reference(NamedTuple):
  """A known value of a baseline after some examples, and its source.

  Attributes:
    task: The registered name of the task.
    arguments: The arguments of its constructor, in JSON.
    baseline: The name of the baseline, with fields that differ from those of the task's
      baseline: `greedy_tree(max_depth=4)`.
    num_examples: The number of examples, or a range such as 0-15, over which the mean
      is taken.
    quantity: One of QUANTITIES or `squared distance from BASELINE`. With ` on SHIFT`
      the prompts come from a shift of the task: `loss on new_tasks`.
    divisor: The number by which the measured quantity is divided, such as d.
    value: The known value of the quotient.
    stderr: The standard error of the known value; 0 for a formula.
    source: Where the known value comes from.
  """

  task: str
  arguments: str
  baseline: str
  num_examples: str
  quantity: str
  divisor: float
  value: float
  stderr: float
  source: str

  def lengths(self) -> range:
    """Returns the numbers of examples; raises ValueError if they cannot be read."""
    first, _, last = self.num_examples.partition('-')
    return range(int(first), int(last or first) + 1)


class Row(NamedTuple):
  """A reference value and the measured one.

  Attributes:
    reference: The known value.
    measured: The measured value, divided by the divisor.
    stderr: The standard error of the measured value; NaN for a median.
  """

  reference: Reference
  measured: float
  stderr: float

  @property
  def deviation(self) -> float:
    """The difference over the standard error of the difference; NaN for a median."""
    known = self.reference
    gap = self.measured - known.value
    if abs(gap) <= _ROUNDING * max(abs(known.value), 1):
      return 0.0
    error = math.hypot(self.stderr, known.stderr)
    return gap / error if error else math.inf

  def record(self) -> dict[str, str]:
    """Returns both values with their standard errors, by the column of the file."""
    reference = self.reference
    divisor = '' if reference.divisor == 1 else f' / {reference.divisor:g}'
    error, known_error = self.stderr, reference.stderr
    deviation = '' if math.isnan(self.deviation) else f'{self.deviation:+.2f}'
    if self.deviation == 0:  # The values agree up to rounding.
      deviation = '0'
    arguments = ', '.join(
      part.strip().replace('"', '').replace(': ', '=')
      for part in reference.arguments.strip('{}').split(',')
    )
    return {
      'task': f'{reference.task}({arguments})',
      'baseline': reference.baseline,
      'k': reference.num_examples,
      'quantity': reference.quantity + divisor,
      'known': f'{reference.value:.4g}',
      'known_stderr': f'{known_error:.2g}' if known_error else '',
      'measured': f'{self.measured:.4g}',
      'measured_stderr': f'{error:.2g}' if math.isfinite(error) else '',
      'deviation': deviation,
      'source': reference.source,
    }

  def cells(self) -> list[str]:
    """Returns the row of the printed table, ± half of 95 % intervals."""
    record, known_error = self.record(), self.reference.stderr
    known, measured = record['known'], record['measured']
    if known_error:
      known += f' ± {half_of(known_error):.2g}'
    if math.isfinite(self.stderr):
      measured += f' ± {half_of(self.stderr):.2g}'
    head = record['task'], record['baseline'], record['k'], record['quantity']
    return [*head, known, measured, record['deviation']]


def read_references(folder: pathlib.Path) -> list[Reference]:
  """Returns the reference values of all CSV files of a folder.

  Raises:
    UserError: If a line cannot be read, or if there is no value.
  """
  references = []
  for path in sorted(folder.glob('*.csv')):
    with path.open(newline='') as file:
      for number, row in enumerate(csv.DictReader(file), start=2):
        try:
          references.append(_parse(row))
        except (KeyError, TypeError, ValueError) as error:
          raise UserError(f'{path}, line {number}: {error!r}') from error
  if not references:
    raise UserError(f'{folder} holds no reference values (files *.csv)')
  return references


def _parse(row: dict[str, str]) -> Reference:
  if None in row.values():
    raise ValueError('too few cells')
  number = {name: float(row[name]) for name in ('divisor', 'value')}
  number['stderr'] = float(row['stderr'] or 0)
  reference = Reference(**{**row, **number})
  json.loads(reference.arguments)
  name, _, _ = reference.quantity.partition(' on ')
  if not reference.lengths() or not (name in QUANTITIES or name.startswith(_DISTANCE)):
    raise ValueError(f'{reference.num_examples!r} or {reference.quantity!r}')
  return reference


def measure(
  references: Sequence[Reference], num_prompts: int, seed: int = 0
) -> Iterator[Row]:
  """Measures the baselines of reference values, all lengths of a baseline at once.

  Args:
    references: The reference values.
    num_prompts: Number of prompts for each baseline (≥ 2). Baselines that another
      library fits on the host, such as scikit-learn, get at most 600.
    seed: Seed of the prompts.

  Yields:
    A row for each reference value.

  Raises:
    UserError: If a task does not have a baseline or a shift.
  """
  groups: dict[tuple[str, ...], list[Reference]] = {}
  for reference in references:
    group = reference.task, reference.arguments, reference.baseline, reference.quantity
    groups.setdefault(group, []).append(reference)
  for (name, arguments, baseline, quantity), members in groups.items():
    task = zoo.create_task(name, **json.loads(arguments))
    lengths = sorted({k for member in members for k in member.lengths()})
    sampled = _sample(task, baseline, quantity, lengths, num_prompts, seed)
    for reference in members:
      at = [lengths.index(k) for k in reference.lengths()]
      values = sampled[:, at].mean(axis=1) / reference.divisor
      if quantity == 'median':
        yield Row(reference, float(np.median(values)), math.nan)
      else:
        stderr = float(values.std(ddof=1)) / math.sqrt(len(values))
        yield Row(reference, float(values.mean()), stderr)


def _sample(
  task: Task,
  baseline: str,
  quantity: str,
  lengths: Sequence[int],
  num_prompts: int,
  seed: int,
) -> Float[np.ndarray, 'p n']:
  """Returns the quantity of a baseline on each prompt `p` at each length `n`."""
  predictor = _baseline(baseline, task)
  if isinstance(predictor, HostBaseline):
    num_prompts = min(num_prompts, _NUM_HOST_PROMPTS)
  quantity, _, shift = quantity.partition(' on ')
  sampled = task
  if shift:
    shifts = task.shifts()
    sampled = shifts[check_name(f'shift of {type(task).__name__}', shift, shifts)]
  if quantity.startswith(_DISTANCE):
    other = _baseline(quantity.removeprefix(_DISTANCE), task)
    predictor, loss = _Difference(predictor, other), _square
  else:
    loss = functools.partial(QUANTITIES[quantity], sampled)
  # For few lengths, prompts that are cut off cost less than one pass over all lengths,
  # for some baselines far less.
  if 4 * len(lengths) <= max(lengths) and not isinstance(predictor, HostBaseline):
    predictor = _OnPrefixes(predictor)
  return sample_losses(
    {baseline: predictor}, sampled, num_prompts, seed, lengths=lengths, loss=loss
  )[baseline]


def _baseline(text: str, task: Task) -> Any:
  """Returns the baseline that a text names, with the fields that the text sets."""
  name, _, fields = text.rstrip(')').partition('(')
  if name not in (known := task.baselines()):
    kind = type(task).__name__
    raise UserError(f'{kind} has no baseline {name!r}; it has {", ".join(known)}')
  predictor: Any = known[name]
  for field in filter(None, fields.split(',')):
    key, _, value = field.strip().partition('=')
    try:
      predictor = dataclasses.replace(predictor, **{key: ast.literal_eval(value)})
    except (SyntaxError, TypeError, ValueError) as error:
      raise UserError(f'{text!r} is not a baseline: {error}') from error
  return predictor


@dataclasses.dataclass(frozen=True)
class _OnPrefixes:
  """A baseline without the method that predicts at all lengths in one pass."""

  predictor: Any

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    return self.predictor(prompt)


@dataclasses.dataclass(frozen=True)
class _Difference:
  """The difference of the predictions of two baselines."""

  predictor: Any
  other: Any

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    return self.predictor(prompt) - self.other(prompt)

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    return self.predictor.predictions(prompt) - self.other.predictions(prompt)


def _square(prediction: Array, target: Array) -> Float[Array, '*n']:
  return jnp.square(prediction)


def _loss(task: Task, prediction: Array, target: Array) -> Float[Array, '*n']:
  return task.loss(prediction, target)


def _accuracy(task: Task, prediction: Array, target: Array) -> Float[Array, '*n']:
  if task.num_outputs > 1:
    return 1 - losses.class_error_rate(prediction, target)
  return 1 - losses.error_rate(prediction, target)


def _excess(task: Task, prediction: Array, target: Array) -> Float[Array, '*n']:
  """Returns the loss less that of the true probabilities, which is a KL divergence."""
  several = task.num_outputs > 1
  truth = losses.log_probability(target) if several else losses.logit(target)
  return _loss(task, prediction, target) - _loss(task, truth, target)


QUANTITIES = {
  'loss': _loss,
  'median': _loss,
  'accuracy': _accuracy,
  'excess': _excess,
}
_DISTANCE = 'squared distance from '
