"""The range of each field of a config, and of each argument of a model and a mixer.

So each range is tested here once; tests of other rooms ask what a value does.
"""

import copy
import functools
import re
from typing import Any

import pytest
from flax import nnx
from ml_collections import ConfigDict

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from tests.training.runs import small_config
from zoo.config.read import read
from zoo.core import registry
from zoo.mixers import Slot
from zoo.training.experiment import validate

_LARGEST_SEED = 2**32 - 1
_NO_NUMBER = 'word', float('nan'), float('inf'), True
_NO_INTEGER = *_NO_NUMBER, 1.5
_NO_NAME = 'no such word', 3, None
_NO_TEXT = 3, None
_NO_TRUTH = 0, 'False', None

# Values at the ends of a range, then beyond them.
FIELDS: dict[str, tuple[Any, Any]] = {
  'seed': ((0, _LARGEST_SEED), (-1, _LARGEST_SEED + 1, *_NO_INTEGER, None)),
  'objective.name': (('sampled', 'exact'), _NO_TEXT),
  'objective.positions': (('query', 'every'), _NO_NAME),
  'objective.min_examples': ((0, None), (-1, *_NO_INTEGER)),
  'objective.labels': (('clean', 'observed'), _NO_NAME),
  'curriculum.name': (('growing',), _NO_TEXT),
  'curriculum.every': ((1,), (0, *_NO_INTEGER, None)),
  'curriculum.features': ((1, None), (0, *_NO_INTEGER)),
  'curriculum.more_features': ((1,), (0, *_NO_INTEGER, None)),
  'curriculum.examples': ((0, None), (-1, *_NO_INTEGER)),
  'curriculum.more_examples': ((1,), (0, *_NO_INTEGER, None)),
  'curriculum.loops': ((1, None), (0, *_NO_INTEGER)),
  'curriculum.more_loops': ((1,), (0, *_NO_INTEGER, None)),
  'optimizer.name': (
    ('adam', 'adamw', 'lion', 'muon', 'schedule_free', 'sgd'),
    _NO_TEXT,
  ),
  'optimizer.learning_rate': ((1e-3,), (0.0, *_NO_NUMBER, None)),
  'optimizer.beta1': ((0.0, 0.999, None), (-1e-3, 1.0, *_NO_NUMBER)),
  'optimizer.beta2': ((0.0, 0.999, None), (-1e-3, 1.0, *_NO_NUMBER)),
  'optimizer.weight_decay': ((0.0, None), (-1e-3, *_NO_NUMBER)),
  'optimizer.decay': (('hidden', 'all', 'embedding,*/norm'), ('', 'a,,b', 3, None)),
  'optimizer.scales': (({}, {'w_k': 0.0}), (3, {'w_k': -1.0}, {'w_k': 'a'}, None)),
  'optimizer.schedule': (('constant', 'cosine', 'linear', 'wsd'), _NO_NAME),
  'optimizer.warmup_steps': ((0, None), (-1, *_NO_INTEGER)),
  'optimizer.warmup_share': ((0.0, 1.0, None), (-1e-3, 1.001, *_NO_NUMBER)),
  'optimizer.decay_share': ((1e-3, 1.0), (0.0, 1.001, *_NO_NUMBER, None)),
  'optimizer.final_share': ((0.0, 1.0), (-1e-3, 1.001, *_NO_NUMBER, None)),
  'optimizer.clip_norm': ((1e-3, None), (0.0, *_NO_NUMBER)),
  'optimizer.ema_decay': ((0.0, 0.999, None), (-1e-3, 1.0, *_NO_NUMBER)),
  'train.num_steps': ((1, 2**31 - 1), (0, 2**31, *_NO_INTEGER, None)),
  'train.init_from': (('runs/a', None), ('', 3)),
  'train.init_from_step': ((0, None), (-1, *_NO_INTEGER)),
  'train.init_from_digest': (('0123456789abcdef', None), ('', '0123', 3)),
  'train.init_from_other': ((True, False), _NO_TRUTH),
  'train.batch_size': ((1,), (0, *_NO_INTEGER, None)),
  'train.num_parts': ((1,), (0, *_NO_INTEGER, None)),
  'train.compute_dtype': (('float32', 'bfloat16'), _NO_NAME),
  'train.log_every': ((1,), (0, *_NO_INTEGER, None)),
  'train.matmul_precision': (('default', 'high', 'highest'), _NO_NAME),
  'mesh.data': ((-1, 1), (0, -2, *_NO_INTEGER, None)),
  'mesh.model': ((1,), (0, *_NO_INTEGER, None)),
  'mesh.fsdp': ((True, False), _NO_TRUTH),
  'mesh.heartbeat_timeout': ((1,), (0, *_NO_INTEGER, None)),
  'mesh.start_timeout': ((1,), (0, *_NO_INTEGER, None)),
  'checkpoint.every': ((1,), (0, *_NO_INTEGER, None)),
  'checkpoint.every_minutes': ((1e-3, None), (0.0, *_NO_NUMBER)),
  'checkpoint.keep': ((1,), (0, *_NO_INTEGER, None)),
  'checkpoint.steps': (
    (None, 'log', (), (1, 10), [3]),
    ('all', 5, (0,), (1.5,), ('log',)),
  ),
  'eval.every': ((1,), (0, *_NO_INTEGER, None)),
  'eval.metrics': (((), [], ('norm',)), ('norm', (3,), ('norm', 'norm'), 3)),
  'eval.num_batches': ((0,), (-1, *_NO_INTEGER, None)),
  'eval.num_compared': ((0,), (-1, *_NO_INTEGER, None)),
  'eval.seed': ((0, _LARGEST_SEED), (-1, _LARGEST_SEED + 1, *_NO_INTEGER, None)),
}


