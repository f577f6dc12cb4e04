"""Exact risks and differences of models, estimators and learning rules."""

import dataclasses
from collections.abc import Callable
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
from zoo.core.programs import compiled
from zoo.core.protocols import FollowsRule, HasExactForm, Predictor, Task
from zoo.core.taps import is_edited
from zoo.estimators.linear import GDBeta, GradientDescent, Ridge
from zoo.tasks.linear_regression import require_covered
from zoo.tasks.task_pool import TaskPool
from zoo.theory import sequential
from zoo.theory.deep.deep_rule import (
  GeneralSpectrum,
  Spectrum,
  deep_rule_risk,
  deep_spectrum,
)
from zoo.theory.optimum import optimal_rule
from zoo.theory.precision import double_precision, in_float64, to_float64
from zoo.theory.quadratic_risk import QuadraticRisk, pool_risk, risk_of
from zoo.theory.ridge import ridge_risk
from zoo.theory.risk import (
  Moments,
  float64_risk,
  mean_square,
  population_risk,
  task_moments,
)
from zoo.theory.schedules import gradient_descent_risk
from zoo.theory.trust import QUICK_TO_COMPILE, check_rule

Scalar = float | Float[Array, '']
Form = LearningRule | DeepRule | Recurrence
# The numbers of a task that determine the risk of a form.
Constants = Moments | QuadraticRisk | Spectrum | GeneralSpectrum

# Bounds whose relative difference is below float32 resolution count as equal.
_RESOLVED = 1e-7


class ExcessRisk(NamedTuple):
  """The risk above that of the global optimum, as the sum of two parts, both ≥ 0.

  `excess_risk` returns it.

  Attributes:
    initial_guess: The part that stays the same if `ŵ − w*` and the noise change sign.
      It is the error that is left after the context has corrected the initial guess,
      and so depends on the guess and on the terms of the rule that correct it.
    update: The part that changes its sign with them: the error of the update from the
      best step.
  """

  initial_guess: Scalar
  update: Scalar


class Difference(NamedTuple):
  """Expected squared differences of two learning rules f and f' on one task.

  `squared_difference` returns it.

  Attributes:
    prediction: `E (f − f')²`, the difference of the predictions.
    gradient: `E |∂f/∂x_q − ∂f'/∂x_q|²`, the difference of the gradients with respect to
      the features of the query.
  """

  prediction: Scalar
  gradient: Scalar


def exact_risk(subject: Predictor, task: Task) -> Scalar:
  """Computes the in-context risk of a predictor from formulas, without sampling.

  The risk is `E (f − ŵ·x_q)²`, the expected squared error of the prediction f at the
  query, whose target ŵ·x_q is that of the prompt's weights ŵ, without label noise. It
  takes O(d³) time, O(d⁴) if the task has a feature covariance, and O(d⁶) on a
  `task_pool`.

  See also `exact_curve`, the risk of a recurrence after each example; `exact_risks`,
  many rules in one call; and `excess_risk`, the distance from the optimum.

  Args:
    subject: A `LearningRule`; a model or an estimator with the method `learning_rule`;
      a model with the method `exact_form`; or gradient descent with several steps,
      least squares or ridge regression, whose risks have closed forms.
    task: A `linear_regression`; or a `task_pool`, where the expectation is over the
      weights of the pool.

  Returns:
    The risk as a float, which is computed in float64 whatever JAX's default is. For
    ridge regression, whose risk has bounds, it is the middle of the bounds. If jit,
    grad or vmap traces the subject, the risk is a scalar array in the precision of the
    subject's arrays.

  Raises:
    UserError: If the theory does not cover the task or the subject (subclasses of
      `GradientDescent` and `Ridge` are covered if they have a rule), if the subject
      predicts differently from its rule or form, if taps of the model have been
      replaced, or if the bounds of a ridge regression's risk differ by more than a
      relative 1e-7.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> round(zoo.theory.exact_risk(rule, task), 6)
    1.0

  References:
    arXiv 2512.04268, eq. 4, defines the risk; docs/theory_one_layer.md, section 2, has
    the formula for learning rules.
  """
  return _exact_risk(subject, task, is_checked=False)


def known_risk(
  predictor: Predictor, task: Task, is_checked: bool = False
) -> float | None:
  """Returns the exact risk, or None if it is unknown or a predictor breaks its rule.

  `is_checked` says that the predictor is known to predict as its rule or form does.
  """
  try:
    return float(_exact_risk(predictor, task, is_checked))
  except UserError:
    return None


