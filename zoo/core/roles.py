"""The role of each parameter of a model: what weight decay and Muon act on."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from flax import nnx

from zoo.core.errors import UserError

ROLES = {
  'hidden': 'matrices of hidden layers, the last two axes of an array',
  'embedding': 'layers that are called read-in or read-out, and positions',
  'vector': 'biases, scales of norms, decays, skips, short convolutions, guesses, and '
  'other vectors and numbers',
}
# An array with one of these words in its name is a vector, however many axes it has.
_NO_MATRICES = {'bias', 'scale', 'log'}


def parameter_roles(model: Any) -> dict[str, str]:
  """Returns the role, one of ROLES, of each parameter of an NNX module.

  Weight decay and Muon act on parameters by their roles. The role of an array is found
  in this order:

  1. An array with fewer than two axes is a `vector`, whatever a module says.
  2. A module may say roles in a class attribute, by patterns of paths within it, such
     as `roles = {'read_*': 'embedding', 'decay': 'vector'}`. A pattern covers all that
     is below what it matches. If several patterns match, the last one counts; if
     several modules say a role, the outermost one counts.
  3. An array whose name is `embedding`, such as the table of `nnx.Embed`, is an
     `embedding`.
  4. An array is `hidden` if two of its axes are longer than 1, and no word of its name
     is `bias`, `scale` or `log`.
  5. All other arrays are `vector`.

  A parameter that several attributes share, as tied weights do, is listed once. It has
  the role that is said at the first of its paths at which one is said.

  Args:
    model: An NNX module.

  Returns:
    The roles by path, such as `read_in/kernel`.

  Raises:
    UserError: If a module says a role that is not one of ROLES.

  Example:
    >>> table = nnx.Embed(5, 4, rngs=nnx.Rngs(0))
    >>> zoo.core.roles.parameter_roles(table)
    {'embedding': 'embedding'}
  """
  modules, all_paths = dict(nnx.iter_modules(model)), _all_paths(model)
  roles = {}
  for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    names, shape = [str(name) for name in path], variable.get_value().shape
    said = (_said_at(modules, other) for other in all_paths.get(path, (path,)))
    role = next(filter(None, said), None)
    if len(shape) < 2:
      role = 'vector'
    elif role is None and names[-1] == 'embedding':  # nnx.Embed uses this name.
      role = 'embedding'
    elif role is None:
      is_matrix = sum(size > 1 for size in shape) > 1
      words = {*names[-1].lower().split('_')}
      role = 'hidden' if is_matrix and not words & _NO_MATRICES else 'vector'
    roles[_text(path)] = role
  return roles


def shared_paths(model: Any) -> dict[str, tuple[str, ...]]:
  """Returns all paths of each parameter that several attributes of a module share.

  Args:
    model: An NNX module.

  Returns:
    The paths, by the one that `nnx.state` lists; parameters with one path are left out.
  """
  return {
    _text(path): tuple(map(_text, paths)) for path, paths in _all_paths(model).items()
  }


def _all_paths(model: Any) -> dict[tuple, tuple[tuple, ...]]:
  """The paths of each shared parameter, by the one that `nnx.state` lists."""
  # Of a shared module only the module itself is listed, not what is in it, so that its
  # other paths are put in place of the first one; what is deepest comes first.
  groups = sorted(nnx.find_duplicates(model), key=lambda paths: -len(paths[0]))
  found = {}
  for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    paths = [path]
    for first, *others in groups:
      paths += [
        (*other, *own[len(first) :])
        for own in paths
        if own[: len(first)] == first
        for other in others
      ]
    if len(paths) > 1:
      found[path] = tuple(paths)
  return found


def _text(path: tuple) -> str:
  return '/'.join(map(str, path))


def _said_at(modules: Mapping[tuple, object], path: tuple) -> str | None:
  """The role that the outermost module that says one gives to a path."""
  for start in range(len(path)):
    if role := _said(modules.get(path[:start]), _text(path[start:])):
      return role
  return None


def matches(path: str, pattern: str) -> bool:
  """Whether a pattern names a path or one above it; `*` stands for any text."""
  return any(fnmatch.fnmatchcase(path, glob) for glob in (pattern, f'{pattern}/*'))


def _said(module: object, path: str) -> str | None:
  """The role that a module's class says for a path within it; None if it says none."""
  roles = getattr(type(module), 'roles', None)
  # The name may mean something else in a user's class.
  if not isinstance(roles, Mapping):
    return None
  matching = [role for pattern, role in roles.items() if matches(path, pattern)]
  if not matching:
    return None
  if matching[-1] not in ROLES:
    raise UserError(
      f'{type(module).__name__}.roles says {matching[-1]!r} for {path}; a role is one '
      f'of {", ".join(ROLES)}'
    )
  return matching[-1]
