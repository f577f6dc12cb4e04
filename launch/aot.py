"""Compiles training for a TPU slice that you need not have, and checks whether it fits.

  python -m launch.aot --config=configs/scale.py --topology=v5e:4x8
  python -m launch.aot --config=configs/scale.py --topology=auto --json=plan.json
  python -m launch.aot --config=configs/yq_lsa.py --topology=v6e:16x16

This command trains nothing, and needs no TPU. It needs the extra `tpu`, which
`pip install -c constraints.txt -e '.[tpu]'` installs. It reports the memory of a
training step on each chip and the traffic between chips. With --topology=auto it finds
the smallest listed slice on which training fits. With --topology=all it tries all
listed slices, up to 256 chips. The exit code is 1 if training does not fit.
"""

import json

import jax
from absl import flags

from launch import cli, config_flag, slices
from zoo.core.errors import RunError, UserError

flags.adopt_module_key_flags(cli)
_CONFIG = config_flag.define(
  'Config file, with variants of it after a colon: `configs/yq_lsa.py:smoke`. The '
  'folder `configs` of the repository is found from any folder.'
)
_TOPOLOGY = flags.DEFINE_string(
  'topology',
  None,
  'TPU slice, such as `v5e:4x8` or `v5p:2x2x4`. `auto` finds the smallest slice on '
  'which training fits, and `all` tries all listed slices, up to 256 chips.',
)
_JSON = flags.DEFINE(
  cli.File(), 'json', None, 'JSON file to which the reports are written.'
)


def main() -> None:
  config = config_flag.get(_CONFIG)
  topology = _TOPOLOGY.value
  if not topology:
    raise UserError('--topology is missing; try --topology=v5e:4x8, or auto')
  # On the CPU this process leaves any TPU to others.
  jax.config.update('jax_platforms', 'cpu')
  # The compilation cache needs real devices.
  jax.config.update('jax_enable_compilation_cache', False)
  reports = []
  several = topology in ('auto', 'all')
  for report in slices.listed(config) if several else [slices.report(config, topology)]:
    reports.append(report)
    if _JSON.value is not None:
      _JSON.value.write_text(json.dumps(reports, indent=2) + '\n')
    print(slices.row(report) if several else slices.table(report), flush=True)
    if topology == 'auto' and report['fits']:
      print(slices.table(report))
      return
  if topology == 'auto' or not all(report['fits'] for report in reports):
    failed = [report for report in reports if not report['fits']][-1]
    raise RunError(f'training does not fit on {failed["topology"]}: {failed["reason"]}')


if __name__ == '__main__':
  cli.run(main)