# Without these, other fields of the section have no effect and must not be set.
_WITH: dict[str, dict[str, Any]] = {
  'curriculum': {'features': 1, 'examples': 1, 'loops': 1},
  'optimizer': {'schedule': 'wsd'},
  'train': {'init_from': 'runs/a'},
}


def test_every_field_has_a_range():
  config = small_config().to_dict()
  assert {name.split('.')[0] for name in FIELDS} == config.keys() - {'model', 'task'}
  for section in config.keys() - {'model', 'task', 'seed'}:
    own = {name.split('.')[1] for name in FIELDS if name.startswith(f'{section}.')}
    assert own == config[section].keys()


@functools.cache
def _whole() -> dict[str, Any]:
  return small_config().to_dict()


@pytest.mark.parametrize('name', FIELDS)
def test_what_is_beyond_the_range_of_a_field_is_refused(name):
  section, _, field = name.rpartition('.')
  good, bad = FIELDS[name]
  for content in (*good, *bad):
    fields: Any = copy.deepcopy(_whole())
    (fields[section] if section else fields)[field] = content
    for other, needed in _WITH.get(section, {}).items():
      if other != field:
        fields[section][other] = needed
    config = ConfigDict(fields)  # whose fields have no types yet
    if any(content is refused for refused in bad):
      with refuses(name):
        read(config)
    else:
      read(config)


@pytest.mark.parametrize(
  'name', ['objective.name', 'curriculum.name', 'optimizer.name', 'eval.metrics']
)
def test_a_name_that_is_not_registered_is_refused(name):
  section, _, field = name.rpartition('.')
  fields: Any = copy.deepcopy(_whole())
  fields[section][field] = ('no such word',) if field == 'metrics' else 'no such word'
  with refuses("'no such word'"):
    validate(ConfigDict(fields))


