"""Exact risks and differences of models, estimators and learning rules."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError, check_same
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.protocols import FollowsRule, HasExactForm, Predictor, Task
from zoo.tasks.linear_regression import (
  GDBeta,
  GradientDescent,
  Ridge,
  require_covered,
)
from zoo.tasks.task_pool import TaskPool
from zoo.theory import sequential
from zoo.theory.deep.deep_rule import (
  GeneralSpectrum,
  Spectrum,
  deep_rule_risk,
  deep_spectrum,
)
from zoo.theory.label_moments import QuadraticRisk, quadratic_risk, risk_of
from zoo.theory.moments import Moments, task_moments
from zoo.theory.optimum import optimal_rule
from zoo.theory.precision import double_precision, in_float64, to_float64
from zoo.theory.ridge import ridge_risk
from zoo.theory.risk import float64_risk, mean_square, population_risk
from zoo.theory.schedules import gradient_descent_risk
from zoo.theory.trust import check_rule, is_ours

Scalar = float | Float[Array, '']
Form = DeepRule | Recurrence
Constants = Spectrum | GeneralSpectrum | Moments  # what a risk depends on in a task

# Bounds whose relative difference is below float32 resolution count as equal.
_RESOLVED = 1e-7


class ExcessRisk(NamedTuple):
  """The risk above that of the global optimum, as the sum of two parts."""

  initial_guess: Scalar  # the remaining error of the guess after correction in context
  update: Scalar  # the excess due to an update other than the best step


class Difference(NamedTuple):
  """Expected squared differences of two learning rules on one task."""

  prediction: Scalar  # E (f − f')²
  gradient: Scalar  # E |∂f/∂x_q − ∂f'/∂x_q|²


def exact_risk(subject: Predictor, task: Task) -> Scalar:
  """The in-context risk `E (f − ŵ·x_q)²` (arXiv 2512.04268, eq. 4), without sampling.

  `subject` is a LearningRule, a model or an estimator that has one, a model with an
  exact form, or an estimator whose risk has a closed form. The result is a float,
  computed in float64 whatever JAX's default; for a subject traced by jit, grad or vmap
  it is a scalar array in the precision of the subject's arrays. It takes O(d³) time,
  O(d⁴) with a feature covariance, and O(d⁶) on a `task_pool`, where the expectation is
  over the pool's weights.

  Raises UserError naming the task or the subject that exact theory does not cover.
  """
  if isinstance(subject, GradientDescent) and subject.step_sizes.size > 1:
    regression = require_covered(task)
    return gradient_descent_risk(regression, subject.step_sizes, subject.start)
  if isinstance(subject, Ridge):
    return _resolved(subject, task)
  if isinstance(subject, HasExactForm):
    return _risk_of_form(subject, task)
  if isinstance(task, TaskPool):
    return evaluate_form(quadratic_risk(task), subject)
  return _evaluate(_risk, task_moments(task), subject)


def _resolved(subject: Ridge, task: Task) -> float:
  """The risk of ridge regression; raises UserError if its bounds differ too much."""
  lower, upper = ridge_risk(subject, task)
  if lower == upper:  # both may be infinite
    return upper
  if upper - lower > _RESOLVED * upper:
    raise UserError(
      f'the risk is known only to lie between {lower:.9g} and {upper:.9g}, which '
      'theory.ridge_risk returns; the fewer examples and the less noise there are, the '
      'wider apart they are'
    )
  return (lower + upper) / 2


def evaluate_form(form: QuadraticRisk, subject: Predictor) -> Scalar:
  """The exact risk of a learning rule, for a risk given as a quadratic form."""
  return _evaluate(_form_risk, form, subject)


def exact_curve(subject: Predictor, task: Task) -> Float[np.ndarray, ' n']:
  """The exact risks of a recurrence after 0, …, C examples, in float64.

  `subject` is a model whose exact form is a Recurrence. Raises UserError for others and
  for a task that exact theory does not cover.
  """
  form = None
  if isinstance(subject, HasExactForm):
    with double_precision():
      form = exact_form(in_float64(subject))
  if not isinstance(form, Recurrence):
    raise UserError(
      f'{type(subject).__name__} is not a recurrence whose coefficients are the '
      'same for every prompt; its curve can only be estimated from samples'
    )
  return sequential.curve(task, form.decay, form.erase, form.write, form.start)


def known_risk(predictor: Predictor, task: Task) -> float | None:
  """The exact risk; None if it has no closed form."""
  try:
    return float(exact_risk(predictor, task))
  except UserError:
    return None


def exact_risks(rules: LearningRule, moments: Moments) -> Float[Array, ' n']:
  """The exact risks of learning rules on tasks, both stacked along their first axes.

  Computes `exact_risk` in float64 and in one call; the rules are on the host.
  """
  with double_precision():
    return _risks(jax.tree.map(to_float64, moments), rules)


def exact_form_risks(forms: Form, task: Task) -> Float[Array, ' n']:
  """The exact risks of exact forms on one task, stacked along their first axes.

  Computes `exact_risk` in float64 and in one call; the forms are on the host.
  """
  with double_precision():
    constants = jax.tree.map(to_float64, form_constants(forms, task))
    return _risks_of_forms(constants, forms)


def excess_risk(subject: Predictor, task: Task) -> ExcessRisk:
  """The exact risk above the global optimum, in two parts, both ≥ 0.

  The risk is quadratic in the rule, so the excess is the mean squared difference from
  the optimum. The even part of the difference comes from the initial guess, the odd
  part from the update (docs/theory.md, section 3). Raises UserError as `exact_risk`
  does.
  """
  even, odd, _ = _evaluate(_squares, task_moments(task), subject, optimal_rule(task))
  return ExcessRisk(even, odd)


def squared_difference(subject: Predictor, other: Predictor, task: Task) -> Difference:
  """The exact expected squared differences between two learning rules on a task.

  Raises UserError as `exact_risk` does.
  """
  even, odd, gradient = _evaluate(_squares, task_moments(task), subject, other)
  return Difference(even + odd, gradient)


def exact_form(subject: HasExactForm) -> Form:
  """The exact form of a model of this library; raises UserError if it has none.

  A user's subclass may predict differently from the form that it inherits.
  """
  if not is_ours(subject):
    raise UserError(
      f'{type(subject).__name__} is not a class of the library; only classes of the '
      'library are known to predict as their exact forms'
    )
  return subject.exact_form()


def form_constants(form: Form, task: Task) -> Constants:
  """What the risk of a form depends on in a task; only the form's shapes are read.

  Raises UserError naming the property of the task that exact theory does not cover.
  """
  if isinstance(form, DeepRule):
    return deep_spectrum(form, task)
  return sequential.recurrence_moments(form, task)


def form_risk(form: Form, constants: Any) -> Float[Array, '']:
  """The risk in the precision of the form; for use under jit, grad and vmap."""
  if isinstance(form, DeepRule):
    return deep_rule_risk(form, constants)
  return sequential.recurrence_curve(form, constants)[-1]


def require_rule(subject: Predictor | nnx.Module) -> FollowsRule:
  """The subject, if it has a learning rule; raises UserError otherwise."""
  if not isinstance(subject, FollowsRule):
    raise UserError(
      f'{type(subject).__name__} has no learning rule, which this needs; its risk can '
      'only be estimated from samples'
    )
  return subject


def float64_rule(subject: Predictor | nnx.Module) -> LearningRule:
  """The learning rule of a concrete subject, computed from its parameters in float64.

  Its leaves are on the host, where sums of rules need no programs. Use it where x64 is
  enabled. Raises UserError if the subject has no learning rule, or predicts differently
  from its rule.
  """
  check_rule(subject)
  with double_precision():
    follower = require_rule(in_float64(subject))
    if isinstance(follower, nnx.Module):
      rule = _rule_of(follower)
    else:
      rule = follower.learning_rule()
    # Copies, for the reason that `to_float64` makes a view.
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64), rule)


@nnx.jit  # otherwise each operation would be a program
def _rule_of(model: Any) -> LearningRule:
  return model.learning_rule()


@jax.jit
def _risk(moments: Moments, rule: LearningRule) -> Array:
  # Concrete rules are in float64 here; traced ones keep the caller's dtype.
  if rule.update.dtype == jnp.float64:
    return float64_risk(rule, moments)
  return population_risk(rule, moments)


_form_risk = jax.jit(risk_of)


def _risk_of_form(subject: HasExactForm, task: Task) -> Scalar:
  if any(isinstance(leaf, Tracer) for leaf in _leaves([subject])):
    form = exact_form(subject)
    return form_risk(form, form_constants(form, task))
  with double_precision():
    form = exact_form(in_float64(subject))
    return float(exact_form_risks(jax.tree.map(lambda leaf: leaf[None], form), task)[0])


@jax.jit
def _risks_of_forms(constants: Constants, forms: Form) -> Array:
  forms = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), forms)
  return jax.vmap(lambda form: form_risk(form, constants))(forms)


@jax.jit
def _risks(moments: Moments, rules: LearningRule) -> Array:
  return jax.vmap(float64_risk)(rules, moments)


@jax.jit
def _squares(
  moments: Moments, rule: LearningRule, other: LearningRule
) -> tuple[Array, Array, Array]:
  """The mean square of the difference, in two parts, and that of its gradient."""
  gap = rule - other
  even, odd = mean_square(gap, moments)
  gradient = mean_square(gap, moments, gradient=True)
  return even, odd, gradient.even + gradient.odd


Result = TypeVar('Result')


def _evaluate(
  function: Callable[..., Result],
  moments: Moments | QuadraticRisk,
  *subjects: Predictor,
) -> Result:
  """Applies a function to moments and rules, under tracing if a subject is traced."""
  followers = [require_rule(_at_length(subject, moments)) for subject in subjects]
  if any(isinstance(leaf, Tracer) for leaf in _leaves(followers)):
    rules = [subject.learning_rule() for subject in followers]
    _check_features(rules, moments)
    return function(moments, *rules)
  with double_precision():
    rules = [float64_rule(subject) for subject in followers]
    _check_features(rules, moments)
    found = function(jax.tree.map(to_float64, moments), *rules)
    return jax.tree.map(float, found)


def _at_length(subject: Predictor, moments: Moments | QuadraticRisk) -> Predictor:
  """A baseline of linear regression as it predicts after the examples of a task."""
  tuned = isinstance(subject, GradientDescent | GDBeta)
  if not (tuned and isinstance(moments, Moments)):
    return subject
  return subject.at_length(int(moments.context_length))


def _leaves(subjects: Sequence[Predictor]) -> list[PyTree]:
  return [
    leaf
    for subject in subjects
    for leaf in jax.tree.leaves(
      nnx.state(subject) if isinstance(subject, nnx.Module) else subject
    )
  ]


def _check_features(
  rules: list[LearningRule], moments: Moments | QuadraticRisk
) -> None:
  if isinstance(moments, QuadraticRisk):
    d = len(moments.cross) - 1
  else:
    d = np.size(moments.prior_mean)
  for rule in rules:
    check_same('features', rule.num_features, d)