def _exact_risk(subject: Predictor, task: Task, is_checked: bool) -> Scalar:
  """Computes `exact_risk`; with `is_checked` the subject's rule or form is trusted."""
  if is_edited(subject):
    raise UserError('the model is edited: no exact form is known for it')
  # A subclass of an estimator may predict otherwise.
  if type(subject) is GradientDescent and subject.step_sizes.size > 1:
    regression = require_covered(task)
    start = 0.0 if subject.start is None else subject.start
    return gradient_descent_risk(regression, subject.step_sizes, start)
  if type(subject) is Ridge:
    lower, upper = ridge_risk(subject, task)
    if lower == upper:  # Both may be infinite.
      return upper
    if upper - lower > _RESOLVED * upper:
      raise UserError(
        f'the risk is known only to lie between {lower:.9g} and {upper:.9g}, the '
        'bounds that zoo.theory.ridge_risk returns; they are the wider apart, the '
        'fewer examples and the less noise there are'
      )
    return (lower + upper) / 2
  if type(task) is not TaskPool:
    require_covered(task)  # This is checked before anything is computed.
  if isinstance(subject, HasExactForm):
    form = _float64_form(subject, is_checked)
  else:
    form = rule_of(subject, task, is_checked)
  return evaluate(risk, form_constants(form, task), form)


def exact_curve(subject: Predictor, task: Task) -> Float[np.ndarray, ' n']:
  """Computes the exact risks of a recurrence after 0, …, C examples, in float64.

  Args:
    subject: A model whose exact form is a `Recurrence`, such as `sequential`.
    task: A `linear_regression` with C examples.

  Returns:
    The risks `[C + 1]`. The first one is that of the initial weights.

  Raises:
    UserError: If the subject is not such a model, predicts differently from its form,
      or has other sizes than the task; if the theory does not cover the task; or if a
      risk is too large for float64.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> model = zoo.create_model(
    ...   'sequential', num_features=2, context_length=3, rngs=nnx.Rngs(0)
    ... )
    >>> print(zoo.theory.exact_curve(model, task).round(3))  # after 0 to 3 examples
    [2.    1.679 2.039 2.389]

  References:
    The page "Sequences" of the documentation derives the formula.
  """
  form = _float64_form(subject) if isinstance(subject, HasExactForm) else None
  if not isinstance(form, Recurrence):
    raise UserError(
      f'{type(subject).__name__} is not a recurrence whose coefficients are the '
      'same for every prompt; zoo.curve estimates the curve of any predictor from '
      'samples'
    )
  return sequential.risk_curve(task, form.decay, form.erase, form.write, form.start)


def exact_risks(rules: LearningRule, moments: Moments) -> Float[Array, ' n']:
  """Computes the exact risks of many learning rules, each on its own task, in one call.

  The risks are those of `exact_risk`, in float64.

  Args:
    rules: n learning rules on the host, with their leaves stacked along the first axis.
    moments: The `task_moments` of n tasks, stacked in the same way.

  Returns:
    The risks `[n]`.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> pairs = [(rule, zoo.theory.task_moments(task))] * 2
    >>> rules, moments = jax.tree.map(lambda *leaves: np.stack(leaves), *pairs)
    >>> zoo.theory.exact_risks(rules, moments).round(6).tolist()
    [1.0, 1.0]
  """
  with double_precision():
    return _rule_risks(rules, jax.tree.map(to_float64, moments))


_rule_risks = jax.jit(jax.vmap(float64_risk))


def exact_form_risks(forms: Form, task: Task) -> Float[Array, ' n']:
  """Computes the exact risks of many exact forms on one task, in one call.

  The risks are those of `exact_risk`, in float64.

  Args:
    forms: n forms of one class on the host (`LearningRule`, `DeepRule` or
      `Recurrence`), with their leaves stacked along the first axis.
    task: A `linear_regression`; for learning rules it may be a `task_pool`.

  Returns:
    The risks `[n]`.

  Raises:
    UserError: If the theory does not cover the task, or the sizes of the forms and the
      task differ.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> rules = [
    ...   zoo.LearningRule.gradient_descent(np.zeros(2), step) for step in (0.5, 1.0)
    ... ]
    >>> forms = jax.tree.map(lambda *leaves: np.stack(leaves), *rules)
    >>> zoo.theory.exact_form_risks(forms, task).round(6).tolist()
    [1.0, 2.0]
  """
  with double_precision():
    constants = form_constants(forms, task)
    return _form_risks(*jax.tree.map(to_float64, (forms, constants)))


