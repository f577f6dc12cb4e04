"""Memory and traffic of training on TPUs that this machine need not have.

XLA can compile ahead of time (AOT) for a named topology on any machine with libtpu. The
program that is compiled is the training step of `launch.main`, on all devices.
"""

import importlib.util
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from zoo.config.read import Readable
from zoo.core.errors import UserError, not_installed
from zoo.core.tables import format_table
from zoo.sharding import on_mesh, replicated
from zoo.training.compilation import make_training
from zoo.training.experiment import Experiment, build, validate

GIB = 2**30  # bytes
_FLAT = '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16'
_CUBES = '2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8'
# These are the slices that can be rented, up to 256 chips, the smaller ones first.
SLICES = {'v5e': _FLAT, 'v6e': _FLAT, 'v4': _CUBES, 'v5p': _CUBES}

# The bytes of memory of a chip that a program may use. The compiler states these limits
# when it rejects a program.
HBM_BYTES = {
  'v5e': int(15.75 * GIB),
  'v6e': int(31.25 * GIB),
  'v4': int(30.75 * GIB),
  'v5p': int(95.74 * GIB),
}

Report = dict[str, Any]  # It can be written as JSON.


def report(config: Readable, topology: str) -> Report:
  """Returns what a training step needs on each device of a slice.

  Args:
    config: The config of the run.
    topology: The slice, such as 'v5e:4x8'.

  Returns:
    A dictionary. `fits` says whether training can run on the slice, and `reason` why
    not. Bytes and flops are XLA's, for each device and step. `collectives` has the
    count of each kind of collective, and the bytes of its results on each device.
    `unsharded_bytes` is the state of which every device has a whole copy.
    `donated_bytes` are arguments whose memory the results reuse.

  Raises:
    UserError: If the topology is unknown, if the config is invalid on it, or if libtpu
      is not installed.
  """
  devices = _devices(topology)
  hbm = HBM_BYTES[topology.partition(':')[0]]
  experiment = build(config, devices)
  mesh = experiment.mesh
  lowered, state = _lower(experiment)
  leaves = jax.tree.leaves(state)
  fields: Report = {
    'topology': topology,
    'device_kind': devices[0].device_kind,
    'num_devices': len(devices),
    'mesh': {**mesh.shape, 'fsdp': experiment.config.mesh.fsdp},
    'hbm_bytes': hbm,
    'state_bytes': sum(map(_bytes_a_device, leaves)),
    'unsharded_bytes': sum(
      _bytes_a_device(leaf) for leaf in leaves if leaf.sharding.is_fully_replicated
    ),
  }
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    reason = _out_of_memory(str(error))
    if reason is None:
      raise
    return {**fields, 'fits': False, 'reason': reason}
  memory = compiled.memory_analysis()
  peak = memory.peak_memory_in_bytes
  excess = f'the peak of {peak / GIB:.2f} GiB exceeds the {hbm / GIB:.2f} GiB of a chip'
  return fields | {
    'fits': peak <= hbm,
    'reason': None if peak <= hbm else excess,
    'argument_bytes': memory.argument_size_in_bytes,
    'temporary_bytes': memory.temp_size_in_bytes,
    'donated_bytes': memory.alias_size_in_bytes,
    'peak_bytes': peak,
    'flops': compiled.cost_analysis()['flops'],
    'collectives': collectives(compiled.as_text()),
  }


_COLLECTIVE = re.compile(
  r'= (?P<shape>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all'
  r'|ragged-all-to-all|collective-permute|collective-broadcast)(?P<start>-start)?'
  r'\((?:.*?channel_id=(?P<channel>\d+))?'
)
_ARRAY = re.compile(r'\b(?:pred|[a-z]+(?P<bits>\d+)\w*)\[(?P<sides>[\d,]*)\]')


