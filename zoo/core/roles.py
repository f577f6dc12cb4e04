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
# An array with one of these words in its name is not a matrix, whatever its axes.
_NO_MATRICES = {'bias', 'scale', 'log'}


def parameter_roles(model: Any) -> dict[str, str]:
  """Returns the role of each parameter of a model, which weight decay and Muon act on.

  Any module may give roles in a class attribute, by patterns of paths within it, such
  as `roles = {'read_*': 'embedding', 'decay': 'vector'}`. A pattern also holds for all
  paths below what it matches. If several patterns match, the last counts; if several
  modules give a role, the outermost counts. Without a given role, an array is

  - `hidden` if two of its axes are longer than 1, and no word of its name is `bias`,
    `scale` or `log`;
  - `embedding` if its name is `embedding`;
  - `vector` otherwise.

  An array with fewer than two axes is always a vector. A parameter that several
  attributes share, as tied weights do, is listed once; its role is given by the first
  of its paths for which a role is given.

  Args:
    model: An NNX module.

  Returns:
    The roles, each one of ROLES, by paths such as `read_in/kernel`.

  Raises:
    UserError: If a module gives a role that does not exist.
  """
  modules, all_paths = dict(nnx.iter_modules(model)), _all_paths(model)
  roles = {}
  for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    names, shape = [str(name) for name in path], variable.get_value().shape
    said = (_said_at(modules, other) for other in all_paths.get(path, (path,)))
    role = next(filter(None, said), None)
    if len(shape) < 2:
      role = 'vector'
    elif role is None and names[-1] == 'embedding':  # the name in nnx.Embed
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
  """Returns the paths of each shared parameter, by the one that `nnx.state` lists."""
  # Only a shared module itself is listed, without its parts. So its other paths replace
  # the first one at the beginning of the paths of its parts; the deepest comes first.
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
  """Returns the role that the outermost module with one gives to a path."""
  for start in range(len(path)):
    if role := _said(modules.get(path[:start]), _text(path[start:])):
      return role
  return None


def matches(path: str, pattern: str) -> bool:
  """Says whether a pattern names a path or one above it; `*` stands for any text."""
  return any(fnmatch.fnmatchcase(path, glob) for glob in (pattern, f'{pattern}/*'))


def _said(module: object, path: str) -> str | None:
  """Returns the role that a module's class gives to a path within it, or None."""
  roles = getattr(type(module), 'roles', None)
  if not isinstance(roles, Mapping):  # it may have another meaning in a user's class
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