def excess_risk(subject: Predictor, task: Task) -> ExcessRisk:
  """Computes the exact risk above that of the global optimum, split into two parts.

  The risk is quadratic in the rule, so the excess is the mean squared difference of the
  predictions from those of the optimum. That difference is split by its behaviour when
  `ŵ − w*` and the noise change sign. The even part is that of the initial guess, with
  the terms of the rule that correct it, which cause an error even if the guess is w*.
  The odd part is that of the update.

  Args:
    subject: A `LearningRule`, or a model or an estimator that has one.
    task: A `linear_regression`.

  Returns:
    The two parts, both ≥ 0. Their sum is the excess.

  Raises:
    UserError: If the theory does not cover the task, or if the subject has no learning
      rule, predicts differently from it, or has another number of features.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, prior_mean=1.0
    ... )
    >>> from_zero = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> excess = zoo.theory.excess_risk(from_zero, task)
    >>> round(excess.initial_guess, 6), round(excess.update, 6)
    (1.0, 0.0)

  References:
    docs/theory_one_layer.md, section 3.
  """
  even, odd, _ = _squared_gap(subject, optimal_rule(task), task)
  return ExcessRisk(even, odd)


def squared_difference(subject: Predictor, other: Predictor, task: Task) -> Difference:
  """Computes the exact expected squared differences of two learning rules on a task.

  The prediction of one learning rule is subtracted from that of the other; the result
  is a learning rule too, so that its mean square has the same formula as a risk.

  Args:
    subject: A `LearningRule`, or a model or an estimator that has one.
    other: Another one, with the same number of features.
    task: A `linear_regression`.

  Returns:
    The mean squared differences of the predictions and of their gradients in the query.

  Raises:
    UserError: If the theory does not cover the task, or if one of the two has no
      learning rule, predicts differently from it, or has another number of features.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> near = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> far = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=1.0)
    >>> round(zoo.theory.squared_difference(near, far, task).prediction, 6)
    1.0
  """
  even, odd, gradient = _squared_gap(subject, other, task)
  return Difference(even + odd, gradient)


def _squared_gap(subject: Predictor, other: Predictor, task: Task) -> tuple:
  moments = task_moments(task)
  gap = rule_of(subject, task) - rule_of(other, task)
  check_same('features', gap.num_features, task.num_features)
  return evaluate(_squares, moments, gap)


def exact_form(subject: Predictor) -> DeepRule | Recurrence:
  """Returns the exact form of a model of any class that has the method `exact_form`.

  Whether the model predicts as its form does is checked on a few prompts, unless a
  program that is being traced contains the model.

  Args:
    subject: The model.

  Returns:
    A `DeepRule` or a `Recurrence`, which predicts the same for every prompt.

  Raises:
    UserError: If the model has no exact form, or predicts differently from it.

  Example:
    >>> model = zoo.create_model(
    ...   'sequential', num_features=2, context_length=3, rngs=nnx.Rngs(0)
    ... )
    >>> type(zoo.theory.exact_form(model)).__name__
    'Recurrence'
  """
  if not isinstance(subject, HasExactForm):
    raise UserError(f'{type(subject).__name__} has no exact form')
  if not _is_traced(subject):
    check_rule(subject)
  return subject.exact_form()


def form_constants(form: Form, task: Task) -> Constants:
  """Returns the numbers of a task that determine the risk of a form, for `form_risk`.

  Args:
    form: A `LearningRule`, `DeepRule` or `Recurrence`. Only the shapes of its arrays
      are read.
    task: A `linear_regression`; for learning rules it may be a `task_pool`.

  Returns:
    A pytree: `Moments` or, for other forms and tasks, what `form_risk` needs instead.

  Raises:
    UserError: If the theory does not cover the task, or the sizes of the form and the
      task differ.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> type(zoo.theory.form_constants(rule, task)).__name__
    'Moments'
  """
  if isinstance(form, DeepRule):
    return deep_spectrum(form, task)
  if isinstance(form, Recurrence):
    return sequential.recurrence_moments(form, task)
  check_same('features', form.num_features, task.num_features)
  return pool_risk(task) if type(task) is TaskPool else task_moments(task)


