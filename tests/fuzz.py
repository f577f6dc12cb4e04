"""Random corruption of files, and what must hold when one is opened all the same.

A test gives good bytes and a function that opens a file that has them. It may succeed,
or raise UserError or RunError with one line; it may neither hang, nor take much more
memory than the good file, nor raise anything else.
"""

import contextlib
import copy
import json
import os
import pathlib
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import zoo

SECONDS = 10.0  # that one file may take
BYTES = 500 * 10**6  # of memory, beyond what the good file took
NUM_CASES = 1000  # with --full; otherwise 40

# What breaks programs that trust numbers and types.
ODD_VALUES: list[Any] = [
  *(None, True, False, 0, 1, -1, 2**31, -(2**31), 2**63, 10**12, 10**30, 0.5, -0.0),
  *(1e308, -1e308, float('nan'), float('inf'), '', 'x', '\0', 'é' * 300, '../' * 20),
  *([], {}, [[]], {'': {}}, [None] * 50, {'name': 'x'}, '1', 'nan'),
]
ODD_TEXTS = [
  *(b'0', b'-1', b'1e308', b'NaN', b'99999999999999999999', b'null', b'"', b'\\'),
  *(b'\0', b'\xff\xfe', b'[' * 300, b'{"a":' * 300, b'\n\n', b'\xf0\x9f\x92\xa9'),
]

Mutate = Callable[[np.random.Generator, bytes], bytes]


def mutate_bytes(random: np.random.Generator, good: bytes) -> bytes:
  """The bytes with some flipped, cut, repeated, overwritten or put in."""
  data = bytearray(good)
  for _ in range(int(random.integers(1, 4))):
    place = int(random.integers(len(data) + 1))
    length = int(2 ** random.uniform(0, 10))
    match int(random.integers(7)):
      case 0 if data:
        data[place % len(data)] ^= 1 << int(random.integers(8))
      case 1:
        del data[place:]
      case 2:
        del data[place : place + length]
      case 3:
        data[place:place] = data[place : place + length]
      case 4:
        data[place : place + length] = random.bytes(length)
      case 5:
        data[place:place] = ODD_TEXTS[int(random.integers(len(ODD_TEXTS)))]
      case _:  # a number of 8 bytes, as lengths and offsets are
        number = (0, 1, 2**31, 2**40, 2**62, 2**64 - 1)[int(random.integers(6))]
        data[place : place + 8] = number.to_bytes(8, 'little')
  return bytes(data)


def mutate_json(random: np.random.Generator, good: bytes) -> bytes:
  """JSON with values replaced, removed, renamed or nested; now and then no JSON."""
  if random.random() < 0.2:
    return mutate_bytes(random, good)
  tree = [copy.deepcopy(json.loads(good))]
  for _ in range(int(random.integers(1, 4))):
    node, key = _choose(random, tree)
    match int(random.integers(4)):
      case 0 if isinstance(node, dict):
        del node[key]
      case 1 if isinstance(node, dict):
        node[f'{key}_'] = node.pop(key)
      case 2:
        node[key] = [node[key]] * int(random.integers(1, 4))
      case _:
        node[key] = copy.deepcopy(ODD_VALUES[int(random.integers(len(ODD_VALUES)))])
  return json.dumps(tree[0]).encode()


def _choose(random: np.random.Generator, tree: list[Any]) -> tuple[Any, Any]:
  """A place in the tree, deep ones included: the container and the key."""
  node, key = tree, 0
  while isinstance(node[key], dict | list) and node[key] and random.random() < 0.8:
    node = node[key]
    keys = list(node) if isinstance(node, dict) else range(len(node))
    key = keys[int(random.integers(len(keys)))]
  return node, key


def check_all(
  path: pathlib.Path,
  open_file: Callable[[], Any],
  mutate: Mutate,
  num_cases: int = NUM_CASES,
  seed: int = 0,
) -> float:
  """Opens corruptions of the file at `path`; returns the share that was refused.

  The file has good content again at the end. Raises AssertionError with the seed and
  number of the first case that is answered wrongly.
  """
  if 'ZOO_FULL_TESTS' not in os.environ:  # see tests/conftest.py
    num_cases = min(num_cases, 40)
  good = path.read_bytes()
  open_file()
  most = _peak_bytes() + BYTES
  refused = 0
  try:
    for case in range(num_cases):
      path.write_bytes(mutate(np.random.default_rng([seed, case]), good))
      where = f'{path.name}, seed {seed}, case {case}'
      start, answer = time.monotonic(), ''
      try:
        with _alarm(3 * SECONDS):
          open_file()
      except (zoo.UserError, zoo.RunError) as error:
        refused += 1
        answer = str(error)
      except BaseException as error:
        text = ''.join(traceback.format_exception(error))
        raise AssertionError(f'{where}: {text}') from error
      assert '\n' not in answer, f'{where}: more than one line: {answer}'
      seconds = time.monotonic() - start
      assert seconds < SECONDS, f'{where}: it took {seconds:.1f} s'
      assert _peak_bytes() < most, f'{where}: it took more than {BYTES:,} bytes'
  finally:
    path.write_bytes(good)
  return refused / num_cases


def _peak_bytes() -> int:
  unit = 1 if sys.platform == 'darwin' else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
  """Raises TimeoutError in the block after some seconds."""

  def ring(number: int, frame: object) -> None:
    raise TimeoutError(f'not answered in {seconds:g} s')

  before = signal.signal(signal.SIGALRM, ring)
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
