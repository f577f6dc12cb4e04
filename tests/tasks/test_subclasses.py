"""What a subclass of a task inherits is true of it, or goes by another name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.marks import FULL, mostly_full
from zoo import theory
from zoo.tasks import BaseTask, FunctionClass, LinearRegression, QuadraticRegression
from zoo.tasks.base import baselines_of, dot, shifts_of
from zoo.tasks.baselines import Zero

_D, _C = 3, 4


def _doubled(prompt):
  return zoo.Prompt(prompt.x, 2 * prompt.y, prompt.x_query, 2 * prompt.y_query)


def _super(self) -> Any:
  return super(type(self), self)


def _sample(self, key, batch_size):
  return _doubled(_super(self).sample(key, batch_size))


def _sample_one(self, key):
  return _doubled(_super(self).sample_one(key))


def _evaluate(self, function, x):
  return 2 * _super(self).evaluate(function, x)


def _loss(self, prediction, target):
  return jnp.abs(prediction - target)


def _sample_function(self, key):
  return 2 * _super(self).sample_function(key)


def _sample_features(self, key):
  return 2 * _super(self).sample_features(key)


def _sample_labels(self, key, targets):
  return 2 * targets


_PARENTS = [LinearRegression, QuadraticRegression]
_CHANGES = {
  'sample': _sample,
  'sample_one': _sample_one,
  'evaluate': _evaluate,
  'loss': _loss,
  'sample_function': _sample_function,
  'sample_features': _sample_features,
  'sample_labels': _sample_labels,
}
_every_change = pytest.mark.parametrize('change', _CHANGES)
_every_parent = pytest.mark.parametrize('parent', _PARENTS)


def _subclass(parent, **attributes) -> Any:
  return type('Own', (parent,), attributes)(_D, _C)


@_every_change
def test_an_inherited_bayes_goes_by_the_name_of_its_class(change):
  names = [*QuadraticRegression(_D, _C).baselines()]
  task = _subclass(QuadraticRegression, **{change: _CHANGES[change]})
  names[names.index('bayes')] = 'bayes_of_QuadraticRegression'
  assert [*task.baselines()] == names
  # A class in between makes no difference.
  assert [*baselines_of(_subclass(type(task)))] == names


@_every_change
def test_what_follows_from_the_prior_of_linear_regression_is_not_inherited(change):
  task = _subclass(LinearRegression, **{change: _CHANGES[change]})
  assert [*task.baselines()] == ['ols', 'averaging', 'nearest_neighbours', 'zero']


@_every_parent
def test_a_bayes_of_ones_own_keeps_its_name(parent):
  own = {'bayes': Zero()}
  task = _subclass(parent, sample=_sample, baselines=lambda self: own)
  assert task.baselines() == own
  promised = _subclass(parent, sample=_sample, exact_theory=True)
  assert 'bayes' in baselines_of(promised)
  # What changes no prompt changes no name.
  quadratic = _subclass(QuadraticRegression, shifts=lambda self: {})
  assert 'bayes' in baselines_of(quadratic)
  # A promise is that of one class, not of its subclasses.
  assert 'bayes' not in baselines_of(_subclass(type(promised), loss=_loss))


@_every_change
def test_theory_refuses_a_subclass_that_does_not_promise_its_own_sampling(change):
  task = _subclass(LinearRegression, **{change: _CHANGES[change]})
  assert not theory.covers(task)
  rule = zoo.LearningRule.gradient_descent(np.zeros(_D), 0.5)
  with refuses('the task is of type Own', 'exact_theory = True'):
    theory.exact_risk(rule, task)


def test_theory_covers_a_subclass_that_promises():
  rule = zoo.LearningRule.gradient_descent(np.zeros(_D), 0.5)
  task = _subclass(LinearRegression, exact_theory=True)
  assert theory.exact_risk(rule, task) == theory.exact_risk(
    rule, LinearRegression(_D, _C)
  )
  with refuses('the task is of type Own'):
    theory.exact_risk(rule, _subclass(type(task)))
  with refuses('the task is of type Own'):
    theory.exact_risk(rule, _subclass(QuadraticRegression, exact_theory=True))


_PARTS = [name for name in _CHANGES if name not in ('sample', 'loss')]


@pytest.mark.parametrize(
  ('parent', 'change'),
  mostly_full(
    [(QuadraticRegression, 'evaluate'), *((LinearRegression, part) for part in _PARTS)],
    _PARENTS,
    _PARTS,
  ),
)
def test_a_part_that_a_subclass_redefines_is_used(parent, change):
  """Also of linear regression, which samples all prompts at once."""
  task = _subclass(parent, **{change: _CHANGES[change]})
  key = jax.random.key(0)
  found = task.sample(key, 3)
  keys = [jax.random.fold_in(key, i) for i in range(3)]
  sample_one = jax.jit(task.sample_one)
  expected = [sample_one(one) for one in keys]
  expected = jax.tree.map(lambda *leaves: np.stack(leaves), *expected)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected
  )


@pytest.mark.parametrize('change', ['sample', 'sample_one'])
@_every_parent
def test_shifts_do_not_sample_with_functions_that_are_not_those_of_the_task(
  parent, change
):
  task = _subclass(parent, **{change: _CHANGES[change]})
  shifts = task.shifts()
  assert [*shifts] == [f'context_length={_C * k}' for k in (2, 4, 8, 16, 32)]
  assert all(type(shifted) is type(task) for shifted in shifts.values())


def test_shifts_use_the_functions_of_the_subclass():
  class Ones(QuadraticRegression):
    def evaluate(self, function, x):
      return dot(x, jnp.ones_like(function)[None])

  prompt = shifts_of(Ones(_D, _C))['scale_x=2'].sample(jax.random.key(0), 5)
  np.testing.assert_allclose(prompt.y, np.sum(prompt.x, axis=-1), rtol=1e-5, atol=1e-5)


def test_tasks_that_differ_in_an_attribute_of_their_own_are_not_equal():
  """They would otherwise share compiled programs."""

  class Powers(LinearRegression):
    def __init__(self, power):
      super().__init__(_D, _C)
      self.power = power

    def evaluate(self, function, x):
      return super().evaluate(function, x**self.power)

  assert Powers(1) == Powers(1) != Powers(2)
  one, two = (Powers(power).sample(jax.random.key(0), 4) for power in (1, 2))
  np.testing.assert_array_equal(one.x, two.x)
  assert not np.any(one.y == two.y)


def test_a_base_task_without_parts_is_not_asked_for_them():
  class Own(BaseTask):
    num_features, context_length = _D, _C

  assert baselines_of(Own()) == {}
  with pytest.raises(NotImplementedError):
    Own().sample(jax.random.key(0), 2)
  assert issubclass(LinearRegression, FunctionClass)


def test_the_dot_product_of_other_lengths_is_refused(unchecked):
  with refuses('vectors of 3 and 2 entries have no dot product'):
    dot(jnp.ones((4, 3)), jnp.ones((1, 2)))


class _Private(FunctionClass):
  """Keeps its argument in an attribute that begins with an underscore."""

  num_features, context_length = _D, _C

  def __init__(self, scale):
    self._scale = scale

  def sample_function(self, key):
    return jnp.sum(jnp.asarray(self._scale)) * jax.random.normal(key, (_D,))

  def evaluate(self, function, x):
    return dot(x, function[None])


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    (np.ones(2), 50 * np.ones(2)),
    pytest.param(1.0, 100.0, marks=FULL),
    pytest.param([1.0], [100.0], marks=FULL),
  ],
)
def test_tasks_that_differ_in_a_private_attribute_are_not_equal(one, other):
  first, same, second = _Private(one), _Private(one), _Private(other)
  assert first == same
  assert hash(first) == hash(same)
  assert first != second
  prompts = [task.sample(jax.random.key(0), 2) for task in (first, second)]
  assert not np.array_equal(prompts[0].y, prompts[1].y)
  np.testing.assert_array_equal(prompts[0].x, prompts[1].x)


def test_tasks_that_differ_in_an_argument_alone_are_not_equal(register):
  class Hidden:
    """Equal to all others."""

    def __init__(self, scale):
      self.scale = scale

    def __eq__(self, other):
      return isinstance(other, Hidden)

    def __hash__(self):
      return 0

  @zoo.register_task('hides_its_scale')
  class Hides(_Private):
    def __init__(self, scale):
      self.hidden = Hidden(scale)

    def sample_function(self, key):
      return self.hidden.scale * jax.random.normal(key, (_D,))

  del register
  assert Hides(1.0) == Hides(1.0)
  assert Hides(1.0) != Hides(100.0)


def test_keys_and_containers_in_private_attributes_are_compared_by_content():
  def task(seed, *more):
    made = _Private(1.0)
    made.__dict__ |= {'_key': jax.random.key(seed), '_sets': {'a': {1, *more}}}
    return made

  assert task(0) == task(0)
  assert hash(task(0)) == hash(task(0))
  assert task(0) != task(1)
  assert task(0) != task(0, 2)