_SCALE = -1e-3, 1.1e30, *_NO_NUMBER
_LAYERS = 0, 1001, *_NO_INTEGER
_SIZE = 0, *_NO_INTEGER
_ARRAY = 'two', [1.0, 2.0], [1.0, float('nan'), 2.0]
# What each argument of a model refuses, whichever model has it.
ARGUMENTS: dict[str, Any] = {
  'num_features': _SIZE,
  'context_length': (-1, *_NO_INTEGER),
  'num_outputs': _SIZE,
  'num_layers': _LAYERS,
  'num_heads': _SIZE,
  'width': _SIZE,
  'initial_guess': _ARRAY,
  'initial_bias': _NO_NUMBER,
  'guess': _NO_NAME,
  'guess_weights': _ARRAY,
  'guess_bias': _NO_NUMBER,
  'init_scale': _SCALE,
  'hidden_features': _SIZE,
  'shared': _NO_TRUTH,
  'form': _NO_NAME,
  'readout': _NO_NAME,
  'rule': _NO_NAME,
  'tokens': _NO_NAME,
  'mixer': ('no such word', 3, None, ''),
  'mixer_options': (3, {'no such option': 1}),
  'positions': _NO_NAME,
  'causal': _NO_TRUTH,
  'feed_forward': _NO_NAME,
  'norm': _NO_NAME,
  'num_loops': _LAYERS,
  'num_trained_loops': _SIZE,
  'remat': _NO_TRUTH,
  'read_in': _NO_NAME,
  'head': _NO_NAME,
  'edges': _ARRAY,
  'num_classes': (1, *_NO_INTEGER),
  'num_bars': (1, *_NO_INTEGER),
}
_GIVEN = {'num_features': 3, 'context_length': 4, 'num_heads': 2, 'num_outputs': 1}
_GIVEN |= {'num_layers': 1, 'width': 8}
# Without these, a message says that the argument has no meaning, whatever its value is.
_NEEDED: dict[str, Any] = {
  'edges': {'head': 'bars'},
  'guess_weights': {'guess': 'fixed'},
  'guess_bias': {'guess': 'fixed'},
}


@pytest.mark.parametrize(
  'name', mostly_slow(sorted({*zoo.list_models()} - {'tabular'}), ['tabular'])
)
def test_a_model_refuses_what_is_beyond_the_range_of_an_argument(name, unchecked):
  taken = registry.parameters(registry.MODELS[name])
  sizes = {field: value for field, value in _GIVEN.items() if field in taken}
  for field in taken.keys() - {'rngs'}:
    needed = _NEEDED.get(field, {})
    for content in ARGUMENTS[field]:
      with refuses() as info:
        arguments: Any = sizes | needed | {field: content, 'rngs': nnx.Rngs(0)}
        zoo.create_model(name, **arguments)
      about_it = rf'(unknown )?{field}( is| has| holds| .+;) '
      if field == 'mixer_options':
        about_it += '|unknown option of '
      assert re.match(about_it, str(info.value)), (field, content)


# What each option of a mixer refuses.
OPTIONS: dict[str, Any] = {
  'state_size': _SIZE,
  'convolution': _NO_TRUTH,
  'horizon': (0.0, *_NO_NUMBER),
  'mini_batch_size': _SIZE,
  'negative_eigenvalues': _NO_TRUTH,
  'num_householder': (0, 65, *_NO_INTEGER),
  'num_levels': (1, 32, *_NO_INTEGER),
  'causal': _NO_TRUTH,
  'rotary': _NO_TRUTH,
}
_ENDS = {'s4d': {'state_size': (1, 3, 10**6 + 2)}, 'mamba3': {'state_size': (3,)}}


@pytest.mark.parametrize('name', zoo.list_mixers())
def test_a_mixer_refuses_what_is_beyond_the_range_of_an_option(name, unchecked):
  slot = Slot(8, 2)
  options = registry.parameters(registry.MIXERS[name]).keys()
  for option in options - {'slot', 'rngs'}:
    for content in (*OPTIONS[option], *_ENDS.get(name, {}).get(option, ())):
      arguments: Any = {option: content, 'rngs': nnx.Rngs(0)}
      with refuses(option):
        registry.create_mixer(name, slot=slot, **arguments)
