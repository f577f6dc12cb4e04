"""Checks of instruments: do they return the truth on models whose truth is known?

An instrument is a function that returns numbers about a model. It can be wrong in three
ways: it finds a property in a model that has none (a null); it does not return the
value of a model that was built to have the property (planted); or its 95 % intervals
contain the truth too rarely or too often (coverage).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Array, Float

from zoo.core import registry
from zoo.core.errors import (
  UserError,
  check_count,
  check_number,
  in_one_line,
  shown,
)
from zoo.core.prompt import Prompt
from zoo.core.protocols import Layered, Predictor, Task, require_task
from zoo.core.tables import format_table
from zoo.measure.intervals import Estimate, half_of, wilson
from zoo.measure.ratio import Share
from zoo.measure.tests import LEVEL

# An instrument may return, for a property, a mean with its standard error, a number
# with its interval or without error, or None where the property is not defined.
Reading: TypeAlias = Share | float | None
# An instrument takes a model, a task and a seed, and returns one reading, or several by
# their names.
Instrument: TypeAlias = Callable[
  [Predictor, Task, int], Reading | Mapping[str, Reading]
]
# The readings of a model by name, in which a number is an `Estimate`, and why there are
# none.
_Read: TypeAlias = tuple[dict[str, Share | None], str]
# A truth is what is right: a number, the least and the largest number, or None, which
# says that there must be no reading.
Truth: TypeAlias = float | tuple[float, float] | None

# A reading may differ from what is right by this much, since predictions are float32.
# The number is relative to the reading if that is above 1.
_ROUNDING = 1e-5
# The test of a coverage has this level: one half for too few hits, one for too many.
_COVERAGE_LEVEL = 0.01
# What the table of a check says if a constant instrument would pass it, too.
_ONLY_NULLS = (
  'No planted model was read whose truth differs from the null, so the check does not '
  'show that the instrument measures anything.'
)
# Untrained models of these architectures are nulls.
_ARCHITECTURES = 'transformer', 'lstm', 'deep_set'


class Readings(NamedTuple):
  """What an instrument returned for a model.

  Attributes:
    values: The readings by name. A single reading has the name ''.
    reason: Why there are none: the message of a UserError. Empty if there are some.
  """

  values: dict[str, Reading]
  reason: str


def read(function: Instrument, model: Predictor, task: Task, seed: int) -> Readings:
  """Returns what an instrument returns for a model, or why it refuses the model.

  Raises:
    UserError: If a reading is none of what an instrument may return.
  """
  try:
    returned = function(model, task, seed)
  except UserError as error:
    return Readings({}, in_one_line(error, 200))
  values = returned if isinstance(returned, Mapping) else {'': returned}
  return Readings({name: _checked(name, value) for name, value in values.items()}, '')


def _checked(name: str, value: Any) -> Reading:
  if value is None or isinstance(value, Share):
    return value
  try:
    return float(value)
  except TypeError as error:
    raise UserError(
      f'the instrument returns {type(value).__name__} as the reading {name!r}; it must '
      'be an Estimate, an Interval, a number or None'
    ) from error


class Planted(NamedTuple):
  """A model that was built to have a property, and what an instrument must return.

  Attributes:
    model: The model.
    truth: What is right: a number; the least and the largest number; or None, if there
      must be no reading. For an instrument with several readings it is a dictionary by
      name, and readings that it does not name are not checked. If it is None, none of
      the readings may have a value.

  Example:
    >>> step = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> zoo.probing.Planted(step, truth=(0.0, 0.1)).truth
    (0.0, 0.1)
  """

  model: Predictor
  truth: Truth | Mapping[str, Truth]


class Checked(NamedTuple):
  """One reading of an instrument, with what is right for it.

  It is a row of an `InstrumentCheck`, which `check_instrument` returns.

  Attributes:
    kind: 'null', 'planted' or 'coverage'.
    model: The name of the model that was read.
    name: The name of the reading; empty if the instrument returns a single one.
    reading: What the instrument returned. None means that it returned no reading, which
      is right for a null model and for a planted model whose truth is None. For
      coverage it is the share of intervals that contain the truth, with Wilson's 95 %
      interval (`zoo.measure.intervals.wilson`).
    low: The least value that is right. NaN means that no reading is right. For coverage
      it is the least share that is not refused.
    high: The largest value that is right. NaN means that no reading is right. For
      coverage it is the largest share that is not refused.
    is_right: Whether the reading lies in [low, high], up to its error, which must be
      finite. The share of a coverage must lie in [low, high] itself. For a missing
      reading, whether it is right that there is none.
    reason: Why there is no reading: the message of a UserError. For a planted model,
      also why a reading is wrong although its interval contains the truth.
  """

  kind: str
  model: str
  name: str
  reading: Share | None
  low: float
  high: float
  is_right: bool
  reason: str = ''


class InstrumentCheck(NamedTuple):
  """All readings of an instrument that was checked.

  `check_instrument` returns it. It prints as a table.

  Attributes:
    rows: The readings.
  """

  rows: list[Checked]

  @property
  def failures(self) -> list[Checked]:
    """The readings that are not right."""
    return [row for row in self.rows if not row.is_right]

  def __str__(self) -> str:
    table = _table_of(self.rows)
    nulls = [row for row in self.rows if row.kind == 'null']
    is_told_apart = any(
      row.kind == 'planted'
      and row.reading is not None
      and not any(_overlap(row, null) for null in nulls)
      for row in self.rows
    )
    return table if is_told_apart else f'{table}\n{_ONLY_NULLS}'


def check_instrument(
  function: Instrument,
  task: Task,
  *,
  null: Truth = 0.0,
  trained: Predictor | None = None,
  planted: Mapping[str, Planted] | None = None,
  without: Collection[str] = (),
  num_draws: int = 0,
  coverage: float | tuple[float, float] = 0.95,
) -> InstrumentCheck:
  """Checks an instrument on models without the property, and on some that have it.

  A reading is right if its 95 % interval is finite and contains a right value. The
  intervals are widened so that all of them together are right with a probability of
  95 % (Bonferroni). For a model without the property it is also right to return no
  reading: None, or a UserError, whose message is the reason. At least one of these
  models must have a reading.

  A reading of a planted model is wrong if its own 95 % interval also contains a value
  of `null`, since it then cannot tell this model from one without the property. This is
  not asked if the truth is itself a value of `null`.

  Right readings of models without the property alone do not show that the instrument
  measures anything: an instrument that always returns 0 has them, too. Without
  `planted`, or if all truths are values of `null`, the printed table says so.

  The coverage of intervals is wrong if the number of hits is improbable under the
  coverage that is claimed: if so few hits, or so many, have a probability below 0.5 %.
  With 200 draws and a claim of 0.95 the right numbers are 181 to 197. Intervals whose
  true coverage is 0.95 then fail with a probability of 0.5 %. Intervals that are too
  narrow fail with 53 %, 92 % and 99 % if their coverage is 0.90, 0.87 and 0.85.
  Intervals that are too wide fail with 68 % if their coverage is 0.99, and always if it
  is 1. With fewer than 104 draws this claim has no upper limit.

  Args:
    function: The instrument. It takes a model, a task and a seed, and returns a reading
      or a dictionary of readings. A reading is an `Estimate` (mean and standard error),
      an `Interval`, a number without error, or None.
    task: The task from which prompts are drawn.
    null: What is right for models without the property: a number, or the least and the
      largest number, such as `(1, math.inf)`. None means that the quantity has no null,
      as a loss has none, and that only planted models are read. An instrument that
      returns no reading for any model without the property has no null, either: give
      None, and plant such models with the truth None.
    trained: A trained model from which further nulls are made, see `null_models`. An
      instrument that looks into models needs it, since the other nulls are functions.
    planted: Models that have the property, by name.
    without: Names of null models that do have the property, and are left out.
    num_draws: The number of seeds with which each planted model is read, for the
      coverage of its intervals. 0 leaves coverage out. A draw without a reading, or
      with an interval that is not finite, counts as a miss.
    coverage: The coverage that is claimed for the 95 % intervals: a share, or the least
      and the largest share, such as `(0.93, 0.95)` for intervals that are known to be
      a little too narrow.

  Returns:
    The readings, each with what is right.

  Raises:
    UserError: If a reading is wrong; the message has a table of all that are. Also if
      an argument is out of its range, or names what does not exist.

  Example:
    >>> import math
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> def share(model, task, seed):
    ...   found = zoo.probing.sampled_algorithm(model, task, 2048, seed)
    ...   return found.nearest_gd.unexplained
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> planted = {'a step of gradient descent': zoo.probing.Planted(step, 0.0)}
    >>> check = zoo.check_instrument(
    ...   share, task, null=(1, math.inf), planted=planted, without=['untrained lstm']
    ... )
    >>> check.failures
    []
  """
  require_task(task)
  num_draws = check_count('num_draws', num_draws, minimum=0)
  claimed = _claimed(coverage)
  nulls = _nulls(task, null, trained, without)
  planted = planted or {}
  of_nulls = _read_all(function, task, nulls)
  of_planted = _read_all(
    function, task, {name: model for name, (model, _) in planted.items()}
  )
  _check_names(planted, of_planted, of_nulls)
  rows = _null_rows(of_nulls, null) + _planted_rows(of_planted, planted)
  if not rows:
    raise UserError('nothing is read; give a null or planted models')
  number = sum(row.reading is not None for row in rows)
  rows = [row._replace(is_right=_is_right(row, number)) for row in rows]
  rows = [_apart_from_null(row, null) for row in rows]
  if of_nulls and all(row.reading is None for row in rows if row.kind == 'null'):
    reason = 'no null model has a reading'
    rows.append(Checked('null', 'all of them', '', None, *_range(null), False, reason))
  for name, model in planted.items():
    rows += _coverage(function, task, name, model, num_draws, claimed)
  check = InstrumentCheck(rows)
  if check.failures:
    raise UserError(
      f'the instrument is wrong on {len(check.failures)} of {len(rows)} '
      f'readings:\n{_table_of(check.failures)}'
    )
  return check


def null_models(task: Task, trained: Predictor | None = None) -> dict[str, Predictor]:
  """Returns models that learn nothing from the labels in their context.

  Their predictions are

  - a constant, a linear function of the query, and its square;
  - two functions of the features of the examples and the query, one of which is a step
    of gradient descent without what the labels add to it;
  - those of untrained models of three architectures;
  - those of the first of the task's baselines `bayes`, `ridge`, `ols` and
    `nearest_neighbours`, given the labels of another function for the same features, as
    `task.redraw` draws them.

  Args:
    task: The task on whose prompts the models can be called.
    trained: A trained model from which three more models are made. They have its sites,
      and are given examples that are all 0, labels that are all 0, or labels of another
      function.

  Returns:
    The models by name. If the prompts of the task cannot be drawn again, those with
    labels of another function are missing.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> [*zoo.probing.null_models(task)][:2]
    ['a constant', 'linear in the query']
  """
  require_task(task)
  outputs = (task.num_outputs,) if task.num_outputs > 1 else ()
  weights = np.random.default_rng(0).normal(size=(task.num_features, *outputs))
  models: dict[str, Predictor] = {
    'a constant': _Function(weights, lambda prompt: jnp.ones_like(prompt.x_query)),
    'linear in the query': _Function(weights, lambda prompt: prompt.x_query),
    'the square of the query': _Function(
      weights, lambda prompt: jnp.square(prompt.x_query)
    ),
    # A step of gradient descent from a large w_0, without what the labels add to it.
    'a step without labels': _Function(
      10 * weights,
      lambda prompt: prompt.x_query - _second_moment_times_query(prompt) / 2,
    ),
    'features of the examples': _Function(
      weights, lambda prompt: prompt.x_query * (1 + jnp.sum(prompt.x, axis=1))
    ),
  }
  for name in _ARCHITECTURES:
    models[f'untrained {name}'] = _untrained(name, task)
  others = _with_other_labels(task)
  if others is not None:
    baselines = task.baselines()
    for name in 'bayes', 'ridge', 'ols', 'nearest_neighbours':
      if name in baselines:
        models[f'{name} of other labels'] = _composed(baselines[name], others)
        break
  if trained is not None:
    models['trained, examples of 0'] = _altered(trained, _without_examples)
    models['trained, labels of 0'] = _altered(trained, _without_labels)
    if others is not None:
      models['trained, other labels'] = _altered(trained, others)
  return models


def _second_moment_times_query(prompt: Prompt) -> Float[Array, 'b d']:
  along = jnp.einsum('bcd,bd->bc', prompt.x, prompt.x_query)
  return jnp.einsum('bc,bcd->bd', along, prompt.x) / max(prompt.x.shape[1], 1)


class _Function(nnx.Module):
  """A linear map of features that are computed from a prompt: `φ(prompt)·W`."""

  def __init__(self, weights: np.ndarray, features: Callable[[Prompt], Array]):
    self.weights = nnx.Param(jnp.asarray(weights))
    self.features = features

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    features = self.features(prompt)
    return features @ self.weights[...].astype(features.dtype)


class _Altered(nnx.Module):
  """A model that is given altered prompts."""

  def __init__(self, model: Any, alter: Callable[[Prompt], Prompt]):
    self.model, self.alter = model, alter

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    return self.model(self.alter(prompt))


class _AlteredLayers(_Altered):
  """A model with layers that can be read, which is given altered prompts."""

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b n w']]:
    return self.model.layer_tokens(self.alter(prompt))

  def read(
    self, tokens: Float[Array, 'b n w'], prompt: Prompt
  ) -> Float[Array, 'b t *k']:
    return self.model.read(tokens, self.alter(prompt))


def _composed(model: Predictor, alter: Callable[[Prompt], Prompt]) -> Predictor:
  """Returns a predictor that is not a module, given altered prompts."""
  return lambda prompt: model(alter(prompt))


def _altered(model: Predictor, alter: Callable[[Prompt], Prompt]) -> Predictor:
  is_layered = isinstance(model, Layered)
  return (_AlteredLayers if is_layered else _Altered)(model, alter)


def _without_examples(prompt: Prompt) -> Prompt:
  return dataclasses.replace(
    _without_labels(prompt), x=jnp.zeros_like(prompt.x), latents=None
  )


def _without_labels(prompt: Prompt) -> Prompt:
  return dataclasses.replace(prompt, y=jnp.zeros_like(prompt.y), latents=None)


def _with_other_labels(task: Task) -> Callable[[Prompt], Prompt] | None:
  """Returns a function that draws the labels of prompts again.

  The labels are always the same for the same features. None if the prompts of the task
  cannot be drawn again.
  """
  try:
    task.redraw(jax.random.key(0), task.sample(jax.random.key(0), 1), 'inputs')
  except UserError as error:
    logging.info('no null of other labels: %s', error)
    return None

  def redrawn(prompt: Prompt) -> Prompt:
    """Redraws one prompt, `[1, …]`."""
    features = jnp.concatenate([prompt.x.ravel(), prompt.x_query.ravel()])
    bits = jax.lax.bitcast_convert_type(features.astype(jnp.float32), jnp.uint32)
    key = jax.random.fold_in(jax.random.key(0), jnp.sum(bits, dtype=jnp.uint32))
    return task.redraw(key, prompt, 'inputs')

  def alter(prompt: Prompt) -> Prompt:
    prompt = dataclasses.replace(prompt, latents=None, context_targets=None)
    n = prompt.x.shape[1]
    # Queries fill the places of missing examples; their labels are not used.
    missing = jnp.repeat(prompt.x_query[:, None], task.context_length - n, axis=1)
    no_labels = jnp.zeros((len(prompt.y), missing.shape[1], *prompt.y.shape[2:]))
    whole = dataclasses.replace(
      prompt,
      x=jnp.concatenate([prompt.x, missing], axis=1),
      y=jnp.concatenate([prompt.y, no_labels.astype(prompt.y.dtype)], axis=1),
    )
    drawn = jax.vmap(redrawn)(jax.tree.map(lambda array: array[:, None], whole))
    return dataclasses.replace(prompt, y=drawn.y[:, 0, :n])

  return alter


def _untrained(name: str, task: Task) -> Predictor:
  cls = registry.MODELS[name]
  of_task = {
    'num_features': task.num_features,
    'num_outputs': task.num_outputs,
    'context_length': task.context_length,
  }
  taken = registry.parameters(cls)
  arguments = {key: value for key, value in of_task.items() if key in taken}
  return registry.create(
    'model', registry.MODELS, name, {**arguments, 'rngs': nnx.Rngs(0)}
  )


def _read_shares(
  function: Instrument, model: Predictor, task: Task, seed: int
) -> _Read:
  """Returns what `read` does; a number becomes an estimate that is exact."""
  values, reason = read(function, model, task, seed)
  return {
    name: value if value is None or isinstance(value, Share) else Estimate(value, 0.0)
    for name, value in values.items()
  }, reason


def _nulls(
  task: Task,
  null: Truth,
  trained: Predictor | None,
  without: Collection[str],
) -> dict[str, Predictor]:
  """Returns the null models that are read; raises UserError for a name of no model."""
  if isinstance(without, str):
    raise UserError(f'without is {without!r}; it must be a list of names')
  nulls = {} if null is None else null_models(task, trained)
  for name in without:
    if name not in nulls:
      known = ', '.join(nulls) or 'none'
      raise UserError(f'without has {name!r}; the null models are {known}')
  return {name: model for name, model in nulls.items() if name not in without}


def _read_all(
  function: Instrument, task: Task, models: Mapping[str, Predictor]
) -> dict[str, _Read]:
  """Returns what an instrument returns for each model, by name."""
  read = {}
  for name, model in models.items():
    logging.info('check_instrument: %s', name)
    read[name] = _read_shares(function, model, task, 0)
  return read


def _check_names(
  planted: Mapping[str, Planted],
  of_planted: Mapping[str, _Read],
  of_nulls: Mapping[str, _Read],
) -> None:
  """Checks that each reading for which there is a truth was returned for some model.

  If no model has a reading, and the instrument refused the planted model, its names are
  not known.

  Raises:
    UserError: If a reading was never returned.
  """
  read = [*of_planted.values(), *of_nulls.values()]
  names = {key for readings, _ in read for key in readings}
  for name, (_, truth) in planted.items():
    readings, reason = of_planted[name]
    if truth is None or (reason and not names):
      continue
    for key in _truths(truth, readings):
      if key not in names:
        returned = shown([of or 'one without a name' for of in sorted(names)])
        wanted = f'the reading {key!r}' if key else 'a reading without a name'
        raise UserError(
          f'the truth of {name!r} is for {wanted}, which the instrument never '
          f'returned; its readings are {returned or "none"}'
        )


def _null_rows(read: Mapping[str, _Read], null: Truth) -> list[Checked]:
  """Returns the readings of null models; whether they are right is not known yet."""
  return [
    Checked('null', name, key, reading, *_range(null), True, reason)
    for name, (readings, reason) in read.items()
    for key, reading in (readings or {'': None}).items()
  ]


def _planted_rows(
  read: Mapping[str, _Read], planted: Mapping[str, Planted]
) -> list[Checked]:
  """Returns the readings of planted models; whether they are right is not known yet."""
  return [
    Checked('planted', name, key, readings.get(key), *_range(right), True, reason)
    for name, (readings, reason) in read.items()
    for key, right in _truths(planted[name].truth, readings).items()
  ]


def _truths(
  truth: Truth | Mapping[str, Truth], readings: Collection[str]
) -> Mapping[str, Truth]:
  """Returns what is right for each name of a reading.

  The truth None is for all `readings`.
  """
  if isinstance(truth, Mapping):
    return truth
  return {'': truth} if truth is not None else dict.fromkeys(readings or [''])


def _claimed(coverage: float | tuple[float, float]) -> tuple[float, float]:
  ends = coverage if isinstance(coverage, tuple) else (coverage, coverage)
  checked = [check_number('coverage', end, above=0.0, maximum=1.0) for end in ends]
  if len(checked) != 2 or checked[0] > checked[1]:
    raise UserError(
      f'coverage is {coverage!r}; it must be a share, or the least and the largest'
    )
  return checked[0], checked[1]


def _range(truth: Truth) -> tuple[float, float]:
  if truth is None:
    return math.nan, math.nan
  low, high = truth if isinstance(truth, tuple) else (truth, truth)
  return float(low), float(high)


def _is_right(row: Checked, number: int) -> bool:
  """Returns whether the interval of a reading is finite and contains a right value.

  The reading is one of `number` readings, by which the interval is widened.
  """
  if row.reading is None:
    return row.kind == 'null' or math.isnan(row.low)
  if math.isnan(row.low):
    return False
  mean = row.reading.mean
  width = _half(row.reading, 1 - LEVEL / max(number, 1)) + _rounding(mean)
  return math.isfinite(width) and mean - width <= row.high and mean + width >= row.low


def _half(reading: Share, confidence: float = 0.95) -> float:
  """Returns half of the interval of a reading, at a given confidence.

  An `Interval` is widened or narrowed as that of a normal distribution.
  """
  if isinstance(reading, Estimate):
    return reading.interval(confidence).half
  own = half_of(1.0, confidence=reading.confidence)
  return reading.half * half_of(1.0, confidence=confidence) / own


def _apart_from_null(row: Checked, null: Truth) -> Checked:
  """Returns a reading, which is wrong if its interval has the truth and the null.

  A reading of a planted model may have both if the truth is itself a null.
  """
  if row.kind != 'planted' or row.reading is None or null is None or not row.is_right:
    return row
  low, high = _range(null)
  truth_is_null = row.low <= high and row.high >= low
  mean, half = row.reading.mean, _half(row.reading)
  contains_null = mean - half <= high and mean + half >= low
  if truth_is_null or not contains_null:
    return row
  return row._replace(is_right=False, reason='its interval contains the null, too')


def _overlap(row: Checked, other: Checked) -> bool:
  """Says whether the same reading can be right for both rows."""
  return row.low <= other.high and row.high >= other.low


def _rounding(mean: float) -> float:
  return _ROUNDING * max(1.0, abs(mean))


def _coverage(
  function: Instrument,
  task: Task,
  name: str,
  planted: Planted,
  num_draws: int,
  claimed: tuple[float, float],
) -> list[Checked]:
  """Returns, for each reading, how often its 95 % interval contains the truth."""
  from scipy import stats  # It is slow to import.

  if not num_draws:
    return []
  logging.info('check_instrument: coverage of %s', name)
  draws = [
    _read_shares(function, planted.model, task, seed)[0] for seed in range(num_draws)
  ]
  # Under the least coverage that is claimed, fewer hits than `least` have half of the
  # level at most. Under the largest coverage, so have more hits than `most`.
  least = int(stats.binom.ppf(_COVERAGE_LEVEL / 2, num_draws, claimed[0]))
  most = int(stats.binom.isf(_COVERAGE_LEVEL / 2, num_draws, claimed[1]))
  ends = least / num_draws, most / num_draws
  rows = []
  for key, truth in _truths(planted.truth, ()).items():
    if truth is None:
      continue
    readings = [draw.get(key) for draw in draws]
    if all(of is None or of.half <= _rounding(of.mean) for of in readings):
      continue  # No reading has an error above its rounding, or there is no reading.
    hits = np.array([of is not None and _contains(of, truth) for of in readings])
    is_right = bool(least <= hits.sum() <= most)
    rows.append(Checked('coverage', name, key, wilson(hits), *ends, is_right))
  return rows


def _contains(reading: Share, truth: Truth) -> bool:
  """Returns whether the 95 % interval of a reading is finite and contains the truth."""
  low, high = _range(truth)
  half = _half(reading) + _rounding(reading.mean)
  return (
    math.isfinite(half) and reading.mean - half <= high and reading.mean + half >= low
  )


def _table_of(rows: Sequence[Checked]) -> str:
  header = 'kind', 'model', 'reading', 'returned', 'right', ''
  return format_table([_words_of(row) for row in rows], header)


def _words_of(row: Checked) -> Sequence[str]:
  if row.reading is None:
    returned = f'none: {row.reason}' if row.reason else 'none'
  elif row.reading.half:
    returned = f'{row.reading.mean:.3g} ± {row.reading.half:.2g}'
  else:
    returned = f'{row.reading.mean:.3g}'
  if math.isnan(row.low):
    right = 'none'
  elif row.low == row.high:
    right = f'{row.low:.3g}'
  elif row.high == math.inf:
    right = f'≥ {row.low:.3g}'
  elif row.low == -math.inf:
    right = f'≤ {row.high:.3g}'
  else:
    right = f'{row.low:.3g} … {row.high:.3g}'
  why = f': {row.reason}' if row.reading is not None and row.reason else ''
  wrong = '' if row.is_right else f'WRONG{why}'
  return row.kind, row.model, row.name, returned, right, wrong
