"""The exact risks of models outside the linear family, from their exact forms."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from zoo.core.errors import UserError
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.protocols import HasExactForm, Task
from zoo.theory.deep.deep_rule import (
  GeneralSpectrum,
  Spectrum,
  deep_rule_risk,
  deep_spectrum,
)
from zoo.theory.moments import Moments
from zoo.theory.sequential import recurrence_curve, recurrence_moments
from zoo.theory.trust import is_ours

Form = DeepRule | Recurrence
Constants = Spectrum | GeneralSpectrum | Moments  # what a risk depends on in a task


def _last(form: Recurrence, moments: Moments) -> Float[Array, '']:
  return recurrence_curve(form, moments)[-1]


# For each kind of form: the functions for a task's constants and for the risk.
_KINDS: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
  DeepRule: (deep_spectrum, deep_rule_risk),
  Recurrence: (recurrence_moments, _last),
}


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
  return _KINDS[type(form)][0](form, task)


def form_risk(form: Form, constants: Constants) -> Float[Array, '']:
  """The risk in the precision of the form; for use under jit, grad and vmap."""
  return _KINDS[type(form)][1](form, constants)
