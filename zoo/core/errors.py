"""Errors that are reported in one line, and the checks that raise them."""

import contextlib
import difflib
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import jax
import numpy as np

# The file with the versions that were tested on this Python.
CONSTRAINTS = (
  'constraints.txt' if sys.version_info < (3, 12) else 'constraints_newest.txt'
)

_Value = TypeVar('_Value')
_Real: TypeAlias = int | float  # since beartype rejects an int for a float
_LONGEST_NAME = 100  # characters of a name that are compared; names may be longer
_MOST_NAMES = 30  # names that a message lists at most
# The ratio of difflib, from 0 to 1, from which a name may misspell a known one.
_LEAST_LIKENESS = 0.55


class UserError(ValueError):
  """An error for a mistake in what the user gave.

  The message says in one line what is wrong, its value, and what is allowed. The
  command lines print it and exit with code 2.

  Example:
    >>> try:
    ...   zoo.create_model('ysa', num_features=2, rngs=nnx.Rngs(0))
    ... except zoo.UserError as error:
    ...   print(error)
    unknown model 'ysa'; known: ...; did you mean 'yq_lsa'? ...
  """


class InUseError(UserError):
  """An error for a folder that another process still uses, which may end soon.

  The command lines print it as one line and exit with code 75, after which a launcher
  tries again.
  """


class RunError(RuntimeError):
  """An error for a run that cannot continue although its input was valid.

  Causes are, for example, a loss that is NaN or a full disk. The command lines print it
  as one line and exit with code 1.

  Example:
    >>> issubclass(zoo.RunError, RuntimeError), issubclass(zoo.UserError, ValueError)
    (True, True)
  """


def is_exhausted(error: BaseException) -> bool:
  """Says whether an error of Python, NumPy or JAX means that memory is exhausted."""
  return isinstance(error, MemoryError) or (
    isinstance(error, jax.errors.JaxRuntimeError)
    and any(said in str(error) for said in ('RESOURCE_EXHAUSTED', 'Out of memory'))
  )


def not_installed(package: object, needs: str, extra: str) -> UserError:
  """Returns the error for a package of an extra that is missing.

  Args:
    package: The name of the package.
    needs: The beginning of a sentence that ends with the command to install it, such as
      'language models need'. The command is for the folder of the repository.
    extra: The name of the extra.
  """
  return UserError(
    f"{package} is not installed; {needs} pip install -c {CONSTRAINTS} -e '.[{extra}]'"
  )


def unknown_name(
  kind: str, name: object, known: Iterable[str], elsewhere: Iterable[str] = ()
) -> UserError:
  """Returns the error for a name that is not among the known names.

  Args:
    kind: What has the name, in the message, such as 'model'.
    name: The name.
    known: The known names. The message suggests the nearest. If the name is one of many
      fields, such as `train.num_steps`, the message lists those of its section.
    elsewhere: Names of which one is suggested if none of `known` is near.
  """
  known, section = sorted(known), str(name)[: str(name).rfind('.') + 1]
  near = nearest(str(name), known) or nearest(str(name), elsewhere)
  hint = f'; did you mean {near!r}?' if near else ''
  related = [entry for entry in known if section and entry.startswith(section)] or known
  listed = shown(related, _MOST_NAMES) or 'none'
  return UserError(f'unknown {kind} {_shown(name)}; known: {listed}{hint}')


