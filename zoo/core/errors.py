"""Errors that are reported in one line, and the checks that raise them."""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import jax
import numpy as np

_Value = TypeVar('_Value')
_Real: TypeAlias = int | float  # beartype takes no int for a float
_LONGEST_NAME = 100  # characters that are compared; a file may hold any number
_MOST_NAMES = 30  # that a message lists
# Of 0 to 1, difflib's ratio: what is less like a known name is no misspelling of it.
_LEAST_LIKENESS = 0.55


class UserError(ValueError):
  """A mistake in what the user gave: what is wrong, the value, what is allowed.

  The command lines print it as one line and exit with code 2.
  """


class InUseError(UserError):
  """A folder that another process still uses, which may end soon.

  The command lines print it as one line and exit with code 75, for which a launcher
  tries again.
  """


class RunError(RuntimeError):
  """A run that cannot continue although its input was valid (NaN, full disk).

  The command lines print it as one line and exit with code 1.
  """


def is_exhausted(error: BaseException) -> bool:
  """Whether an error of Python, NumPy or JAX says that the memory is not enough."""
  return isinstance(error, MemoryError) or (
    isinstance(error, jax.errors.JaxRuntimeError)
    and any(said in str(error) for said in ('RESOURCE_EXHAUSTED', 'Out of memory'))
  )


def not_installed(package: object, needs: str, extra: str) -> UserError:
  """The error for what needs a package of an extra, e.g. 'language models need'."""
  return UserError(
    f"{package} is not installed; {needs} pip install 'icl-zoo[{extra}]'"
  )


def unknown_name(
  kind: str, name: object, known: Iterable[str], elsewhere: Iterable[str] = ()
) -> UserError:
  """The error for a `name` that is not among the `known` names of a `kind`.

  If none of them is near, one from `elsewhere` may be meant. Of many fields, such as
  `train.num_steps`, those of the same section are named.
  """
  known, section = sorted(known), str(name)[: str(name).rfind('.') + 1]
  near = nearest(str(name), known) or nearest(str(name), elsewhere)
  hint = f'; did you mean {near!r}?' if near else ''
  related = [entry for entry in known if section and entry.startswith(section)] or known
  listed = shown(related, _MOST_NAMES) or 'none'
  return UserError(f'unknown {kind} {_shown(name)}; known: {listed}{hint}')


def nearest(name: str, known: Iterable[str]) -> str | None:
  """The known name that `name` may be a misspelling of, if any.

  Fields of one section, such as `train.num_steps`, are compared without its name.
  """
  name, known = name[:_LONGEST_NAME], list(known)
  for entry in known:
    if entry.casefold() == name.casefold():
      return entry
  section = name[: name.rfind('.') + 1]
  leaves = [entry.removeprefix(section) for entry in known if entry.startswith(section)]
  if not leaves:
    section, leaves = '', known
  matches = difflib.get_close_matches(
    name.removeprefix(section), leaves, n=1, cutoff=_LEAST_LIKENESS
  )
  return section + matches[0] if matches else None


def check_name(field: str, value: _Value, known: Iterable[str]) -> _Value:
  """Returns `value`, or raises UserError unless it is among the `known` names."""
  known = tuple(known)
  if value not in known:
    raise unknown_name(field, value, known)
  return value


def in_one_line(text: object, limit: int | None = 300) -> str:
  """The text of an object on one line, cut to `limit` characters (None: all)."""
  return ' '.join(str(text).split())[:limit]


def printable(text: str) -> str:
  """The text with escapes for what a terminal would not print but obey."""
  return ''.join(
    character
    if character.isprintable()
    else character.encode('unicode_escape').decode()
    for character in text
  )


def shown(entries: Sequence[str], number: int = 12) -> str:
  """The first entries of a list, each cut to 200 characters, and how many are left."""
  rest = f' and {len(entries) - number} more' if len(entries) > number else ''
  return ', '.join(in_one_line(entry, 200) for entry in entries[:number]) + rest


def check_same(what: str, of_model: int, of_task: int) -> None:
  """Raises UserError unless a model has as many features, say, as a task."""
  if of_model != of_task:
    raise UserError(f'the model has {of_model} {what}; the task has {of_task}')


def range_in_words(
  minimum: _Real = -math.inf, above: _Real = -math.inf, maximum: _Real = math.inf
) -> str:
  """A range, such as '≥ 1', 'from 1 to 7' or '> 0 and ≤ 1'; empty for any number."""
  if math.isfinite(minimum) and math.isfinite(maximum):
    return f'from {minimum:.10g} to {maximum:.10g}'
  ends = ('≥', minimum), ('>', above), ('≤', maximum)
  return ' and '.join(f'{sign} {end:.10g}' for sign, end in ends if math.isfinite(end))


def check_count(
  name: str, value: object, minimum: int = 1, maximum: _Real = math.inf
) -> int:
  """Returns `value` as an int; raises UserError unless it is an integer in range."""
  try:
    count = operator.index(value) if isinstance(value, SupportsIndex) else None
  except TypeError:
    count = None
  if count is None or isinstance(value, bool) or not minimum <= count <= maximum:
    wanted = range_in_words(minimum, maximum=maximum)
    raise UserError(f'{name} is {_shown(value)}; it must be an integer {wanted}')
  return count