def collectives(text: str) -> dict[str, dict[str, int]]:
  """Counts the collectives of a step, and the bytes of their results, by kind.

  Args:
    text: The text of a compiled program. Its entry computation, which comes last, has
      what runs before and after all steps, so it is left out.

  Returns:
    By kind, such as 'all-reduce', the `count` and the `bytes`.
  """
  counts: dict[str, dict[str, int]] = {}
  seen = set()
  for match in _COLLECTIVE.finditer(text[: text.rindex('\nENTRY ')]):
    kind = match['kind']
    # On a TPU several fusions may each send a part of one collective. It counts once.
    if match['channel'] is not None:
      if (kind, match['channel']) in seen:
        continue
      seen.add((kind, match['channel']))
    sizes = [
      math.prod(map(int, filter(None, array['sides'].split(','))))
      * (int(array['bits'] or 8) // 8)
      for array in _ARRAY.finditer(match['shape'])
    ]
    # The shape of an asynchronous start holds both the operand and the result.
    entry = counts.setdefault(kind, {'count': 0, 'bytes': 0})
    entry['count'] += 1
    entry['bytes'] += max(sizes) if match['start'] else sum(sizes)
  return dict(sorted(counts.items()))


def listed(config: Readable) -> Iterator[Report]:
  """Yields a report for each listed slice, in order of the number of chips.

  Slices with the same number of chips are ordered by memory. A slice on which the
  config is invalid is reported as one on which training does not fit.

  Raises:
    UserError: If the config is invalid on the largest slice.
  """

  def size(name: str) -> tuple[int, int]:
    chip, _, shape = name.partition(':')
    return math.prod(map(int, shape.split('x'))), HBM_BYTES[chip]

  names = [f'{chip}:{shape}' for chip, shapes in SLICES.items() for shape in shapes]
  validate(config, size(max(names, key=size))[0])
  for name in sorted(names, key=size):
    try:
      yield report(config, name)
    except UserError as error:
      yield {'topology': name, 'fits': False, 'reason': str(error)}


def table(report: Report) -> str:
  """Returns a report as a table for a terminal."""
  if 'mesh' not in report:
    return (
      f'{report["topology"]}: the config does not fit this slice: {report["reason"]}'
    )
  mesh = report['mesh']
  title = (
    f'{report["topology"]}: {report["num_devices"]} × {report["device_kind"]}, mesh '
    f'data {mesh["data"]} × model {mesh["model"]}{", fsdp" * mesh["fsdp"]}'
  )
  rows = [
    ('state', _size(report['state_bytes'])),
    ('state, unsharded', _size(report['unsharded_bytes'])),
  ]
  if 'peak_bytes' in report:
    rows += [
      ('arguments', _size(report['argument_bytes'])),
      ('temporaries', _size(report['temporary_bytes'])),
      ('peak', _size(report['peak_bytes'])),
      ('memory of a chip', _size(report['hbm_bytes'])),
      ('flops', f'{report["flops"]:.3g}'),
    ]
    for kind, what in report['collectives'].items():
      rows.append((f'{kind} × {what["count"]}', _size(what['bytes'])))
  fits = 'it fits' if report['fits'] else f'it does not fit: {report["reason"]}'
  header = 'on each device, in a step', ''
  return f'{title}\n{format_table(rows, header, indent=2)}\n  {fits}'


def row(report: Report) -> str:
  """Returns a report as one line."""
  if 'peak_bytes' not in report:
    return f'{report["topology"]:<11} no   {report["reason"]}'
  reduced = sum(what['bytes'] for what in report['collectives'].values())
  kinds = ', '.join(f'{k} {v["count"]}' for k, v in report['collectives'].items())
  fits = 'fits' if report['fits'] else 'no'
  return (
    f'{report["topology"]:<11} {fits:<4} peak {_size(report["peak_bytes"])} of '
    f'{report["hbm_bytes"] / GIB:5.2f} GiB   {_size(reduced)} in {kinds or "none"}'
  )


def _size(num_bytes: int) -> str:
  for unit, factor in ('GiB', GIB), ('MiB', 2**20):
    if num_bytes >= factor / 10:
      return f'{num_bytes / factor:8.2f} {unit}'
  return f'{num_bytes / 1024:8.2f} KiB'


def _devices(topology: str) -> list[Any]:
  """Returns the devices of a slice, which need not exist; raises UserError."""
  chip, _, shape = topology.partition(':')
  known = '; '.join(f'{chip}: {", ".join(shapes)}' for chip, shapes in SLICES.items())
  if chip not in SLICES or not re.fullmatch(r'\d+(x\d+)+', shape):
    raise UserError(
      f'unknown topology {topology!r}; it must be chip:shape such as v5e:4x8, or auto; '
      f'known: {known}'
    )
  if importlib.util.find_spec('libtpu') is None:
    raise not_installed('libtpu', 'compiling for TPUs needs', 'tpu')
  # Without these variables libtpu warns that there is no TPU, and a second process
  # cannot load it.
  os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5litepod-4')
  os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  # With this option the two cores of a v4 chip are one device.
  options: dict[str, Any] = {'chip_config_name': 'megacore'} if chip == 'v4' else {}
  try:
    description = topologies.get_topology_desc(
      platform='tpu', topology_name=topology, **options
    )
  except jax.errors.JaxRuntimeError:
    raise UserError(
      f'the topology {topology!r} is not a slice that libtpu knows; known: {known}'
    ) from None
  return list(description.devices)


def _lower(experiment: Experiment) -> tuple[Any, Any]:
  """Returns the training step, lowered for its mesh, and its abstract state."""
  config, mesh = experiment.config, experiment.mesh
  whole = replicated(mesh)

  def abstract(value: Any) -> jax.ShapeDtypeStruct:
    kind = jax.typeof(value)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, sharding=whole)

  training, limit = make_training(experiment), np.int32(0)
  assert isinstance(training.steps, jax.stages.Wrapped)  # They are not compiled.
  key, limit, inputs = jax.tree.map(abstract, (training.key, limit, training.inputs))
  with on_mesh(mesh, config):
    traced = training.steps.trace(training.abstract, key, limit, limit, inputs)
    return traced.lower(lowering_platforms=('tpu',)), training.abstract


def _bytes_a_device(leaf: jax.ShapeDtypeStruct) -> int:
  return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _out_of_memory(message: str) -> str | None:
  """Returns the compiler's message for a program that does not fit, in one line."""
  match = re.search(r'RESOURCE_EXHAUSTED: (.+)', message)
  if match is None:
    return None
  # Some releases of libtpu put a code before the message, and names of programs behind.
  message = match[1]
  line = message[max(message.find('Ran out of memory'), 0) :]
  return line.partition(').')[0].strip().rstrip('.') + ')' * (').' in line)