def nearest(name: str, known: Iterable[str]) -> str | None:
  """Returns the known name that `name` may be a misspelling of, or None.

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
  """Returns a value that is among the known names.

  Args:
    field: The name of the argument, for the message.
    value: The value to check.
    known: The names that are allowed.

  Raises:
    UserError: If the value is not among them.
  """  # noqa: DOC501
  known = tuple(known)
  if value not in known:
    raise unknown_name(field, value, known)
  return value


def in_one_line(text: object, limit: int | None = 300) -> str:
  """Returns the text of an object on one line, cut to `limit` characters.

  With the limit None it is not cut.
  """
  return ' '.join(str(text).split())[:limit]


def printable(text: str) -> str:
  """Returns the text with escapes in place of characters that control a terminal."""
  return ''.join(
    character
    if character.isprintable()
    else character.encode('unicode_escape').decode()
    for character in text
  )


def shown(entries: Sequence[str], number: int = 12) -> str:
  """Returns the first entries of a list, and how many are left.

  Each entry is cut to 200 characters.
  """
  rest = f' and {len(entries) - number} more' if len(entries) > number else ''
  return ', '.join(in_one_line(entry, 200) for entry in entries[:number]) + rest


def check_same(what: str, of_model: int, of_task: int) -> None:
  """Checks that a model has as many of something as a task.

  Args:
    what: The name of that in the message, such as 'features'.
    of_model: The number that the model has.
    of_task: The number that the task has.

  Raises:
    UserError: If the numbers differ.
  """
  if of_model != of_task:
    raise UserError(f'the model has {of_model} {what}; the task has {of_task}')


def range_in_words(
  minimum: _Real = -math.inf, above: _Real = -math.inf, maximum: _Real = math.inf
) -> str:
  """Returns a range in words, such as '≥ 1', 'from 1 to 7' or '> 0 and ≤ 1'.

  The words are empty if any number is in the range.
  """
  if math.isfinite(minimum) and math.isfinite(maximum):
    return f'from {minimum:.10g} to {maximum:.10g}'
  ends = ('≥', minimum), ('>', above), ('≤', maximum)
  return ' and '.join(f'{sign} {end:.10g}' for sign, end in ends if math.isfinite(end))


def check_count(
  name: str, value: object, minimum: int = 1, maximum: _Real = math.inf
) -> int:
  """Returns a value as an int.

  Args:
    name: The name of the argument, for the message.
    value: The value to check.
    minimum: The least value that is allowed.
    maximum: The largest value that is allowed.

  Raises:
    UserError: If the value is not an integer in this range. True and False are not.
  """
  try:
    count = operator.index(value) if isinstance(value, SupportsIndex) else None
  except TypeError:
    count = None
  if count is None or isinstance(value, bool) or not minimum <= count <= maximum:
    wanted = range_in_words(minimum, maximum=maximum)
    raise UserError(f'{name} is {_shown(value)}; it must be an integer {wanted}')
  return count


def check_truth(name: str, value: object) -> bool:
  """Returns a value that is True or False; else raises UserError."""
  if not isinstance(value, bool | np.bool_):
    raise UserError(f'{name} is {_shown(value)}; it must be True or False')
  return bool(value)


def check_number(
  name: str,
  value: object,
  minimum: float = -math.inf,
  above: float = -math.inf,
  maximum: float = math.inf,
) -> float:
  """Returns a value as a float.

  Args:
    name: The name of the argument, for the message.
    value: The value to check.
    minimum: The least value that is allowed.
    above: The value must be larger than this number.
    maximum: The largest value that is allowed.

  Raises:
    UserError: If the value is not a finite number in this range, or if it is too large
      for float32 while x64 is not enabled.
  """
  array = _as_float64(value)
  number = math.nan if array is None or array.ndim else float(array)
  if not (math.isfinite(number) and above < number and minimum <= number <= maximum):
    wanted = f'a finite number {range_in_words(minimum, above, maximum)}'.rstrip()
    raise UserError(f'{name} is {_shown(value)}; it must be {wanted}')
  _check_held(name, array)
  return number


def check_vector(name: str, value: object, length: int | None) -> np.ndarray:
  """Returns a value as a float64 vector.

  Args:
    name: The name of the argument, for the message.
    value: A vector; or a number, which is repeated.
    length: The length of the vector. None allows any length ≥ 1; a number then becomes
      a vector of length 1.

  Raises:
    UserError: If the value has another shape, or holds anything but finite numbers.
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
  """Returns a value as a float64 array.

  Args:
    name: The name of the argument, for the message.
    value: The value to check.
    shapes: The shapes that are allowed.

  Raises:
    UserError: If the value has another shape, or holds anything but finite numbers.
  """
  array = _as_finite(name, value)
  shapes = list(dict.fromkeys(shapes))
  if array.shape not in shapes:
    allowed = ', '.join(str(shape) for shape in shapes)
    raise UserError(f'{name} has shape {array.shape}; the shapes allowed are {allowed}')
  return array


def check_covariance(name: str, value: object, length: int) -> np.ndarray:
  """Returns a value as a float64 covariance `[length, length]`, made symmetric.

  Args:
    name: The name of the argument, for the message.
    value: The value to check.
    length: The number of rows and of columns.

  Raises:
    UserError: If the value has another shape, holds anything but finite numbers, or is
      not symmetric and positive semi-definite, up to rounding.
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
  """Returns a value as a float64 array, or None if it holds other than real numbers."""
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
  """Returns the value on one line of at most 80 characters."""
  text = in_one_line(repr(value), None)
  return text if len(text) <= 80 else f'{text[:77]}...'


def check_object(what: str, value: object, protocol: Any, needs: str) -> None:
  """Checks that a value is an object, not a class, and satisfies a protocol.

  Args:
    what: What is wanted, in the message.
    value: The value to check.
    protocol: The protocol or class of which it must be an instance.
    needs: What an object that does not satisfy the protocol lacks, in the message.

  Raises:
    UserError: If the value is a class, or does not satisfy the protocol.
  """
  if isinstance(value, type):
    raise UserError(f'{value.__name__} is a class, not {what}; create an object of it')
  if not isinstance(value, protocol):
    raise UserError(f'{type(value).__name__} is not {what}: {needs}')


@contextlib.contextmanager
def noted(what: str, where: str = '') -> Iterator[None]:
  """Adds a note to an error inside the block, which says what failed, and where.

  The error stays what it is, with its traceback into the user's code. A UserError gets
  no note, because its message says enough.

  Raises:
    UserError: If the block raises one.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    error.add_note(f'{what} failed{where}')
    raise
