"""Compares the speed of training with that of a plain program and of sampling alone.

  python -m launch.benchmark
  python -m launch.benchmark --json=benchmark.json --repeats=5
  python -m launch.benchmark --scaling=scaling.png
  python -m launch.benchmark --models=gpt2_tiny,gpt2_small,delta,lstm

Use an idle machine. The ratios also hold on a busy one, since the programs take turns.
"""

import json
from typing import Any

from absl import flags

import configs
import zoo
from launch import cli
from zoo.core.errors import UserError, check_count, check_number, unknown_name

flags.adopt_module_key_flags(cli)
_JSON = flags.DEFINE_string('json', None, 'JSON file for all numbers.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Runs of each program, in turns.')
_SECONDS = flags.DEFINE_float('seconds', 1.0, 'Duration of a run in seconds.')
_SCALING = flags.DEFINE_string(
  'scaling', None, 'Vary batch, context, features and heads instead; plot to this file.'
)
_MODELS = flags.DEFINE_list(
  'models',
  None,
  'Instead, time models other than linear attention, with 20 features and 40 examples: '
  'a size (gpt2_tiny, gpt2_small, gpt2), a mixer for gpt2_tiny, or a config file.',
)
_SMOKE = flags.DEFINE_bool('smoke', False, 'Tiny sizes: fast, but not meaningful.')

# Not `literal` with 64 heads, where a step takes a second.
_ALL = 'literal', 'zoo', 'chunk', 'draws', 'examples'
_COMPARED = (
  ('lsa', {}, _ALL),
  ('yq_lsa', {}, _ALL),
  ('ltb', {}, _ALL),
  ('multi_head_lsa', {'model.num_heads': 11}, _ALL),
  ('multi_head_lsa', {'model.num_heads': 64}, ('zoo', 'chunk')),
  ('yq_lsa', {'task.context_length': 10_000}, ('zoo', 'chunk')),
)
_SCALED = {
  'batch size B': ('train.batch_size', (256, 512, 1024, 2048, 4096)),
  'context length C': ('task.context_length', (5, 10, 15, 100, 10_000)),
  'features d': ('task.num_features', (5, 10, 20, 40)),
  'heads H': ('model.num_heads', (1, 4, 16, 64, 256)),
}


def main() -> None:
  repeats = check_count('--repeats', _REPEATS.value)
  seconds = check_number('--seconds', _SECONDS.value, above=0.0)
  json_file, picture = cli.file_of(_JSON), cli.file_of(_SCALING)
  if picture is not None and picture.suffix not in ('.png', '.svg', '.pdf'):
    raise UserError(
      f'--scaling is {_SCALING.value!r}; it must end in .png, .svg or .pdf'
    )
  if picture is not None and _MODELS.value is not None:
    raise UserError('--scaling and --models are two benchmarks; give one of them')
  # Imported here so that a mistyped flag is reported at once.
  import jax

  from zoo.benchmarks import linear as benchmark

  variant = 'smoke' if _SMOKE.value else 'paper'
  found: dict[str, Any] = {
    'jax_version': jax.__version__,
    'device_kind': jax.devices()[0].device_kind,
    'num_devices': jax.device_count(),
    'variant': variant,
  }
  if _MODELS.value is not None:
    from zoo.benchmarks import models as model_benchmark

    configs = {name: _model_config(name, _SMOKE.value) for name in _MODELS.value}
    rows = model_benchmark.compare(configs, repeats, seconds)
    found['models'] = model_benchmark.summarise(rows)
    print(model_benchmark.table(found['models']))
  elif picture is None:
    entries = [(_config(n, variant, more), c) for n, more, c in _COMPARED]
    rows = benchmark.compare(entries, repeats, seconds)
    found['rows'] = [row.summary() for row in rows]
    found['ratios'] = benchmark.ratios(rows)
    eleven = _config('multi_head_lsa', variant, {'model.num_heads': 11})
    found['sweep'] = benchmark.time_sweep(eleven, num_points=32)
    print(benchmark.table(found))
  else:
    cases = {}
    for label, (field, sizes) in _SCALED.items():
      cases[label] = [
        (size, _config('multi_head_lsa', variant, {'model.num_heads': 11, field: size}))
        for size in (sizes[:2] if _SMOKE.value else sizes)
      ]
    found['scaling'] = benchmark.scale(cases, repeats, seconds)
    benchmark.plot_scaling(found['scaling']).savefig(picture)
    for label, measured in found['scaling'].items():
      print(f'{label:<18} step time ∝ size^{measured["exponent"]:.2f}')
    print(picture)
  if json_file is not None:
    json_file.write_text(json.dumps(found, indent=2) + '\n')


def _config(name: str, variant: str, fields: dict[str, Any]) -> Any:
  config: Any = configs.get_config(name, variant)
  config.update_from_flattened_dict(fields)
  return config


def _model_config(name: str, smoke: bool) -> Any:
  """The config of a size, a mixer or a config file, in the setting of arXiv 2208.01066.

  Raises UserError for an unknown name.
  """
  files = 'deep_lsa', 'deep_set', 'gru', 'lstm', 'mlp', 'mlp_mixer'
  mixers, sizes = zoo.list_mixers(), ('gpt2_tiny', 'gpt2_small', 'gpt2')
  if name in sizes:
    config = _config('transformer', name, {})
  elif name in mixers:
    config = _config('transformer', 'gpt2_tiny', {'model.mixer': name})
  elif name in files:
    config = _config(name, '', {})
  else:
    raise unknown_name('--models', name, [*sizes, *mixers, *files])
  fields = {'task.num_features': 20, 'task.context_length': 40, 'train.batch_size': 64}
  if smoke:
    fields = {'task.num_features': 2, 'task.context_length': 3, 'train.batch_size': 2}
  config.update_from_flattened_dict(fields)
  return config


if __name__ == '__main__':
  cli.run(main)