def form_risk(form: Form, constants: Any) -> Float[Array, '']:
  """Returns the risk of a form, as a function for jit, grad and vmap.

  Args:
    form: A `LearningRule`, `DeepRule` or `Recurrence`.
    constants: What `form_constants` returns for the form and a task.

  Returns:
    The risk, in the precision of the form.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> constants = zoo.theory.form_constants(rule, task)
    >>> round(float(zoo.theory.form_risk(rule, constants)), 3)
    1.0
  """
  if isinstance(form, DeepRule):
    return deep_rule_risk(form, constants)
  if isinstance(form, Recurrence):
    return sequential.recurrence_curve(form, constants)[-1]
  if isinstance(constants, QuadraticRisk):
    return risk_of(constants, form)
  return population_risk(form, constants)


_form_risks = jax.jit(jax.vmap(form_risk, (0, None)))


@jax.jit
def risk(constants: Constants, form: Form) -> Array:
  """Computes `form_risk`; for learning rules in float64 it needs little memory."""
  in_double = jnp.result_type(*jax.tree.leaves(form)) == jnp.float64
  if in_double and isinstance(form, LearningRule) and isinstance(constants, Moments):
    return float64_risk(form, constants)
  return form_risk(form, constants)


@jax.jit
def _squares(moments: Moments, gap: LearningRule) -> tuple[Array, Array, Array]:
  """Returns the mean square of a difference, in two parts, and that of its gradient."""
  even, odd = mean_square(gap, moments)
  gradient = mean_square(gap, moments, gradient=True)
  return even, odd, gradient.even + gradient.odd


Result = TypeVar('Result')


def evaluate(
  function: Callable[..., Result], constants: Constants, form: Form
) -> Result:
  """Applies a function to constants and a form; in float64, unless they are traced."""
  if _is_traced(form):
    return function(constants, form)
  with double_precision():
    return jax.tree.map(float, function(jax.tree.map(to_float64, constants), form))


def _float64_form(
  subject: HasExactForm, is_checked: bool = False
) -> DeepRule | Recurrence:
  """Returns the exact form of a model, in float64 unless traced.

  Raises UserError if the model has none.
  """
  if _is_traced(subject):
    return subject.exact_form()
  if not is_checked:
    check_rule(subject)
  with double_precision():
    return jax.tree.map(to_float64, in_float64(subject).exact_form())


def rule_of(
  subject: Predictor, task: Task | None = None, is_checked: bool = False
) -> LearningRule:
  """Returns the learning rule of a subject, in float64 on the host unless traced.

  The rule of a tuned step of gradient descent depends on the number of examples, for
  which that of the task is taken.

  Raises:
    UserError: If the subject has no rule or, unless `is_checked`, if it predicts
      differently from its rule.
  """
  if task is not None and isinstance(subject, GradientDescent | GDBeta):
    subject = subject.at_length(task.context_length)
  if (
    task is not None and isinstance(subject, GradientDescent) and subject.start is None
  ):
    # The rule needs to know the number of features.
    subject = dataclasses.replace(subject, start=np.zeros(task.num_features))
  if not isinstance(subject, FollowsRule):
    raise UserError(
      f'{type(subject).__name__} has no learning rule, which this function needs; '
      'zoo.curve estimates the risk of any predictor from samples'
    )
  if _is_traced(subject):
    return subject.learning_rule()
  if not (is_checked or isinstance(subject, LearningRule)):
    check_rule(subject)
  with double_precision():
    if isinstance(subject, nnx.Module):
      graph, state = nnx.split(subject)
      # The method is traced anew, since the code that it calls may have changed.
      compute = compiled(
        lambda state: nnx.merge(graph, state).learning_rule(),
        compiler_options=QUICK_TO_COMPILE,
      )
      rule = compute(jax.tree.map(to_float64, state))
    else:
      rule = subject.learning_rule()
    # JAX could reuse the buffers of the same arrays; see `to_float64`.
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64), rule)


def _is_traced(subject: PyTree) -> bool:
  """Returns whether a program that is being traced has arrays of the subject."""
  parts = nnx.state(subject) if isinstance(subject, nnx.Module) else subject
  return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(parts))
