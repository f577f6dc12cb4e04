"""Exact risks and differences of models, estimators and learning rules."""

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
# What a risk depends on in a task.
Constants = Moments | QuadraticRisk | Spectrum | GeneralSpectrum

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

  Raises UserError naming the task or the subject that exact theory does not cover, and
  for a subject that predicts differently from its rule or form.
  """
  return _exact_risk(subject, task, is_checked=False)


def known_risk(
  predictor: Predictor, task: Task, is_checked: bool = False
) -> float | None:
  """The exact risk; None without a closed form, or if a predictor breaks its rule.

  `is_checked` says that it is known to predict as its rule or form.
  """
  try:
    return float(_exact_risk(predictor, task, is_checked))
  except UserError:
    return None


def _exact_risk(subject: Predictor, task: Task, is_checked: bool) -> Scalar:
  """`exact_risk`; `is_checked` as in `known_risk`."""
  if is_edited(subject):
    raise UserError('the model is edited: no exact form is known for it')
  if isinstance(subject, GradientDescent) and subject.step_sizes.size > 1:
    regression = require_covered(task)
    return gradient_descent_risk(regression, subject.step_sizes, subject.start)
  if isinstance(subject, Ridge):
    lower, upper = ridge_risk(subject, task)
    if lower == upper:  # both may be infinite
      return upper
    if upper - lower > _RESOLVED * upper:
      raise UserError(
        f'the risk is known only to lie between {lower:.9g} and {upper:.9g}, which '
        'theory.ridge_risk returns; the fewer examples and the less noise there are, '
        'the wider apart they are'
      )
    return (lower + upper) / 2
  if type(task) is not TaskPool:
    require_covered(task)  # before anything is computed
  if isinstance(subject, HasExactForm):
    form = _float64_form(subject, is_checked)
  else:
    form = rule_of(subject, task, is_checked)
  return evaluate(risk, form_constants(form, task), form)


def exact_curve(subject: Predictor, task: Task) -> Float[np.ndarray, ' n']:
  """The exact risks of a recurrence after 0, …, C examples, in float64.

  `subject` is a model whose exact form is a Recurrence. Raises UserError for others and
  for a task that exact theory does not cover.
  """
  form = _float64_form(subject) if isinstance(subject, HasExactForm) else None
  if not isinstance(form, Recurrence):
    raise UserError(
      f'{type(subject).__name__} is not a recurrence whose coefficients are the '
      'same for every prompt; its curve can only be estimated from samples'
    )
  return sequential.risk_curve(task, form.decay, form.erase, form.write, form.start)


def exact_risks(rules: LearningRule, moments: Moments) -> Float[Array, ' n']:
  """The exact risks of learning rules on tasks, both stacked along their first axes.

  Computes `exact_risk` in float64 and in one call; the rules are on the host.
  """
  with double_precision():
    return _rule_risks(rules, jax.tree.map(to_float64, moments))


_rule_risks = jax.jit(jax.vmap(float64_risk))


def exact_form_risks(forms: Form, task: Task) -> Float[Array, ' n']:
  """The exact risks of exact forms on one task, stacked along their first axes.

  Computes `exact_risk` in float64 and in one call; the forms are on the host.
  """
  with double_precision():
    constants = form_constants(forms, task)
    return _form_risks(*jax.tree.map(to_float64, (forms, constants)))


def excess_risk(subject: Predictor, task: Task) -> ExcessRisk:
  """The exact risk above the global optimum, in two parts, both ≥ 0.

  The risk is quadratic in the rule, so the excess is the mean squared difference from
  the optimum. The even part of the difference comes from the initial guess, the odd
  part from the update (docs/theory.md, section 3). Raises UserError as `exact_risk`
  does.
  """
  even, odd, _ = _squared_gap(subject, optimal_rule(task), task)
  return ExcessRisk(even, odd)


def squared_difference(subject: Predictor, other: Predictor, task: Task) -> Difference:
  """The exact expected squared differences between two learning rules on a task.

  Raises UserError as `exact_risk` does.
  """
  even, odd, gradient = _squared_gap(subject, other, task)
  return Difference(even + odd, gradient)


def _squared_gap(subject: Predictor, other: Predictor, task: Task) -> tuple:
  moments = task_moments(task)
  gap = rule_of(subject, task) - rule_of(other, task)
  check_same('features', gap.num_features, task.num_features)
  return evaluate(_squares, moments, gap)


def exact_form(subject: Predictor) -> DeepRule | Recurrence:
  """The exact form of a model of any class that has the method `exact_form`.

  Raises UserError if it has none, or if it predicts differently from its form, which is
  not checked in a program that is being traced.
  """
  if not isinstance(subject, HasExactForm):
    raise UserError(f'{type(subject).__name__} has no exact form')
  if not _is_traced(subject):
    check_rule(subject)
  return subject.exact_form()


def form_constants(form: Form, task: Task) -> Constants:
  """What the risk of a form depends on in a task; only the form's shapes are read.

  Raises UserError naming the property of the task that exact theory does not cover.
  """
  if isinstance(form, DeepRule):
    return deep_spectrum(form, task)
  if isinstance(form, Recurrence):
    return sequential.recurrence_moments(form, task)
  check_same('features', form.num_features, task.num_features)
  return pool_risk(task) if type(task) is TaskPool else task_moments(task)


def form_risk(form: Form, constants: Any) -> Float[Array, '']:
  """The risk in the precision of the form; for use under jit, grad and vmap."""
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
  """`form_risk`, for rules in float64 with little memory."""
  in_double = jnp.result_type(*jax.tree.leaves(form)) == jnp.float64
  if in_double and isinstance(form, LearningRule) and isinstance(constants, Moments):
    return float64_risk(form, constants)
  return form_risk(form, constants)


@jax.jit
def _squares(moments: Moments, gap: LearningRule) -> tuple[Array, Array, Array]:
  """The mean square of a difference, in two parts, and that of its gradient."""
  even, odd = mean_square(gap, moments)
  gradient = mean_square(gap, moments, gradient=True)
  return even, odd, gradient.even + gradient.odd


Result = TypeVar('Result')


def evaluate(
  function: Callable[..., Result], constants: Constants, form: Form
) -> Result:
  """Applies a function to numbers of a task and a form; in float64 unless traced."""
  if _is_traced(form):
    return function(constants, form)
  with double_precision():
    return jax.tree.map(float, function(jax.tree.map(to_float64, constants), form))


def _float64_form(
  subject: HasExactForm, is_checked: bool = False
) -> DeepRule | Recurrence:
  """The exact form of a model, in float64 unless traced; UserError if it has none."""
  if _is_traced(subject):
    return subject.exact_form()
  if not is_checked:
    check_rule(subject)
  with double_precision():
    return jax.tree.map(to_float64, in_float64(subject).exact_form())


def rule_of(
  subject: Predictor, task: Task | None = None, is_checked: bool = False
) -> LearningRule:
  """The learning rule of a subject, in float64 on the host unless traced.

  A tuned step of gradient descent has the rule for the examples of the task. Raises
  UserError if the subject has no rule, or predicts differently from its rule, unless
  that `is_checked`.
  """
  if task is not None and isinstance(subject, GradientDescent | GDBeta):
    subject = subject.at_length(task.context_length)
  if not isinstance(subject, FollowsRule):
    raise UserError(
      f'{type(subject).__name__} has no learning rule, which this needs; its risk can '
      'only be estimated from samples'
    )
  if _is_traced(subject):
    return subject.learning_rule()
  if not (is_checked or isinstance(subject, LearningRule)):
    check_rule(subject)
  with double_precision():
    if isinstance(subject, nnx.Module):
      graph, state = nnx.split(subject)
      # Traced anew, since what a class calls may have changed since the last time.
      compute = compiled(
        lambda state: nnx.merge(graph, state).learning_rule(),
        compiler_options=QUICK_TO_COMPILE,
      )
      rule = compute(jax.tree.map(to_float64, state))
    else:
      rule = subject.learning_rule()
    # Copies, for the reason that `to_float64` makes a view.
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64), rule)


def _is_traced(subject: PyTree) -> bool:
  """Whether a program that is being traced has arrays of a subject or a form."""
  parts = nnx.state(subject) if isinstance(subject, nnx.Module) else subject
  return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(parts))