def check_truth(name: str, value: object) -> bool:
  """Returns `value`, or raises UserError unless it is True or False."""
  if not isinstance(value, bool):
    raise UserError(f'{name} is {_shown(value)}; it must be True or False')
  return value


def check_number(
  name: str,
  value: object,
  minimum: float = -math.inf,
  above: float = -math.inf,
  maximum: float = math.inf,
) -> float:
  """Returns `value` as a float; raises UserError unless it is finite and in range.

  Finite as training holds it, which is float32 but where x64 is enabled.
  """
  array = _as_float64(value)
  number = math.nan if array is None or array.ndim else float(array)
  if not (math.isfinite(number) and above < number and minimum <= number <= maximum):
    wanted = f'a finite number {range_in_words(minimum, above, maximum)}'.rstrip()
    raise UserError(f'{name} is {_shown(value)}; it must be {wanted}')
  _check_held(name, array)
  return number


def check_vector(name: str, value: object, length: int | None) -> np.ndarray:
  """Returns `value` as float64 `[length]`, repeating a scalar; or raises UserError.

  With the length None a vector may have any ≥ 1, and a scalar is taken once.
  """
  vector = _as_finite(name, value)
  _check_held(name, vector)
  if length is None:
    length = max(vector.size, 1) if vector.ndim == 1 else 1
  if vector.ndim == 0:
    vector = np.full(length, vector)
  if vector.shape != (length,):
    raise UserError(
      f'{name} has shape {vector.shape}; it must be a number or a vector of length '
      f'{length}'
    )
  return vector


def check_array(
  name: str, value: object, shapes: Iterable[tuple[int, ...]]
) -> np.ndarray:
  """Returns `value` as float64 of one of the `shapes`, or raises UserError."""
  array = _as_finite(name, value)
  shapes = list(dict.fromkeys(shapes))
  if array.shape not in shapes:
    allowed = ', '.join(str(shape) for shape in shapes)
    raise UserError(f'{name} has shape {array.shape}; the shapes allowed are {allowed}')
  return array


def check_covariance(name: str, value: object, length: int) -> np.ndarray:
  """Returns `value` as a float64 covariance `[length, length]`.

  Raises UserError unless it is square, symmetric and positive semi-definite.
  """
  matrix = _as_finite(name, value)
  _check_held(name, matrix)
  if matrix.shape != (length, length):
    raise UserError(
      f'{name} has shape {matrix.shape}; it must be None (the identity) or a '
      f'{length} × {length} matrix'
    )
  # A computed A Aᵀ is asymmetric by about one rounding error per term of its sums.
  precision = np.result_type(np.asarray(value).dtype, np.float16)
  tolerance = 8 * length * float(np.finfo(precision).eps * np.abs(matrix).max())
  asymmetry = float(np.abs(matrix - matrix.T).max())
  smallest = float(np.linalg.eigvalsh(matrix)[0])
  fault = f'has the eigenvalue {smallest:.3g}' if smallest < -tolerance else ''
  if asymmetry > tolerance:
    fault = f'differs from its transpose by {asymmetry:.3g}'
  if fault:
    raise UserError(f'{name} {fault}; it must be symmetric and positive semi-definite')
  return (matrix + matrix.T) / 2


def _as_float64(value: object) -> np.ndarray | None:
  """`value` as a float64 array, or None if it does not hold real numbers only."""
  try:
    array = np.asarray(value)
    # Text, booleans and complex numbers would be converted, not rejected.
    return array.astype(np.float64) if array.dtype.kind in 'iuf' else None
  except (TypeError, ValueError):
    return None


def _as_finite(name: str, value: object) -> np.ndarray:
  array = _as_float64(value)
  if array is None:
    raise UserError(f'{name} is {_shown(value)}; it must hold numbers only')
  if not np.isfinite(array).all():
    raise UserError(f'{name} holds a value that is not finite: {_shown(value)}')
  return array


def _check_held(name: str, array: Any) -> None:
  """Raises UserError for finite numbers that JAX's type of numbers makes infinite."""
  largest = float(np.finfo(jax.dtypes.canonicalize_dtype(float)).max)
  if (size := np.abs(array).max(initial=0.0)) > largest:
    raise UserError(
      f'{name} has the size {size:.3g}; it must be at most {largest:.3g}, the largest '
      'number of float32'
    )


def _shown(value: object) -> str:
  """The value on one line, shortened, since a matrix prints on many lines."""
  text = in_one_line(repr(value), None)
  return text if len(text) <= 80 else f'{text[:77]}...'


def check_object(what: str, value: object, protocol: Any, needs: str) -> None:
  """Raises UserError unless `value` is an object, not a class, and has a protocol.

  `what` says in the message what is wanted, and `needs` what the object lacks.
  """
  if isinstance(value, type):
    raise UserError(f'{value.__name__} is a class, not {what}; create an object of it')
  if not isinstance(value, protocol):
    raise UserError(f'{type(value).__name__} is not {what}: {needs}')
