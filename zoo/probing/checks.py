"""Checks of what instruments are given: models, sites, kinds of taps, and values.

All instruments use these functions, so that a mistake has the same message in each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from inspect import signature
from typing import Any

import numpy as np
from flax import nnx

from zoo.core.errors import UserError, check_name, in_one_line, shown
from zoo.core.protocols import Predictor
from zoo.core.taps import Tap, places


def checked_module(model: Predictor) -> nnx.Module:
  """Returns the model; raises UserError unless it is an NNX module."""
  if not isinstance(model, nnx.Module):
    raise UserError(
      f'the model is of type {type(model).__name__}; it must be an NNX module, such as '
      'the attribute model of what zoo.load returns'
    )
  return model


def taps_of(model: Predictor) -> dict[str, Tap]:
  """Returns the taps of a model by their sites, by layer.

  Raises:
    UserError: If the model is not an NNX module.
  """
  return {place.site: place.tap for place in places(checked_module(model))}


def sites_of_kind(model: Predictor, *kinds: str) -> list[str]:
  """Returns the sites whose taps have one of these `zoo.probing.TAP_KINDS`."""
  return [site for site, tap in taps_of(model).items() if tap.kind in kinds]


def check_has_kind(model: Predictor, kinds: Sequence[str], why: str) -> None:
  """Checks that a model has a tap of one of some kinds.

  Args:
    model: The model.
    kinds: One or more of `zoo.probing.TAP_KINDS`.
    why: What an instrument needs the values for, as the end of the message.

  Raises:
    UserError: If it has none.
  """
  if not sites_of_kind(model, *kinds):
    raise UserError(
      f'{type(model).__name__} has no tap of the kind {" or ".join(kinds)}, {why}'
    )


def wanted_sites(model: Predictor, sites: Sequence[str] | None) -> list[str]:
  """Returns the sites that are asked for; None stands for all but those on demand.

  Raises:
    UserError: If the model does not have a site.
  """
  taps = taps_of(model)
  if sites is None:
    return [site for site, tap in taps.items() if not tap.is_on_demand]
  wanted = names_of_sites(sites)
  for site in wanted:
    check_edit_site(site, [*taps])
  return wanted


def names_of_sites(sites: Any) -> list[str]:
  """Returns a list of names; raises UserError for something else."""
  check_is_list(sites)
  names = [*sites]
  for name in names:
    if not isinstance(name, str):
      raise UserError(
        f'an entry of sites is {in_one_line(repr(name), 80)}; it must be the name of a '
        'site'
      )
  return names


def check_is_list(sites: Any) -> None:
  """Raises UserError if what should be a list of sites is one site or a function."""
  # A `Node` of zoo/probing/graph.py is a named tuple.
  if isinstance(sites, str) or hasattr(sites, '_fields'):
    raise UserError(f'sites is {sites!r}; it must be a list of sites')
  if callable(sites):
    raise UserError(
      'sites is a function; it must be a list of names, such as those of '
      'zoo.probing.sites(model) that you choose'
    )


def check_edit_site(site: str, known: Sequence[str]) -> None:
  """Checks that an edit can be made at a site.

  The name of one call of a site, such as `layers.0.mixer.out@2`, is refused as well.

  Raises:
    UserError: If the name is not in `known`.
  """
  name, _, call = site.partition('@')
  if call and name in known:
    raise UserError(
      f'the site {site!r} is one call of {name!r}; give {name!r}, which stands for all '
      'of its calls'
    )
  if not known:
    raise UserError(f'the model has no site {site!r}: it has no taps')
  check_name('site', site, known)


def check_values(
  values: Collection[str], wanted: Sequence[str], sites: Sequence[str] | None
) -> None:
  """Checks that a forward pass has values at the sites that were asked for.

  Args:
    values: The names of all recorded values, as in `capture`.
    wanted: The sites that were recorded.
    sites: The names that were asked for; None if any value will do.

  Raises:
    UserError: If a name has no value, or if there is no value at all.
  """
  for site in sites or ():
    if not any(is_value_of(name, site) for name in values):
      check_name('site', site, [*wanted, *values])
      raise UserError(no_value(site))
  if wanted and not values:
    raise UserError(no_values(wanted))


def is_value_of(name: str, wanted: str) -> bool:
  """Says whether a captured value is of a site, or is an array in its tree."""
  without_call = re.sub(r'@\d+', '', name)
  return without_call == wanted or without_call.startswith(f'{wanted}.')


# Why a tap has no value, and what to do.
_NOT_SEEN = (
  'within a compiled loop or function (nnx.jit, nnx.scan, jax.lax.scan), whose values '
  'cannot be read from outside; a copy of the model without the decorator, or with a '
  'Python loop, shows them'
)


def no_value(site: str) -> str:
  """Returns the error message for a site that has no value in a forward pass."""
  return (
    f'the site {site!r} has no value in a forward pass: its tap is not called, or is '
    f'{_NOT_SEEN}'
  )


def no_array(site: str, names: Collection[str]) -> str:
  """Returns the error message for a site at which no array was recorded.

  Args:
    site: The site.
    names: The names of all recorded values, as in `capture`.
  """
  if any(name.startswith(f'{site}.') for name in names):
    return f'the value at the site {site!r} is a tree of arrays; an edit needs an array'
  return no_value(site)


def no_values(sites: Sequence[str]) -> str:
  """Returns the error message for a model none of whose sites has a value."""
  return (
    f'none of the sites {shown(sites)} has a value in a forward pass: their taps are '
    f'not called, or are {_NOT_SEEN}'
  )


def takes(function: Callable[..., Any], number: int) -> bool:
  """Says whether a function can be called with so many positional arguments.

  Args:
    function: The function.
    number: The number of arguments.

  Returns:
    Whether it takes them. True for a function that does not say what it takes, as some
    built-in ones do not.
  """
  try:
    taken = signature(function)
  except (TypeError, ValueError):
    return True
  try:
    taken.bind(*range(number))
  except TypeError:
    return False
  return True


def check_finite(name: str, *arrays: np.ndarray) -> None:
  """Raises UserError unless what a predictor of this name predicts is finite."""
  if not all(np.isfinite(array).all() for array in arrays):
    raise UserError(f'{name} predicts numbers that are not finite on these prompts')
