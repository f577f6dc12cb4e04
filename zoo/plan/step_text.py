"""Facts about one step, read from the text of a compiled training program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

Leaves = Sequence[tuple[Any, Any]]  # paths and abstract arrays

_COLLECTIVE = re.compile(
  r'= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all'
  r'|collective-permute|collective-broadcast)(?:-start)?\('
)
# GPU instructions that launch no kernel of their own.
_NO_KERNEL = re.compile(
  r' (parameter|constant|tuple|get-tuple-element|bitcast|while|call|conditional'
  r'|after-all|partition-id|replica-id)\('
)
_SENT = re.compile(r'= (.*?) send\(.*"xla_megascale_runtime"')
_ARRAY = re.compile(r'\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]')


def collectives(text: str) -> dict[str, dict[str, int]]:
  """How often each kind of collective runs in a step, and the bytes of its results.

  What a device sends to other slices, over another network, is `between slices`.
  """
  found: dict[str, dict[str, int]] = {}
  seen = set()
  for line in _lines_of_a_step(text):
    if match := _COLLECTIVE.search(line):
      shape, kind = match.groups()
    elif match := _SENT.search(line):
      shape, kind = match.group(1), 'between slices'
    else:
      continue
    # A TPU sends parts of one collective during each of several fusions.
    if channel := re.search(r'channel_id=\d+', line):
      if (kind, channel.group()) in seen:
        continue
      seen.add((kind, channel.group()))
    sizes = [
      math.prod(map(int, filter(None, sides.split(',')))) * int(bits or 8) // 8
      for _, bits, sides in _ARRAY.findall(shape)
    ]
    # The shape of an asynchronous start holds both the operand and the result; that of
    # a send holds the data and a number.
    whole = match.re is _SENT or '-start(' in match.group()
    entry = found.setdefault(kind, {'count': 0, 'bytes': 0})
    entry['count'] += 1
    entry['bytes'] += max(sizes) if whole else sum(sizes)
  return dict(sorted(found.items()))


def _lines_of_a_step(text: str) -> list[str]:
  """The instructions of the loop over steps, and of everything it calls."""
  computations, body = _loop_over_steps(text)
  waiting = [body]
  reached: dict[str, list[str]] = {}
  while waiting:
    name = waiting.pop()
    if name in computations and name not in reached:
      reached[name] = computations[name]
      waiting += [n for line in reached[name] for n in re.findall(r'%([\w.\-]+)', line)]
  return [line for lines in reached.values() for line in lines]


def sum_in_a_step(text: str, count: Callable[[str], int]) -> int:
  """The sum of `count` over all instructions of a step.

  The instructions of a loop within a step count as often as they run, once if the
  program does not say how often; a fusion counts as a whole.
  """
  computations, body = _loop_over_steps(text)

  def total(name: str) -> int:
    found = 0
    for line in computations.get(name, ()):
      found += count(line)
      if re.search(r' (while|call|conditional|async-start)\(', line):
        called = re.findall(r'(?:body|calls|to_apply)=%?([\w.\-]+)', line)
        if branches := re.search(r'branch_computations=\{(.*?)\}', line):
          called += re.findall(r'%?([\w.\-]+)', branches.group(1))
        found += _times(line, computations) * sum(map(total, called))
    return found

  return total(body)


def cycles(line: str) -> int:
  """The compiler's estimate for an instruction, in cycles of a TPU."""
  stated = re.search(r'"estimated_cycles":"(\d+)"', line)
  return int(stated.group(1)) if stated else 0


def kernels(line: str) -> int:
  """The number of kernels that a GPU instruction launches, except for collectives."""
  if not re.match(r' *(ROOT )?%', line):
    return 0
  return not (_NO_KERNEL.search(line) or re.search(r'-done\(', line)) and not (
    _COLLECTIVE.search(line)
  )


def _times(line: str, computations: dict[str, list[str]]) -> int:
  """How often an instruction runs what it calls."""
  condition = re.search(r' while\(.*condition=%?([\w.\-]+)', line)
  if condition is None:
    return 1
  # The number that the index, which counts from 0, is compared with.
  limits = re.findall(r' constant\((\d+)\)', ''.join(computations[condition.group(1)]))
  return int(limits[0]) if len(limits) == 1 else 1


def _loop_over_steps(text: str) -> tuple[dict[str, list[str]], str]:
  """The instructions of each computation, and the name of the loop's body."""
  computations: dict[str, list[str]] = {}
  body: list[str] = []
  entry = ''
  for line in text.splitlines():
    if head := re.match(r'(ENTRY )?%?([\w.\-]+) \(.*\{$', line):
      body = computations.setdefault(head.group(2), [])
      entry = head.group(2) if head.group(1) else entry
    elif line.startswith(' '):
      body.append(line)
  loops = [line for line in computations[entry] if re.search(r' while\(', line)]
  if len(loops) != 1:
    raise ValueError(f'the training program has {len(loops)} loops; it should have 1')
  (name,) = re.findall(r'body=%?([\w.\-]+)', loops[0])
  return computations, name


def lost_donations(text: str, state: Leaves) -> list[str]:
  """The arrays of the state, the first arguments, whose memory no output reuses."""
  header = text[: text.index('\n')]
  reused = {int(n) for n in re.findall(r'\((\d+), \{\}, (?:may|must)-alias\)', header)}
  return [
    jax.tree_util.keystr(path, simple=True, separator='.')
    for number, (path, _) in enumerate(state)
    if number not in reused
  ]
