"""Every mistake in a config is named, before anything is built."""

import inspect
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import configs
import zoo
from tests.compare import refuses
from tests.marks import mostly_full, mostly_slow
from tests.training.runs import CONFIGS, small_config
from zoo.config.read import read, to_content, to_json
from zoo.config.saved import differences
from zoo.sharding import mesh_shape
from zoo.training import validate

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.mark.parametrize(
  'name',
  mostly_slow(
    ['multi_head_lsa', 'transformer'],
    sorted({*CONFIGS} - {'scale', 'omniglot', 'strategies'}),
  ),
)
def test_good_configs_pass(name):
  validate(small_config(name))


@pytest.mark.slow
def test_a_decay_that_a_variant_sets_is_used():
  validate(configs.get_config('tabular', 'smoke,paper'))


def test_that_of_urns_passes_which_have_no_features():
  validate(configs.get_config('strategies', 'smoke'))


@pytest.mark.parametrize(
  'variant', mostly_full(['looped', 'set', 'garg'], ['gpt2'], slow=['gpt2_tiny'])
)
def test_the_variants_of_transformers_pass(variant):
  config = configs.get_config('transformer', f'smoke,{variant}')
  validate(config)
  layers = {'gpt2': 12, 'looped': 1, 'garg': 4}
  assert config.model.num_layers == layers.get(variant, 3)


def test_a_transformer_of_two_sizes_is_refused():
  with refuses("'gpt2,gpt2_tiny' names several sizes"):
    configs.get_config('transformer', 'gpt2,gpt2_tiny')
  with refuses("unknown variant 'gpt3'", 'gpt2_small', 'smoke', 'task=NAME'):
    configs.get_config('transformer', 'gpt3')


# What is beyond the range of a field is in tests/test_ranges.py.
_MISTAKES = [
  ('yq_lsa', {'objective__name': 'sampeld'}, ["'sampeld'", "did you mean 'sampled'"]),
  ('yq_lsa', {'train__num_steps': 0}, ['config.train.num_steps is 0', 'from 1']),
  ('yq_lsa', {'mesh__data': 0}, ['config.mesh.data', 'is 0', '≥ 1', '-1']),
  ('yq_lsa', {'mesh__data': 16}, ['16 × model 1', '16 devices', 'there are 8']),
  ('yq_lsa', {'mesh__data': 3}, ['config.train.batch_size is 16', 'which is 3']),
  ('yq_lsa', {'model__name': 'yqlsa'}, ['config.model', "did you mean 'yq_lsa'"]),
  ('yq_lsa', {'model__num_haeds': 2}, ["'num_haeds'", "did you mean 'num_heads'"]),
  ('yq_lsa', {'model__num_features': 2}, ['has num_features', 'set by the task']),
  ('yq_lsa', {'model__num_heads': 0}, ['config.model: num_heads is 0']),
  (
    'yq_lsa',
    {'task__name': 'linear_regresion'},
    ['task: unknown', 'linear_regression'],
  ),
  ('yq_lsa', {'task__prior_mean': (1.0, 2.0)}, ['shape (2,)', 'length 3']),
  ('yq_lsa', {'task__prior_mean': 'two'}, ["prior_mean is 'two'"]),
  ('yq_lsa', {'task__noise_std': -0.1}, ['config.task: noise_std is -0.1']),
  ('yq_lsa', {'task__prior_covariance': ((1.0, 0.0), (0.0, 1.0))}, ['(2, 2)', '3 × 3']),
  ('yq_lsa', {'train__batch_sise': 16}, ["did you mean 'train.batch_size'"]),
  ('yq_lsa', {'trein': {'a': 1}}, ["'trein'"]),
  (
    'multi_head_lsa',
    {'model__num_heads': 11, 'mesh__data': 2, 'mesh__model': 2},
    ['11 heads', 'divisible by config.mesh.model, which is 2'],
  ),
  # The objective, and how it is computed.
  (
    'yq_lsa',
    {'objective__positions': 'every', 'objective__name': 'exact'},
    ["config.objective.positions is 'every'", 'exact'],
  ),
  ('yq_lsa', {'train__num_parts': 3}, ['batch_size is 16', 'num_parts, which is 3']),
  ('yq_lsa', {'train__compute_dtype': 'float16'}, ["'float16'", 'bfloat16']),
  ('yq_lsa', {'objective__name': 'exact', 'train__num_parts': 2}, ['must be 1']),
  (
    'yq_lsa',
    {'objective__name': 'exact', 'train__compute_dtype': 'bfloat16'},
    ["must be 'float32'"],
  ),
  ('yq_lsa', {'objective__min_examples': 5}, ['is 5; it must be None, or at most 4']),
  (
    'yq_lsa',
    {'objective__min_examples': 1, 'objective__positions': 'every'},
    ['config.objective.min_examples', 'for config.objective.pos'],
  ),
  (
    'yq_lsa',
    {'objective__min_examples': 1, 'objective__name': 'exact'},
    ["for the objective 'exact'"],
  ),
  ('mlp', {'objective__min_examples': 1}, ["for 'mlp', whose tokens are 'joint'"]),
  # Curricula.
  ('transformer', {'curriculum__features': 4}, ['features is 4; it must be ≤ 3']),
  ('transformer', {'curriculum__loops': 1}, ['has no loops that can grow']),
  ('yq_lsa', {'curriculum__examples': 1}, ["must be 'every' where the examples grow"]),
  ('sequential', {'curriculum__features': 1}, ["a curriculum needs 'sampled'"]),
  (
    'transformer',  # a task that draws labels first
    {'task': {'name': 'markov_chain'}, 'curriculum__features': 1},
    ["the features of 'markov_chain' cannot grow"],
  ),
  # Distributions.
  (
    'transformer',
    {'objective__name': 'nll'},
    [
      "is 'nll'; it must be 'sampled'",
      "config.model.head = 'point'",
      "'bars' have one",
    ],
  ),
  (
    'yq_lsa',
    {'objective__name': 'nll'},
    ["it must be 'sampled' for 'yq_lsa', which has no method distribution"],
  ),
  (
    'deep_set',
    {'model__head': 'gaussian'},
    ["'sampled'; it must be 'nll' for 'deep_set' with config.model.head = 'gaussian'"],
  ),
  # Optimizers.
  ('yq_lsa', {'optimizer__name': 'adm'}, ["did you mean 'adam'"]),
  ('yq_lsa', {'optimizer__name': 'adamW'}, ["did you mean 'adamw'"]),
  (
    'yq_lsa',
    {'optimizer__weight_decay': 0.1},
    ["is 0.1; 'adam' takes beta1, beta2", "weight_decay is taken by 'adamw', 'lion'"],
  ),
  ('yq_lsa', {'optimizer__warmup_steps': 13}, ['warmup_steps is 13', 'which is 12']),
  (
    'yq_lsa',
    {'optimizer__name': 'schedule_free', 'optimizer__schedule': 'cosine'},
    ["must be 'constant'"],
  ),
  (
    'yq_lsa',
    {
      **{'optimizer__name': 'schedule_free', 'optimizer__schedule': 'constant'},
      'optimizer__ema_decay': 0.9,
    },
    ['must be None'],
  ),
  (
    'yq_lsa',
    {
      **{'optimizer__name': 'schedule_free', 'optimizer__schedule': 'constant'},
      'optimizer__beta1': 0.0,
    },
    ["config.optimizer.beta1 is 0; it must be ≥ 0.01 for 'schedule_free'"],
  ),
  (
    'yq_lsa',
    {'optimizer__schedule': 'wsd', 'optimizer__warmup_share': 0.95},
    ['decay_share is 0.2; with 11 steps of warm-up'],
  ),
  (
    'yq_lsa',
    {'optimizer__schedule': 'constant', 'optimizer__final_share': 0.1},
    ['final_share is 0.1; it must be 0'],
  ),
  # Fields that nothing uses.
  *[
    (
      'yq_lsa',
      {'optimizer__schedule': schedule, 'optimizer__decay_share': 0.5},
      [
        'config.optimizer.decay_share is 0.5; it must be 0.2, the default, since '
        f"config.optimizer.schedule is '{schedule}'"
      ],
    )
    for schedule in ('cosine', 'linear')
  ],
  (
    'yq_lsa',
    {'curriculum__every': 5},
    ['config.curriculum.every is 5; it must be 2000', 'features, examples and loops'],
  ),
  *[
    (
      'transformer',
      {f'curriculum__{used}': 2, f'curriculum__more_{size}': 3},
      [
        f'config.curriculum.more_{size} is 3',
        f'since config.curriculum.{size} is None',
      ],
    )
    for used, size in [
      ('features', 'examples'),
      ('examples', 'features'),
      ('features', 'loops'),
    ]
  ],
  (
    'yq_lsa',
    {'train__init_from_other': True},
    ['config.train.init_from_other is True; it must be False', 'init_from is None'],
  ),
  (
    'multi_head_lsa',
    {'model__num_heads': 5, 'mesh__model': 2, 'mesh__data': 1, 'mesh__fsdp': True},
    ['the 5 heads', 'divisible by config.mesh.model, which is 2'],
  ),
]


@pytest.mark.parametrize(('model', 'changes', 'said'), _MISTAKES, ids=str)
def test_a_mistake_is_one_line_with_field_value_and_what_is_allowed(
  model, changes, said, unchecked
):
  with refuses(*said):
    validate(small_config(model, **changes))


def test_a_field_that_something_uses_may_have_any_value():
  validate(small_config(optimizer__schedule='wsd', optimizer__decay_share=0.5))
  grown = {'curriculum__features': 1, 'curriculum__more_features': 2}
  validate(small_config('transformer', curriculum__every=5, **grown))


def test_a_curriculum_of_ones_own_uses_no_field_of_the_library_s(register):
  @zoo.register_curriculum('early')
  def early(step):
    return zoo.training.Stage(features=step + 1)

  validate(small_config(curriculum__name='early'))
  with refuses('config.curriculum.every is 5', "'early' is a function of the step"):
    validate(small_config(curriculum__name='early', curriculum__every=5))


@pytest.mark.slow
def test_a_default_that_json_cannot_hold_stays_with_its_class(register, tmp_path):
  class Own(nnx.Module):
    def __init__(
      self,
      num_features,
      act=nnx.relu,
      limit: float = math.inf,
      options={'a.b': 1},  # noqa: B006
      size=2,
      *,
      rngs,
    ):
      self.out = nnx.Linear(num_features, 1, rngs=rngs)
      self.act, self.limit = act, limit

    def __call__(self, prompt):
      return jnp.minimum(self.act(self.out(prompt.x_query))[:, 0], self.limit)

  zoo.register_model('own')(Own)
  config = small_config('yq_lsa', model=zoo.default_config('own').model)
  own = {'act': None, 'limit': None, 'options': None}
  assert config.model.to_dict() == {'name': 'own', 'size': 2} | own
  assert zoo.train(config, tmp_path) is not None
  model: Any = zoo.load(tmp_path).model
  assert (model.act, model.limit) == (nnx.relu, math.inf)
  config.model.limit = 3.0
  assert zoo.train(config, tmp_path / 'limited') is not None
  limited: Any = zoo.load(tmp_path / 'limited').model
  assert limited.limit == 3.0


def test_a_value_that_json_cannot_hold_is_refused(register):
  class Own(nnx.Module):
    def __init__(self, num_features, limit: float = math.inf, *, rngs):
      self.out, self.limit = nnx.Linear(num_features, 1, rngs=rngs), limit

    def __call__(self, prompt):
      return jnp.minimum(self.out(prompt.x_query)[:, 0], self.limit)

  zoo.register_model('own')(Own)
  config = small_config('yq_lsa', model=zoo.default_config('own').model)
  for value, said in (nnx.relu, '<jax'), (math.inf, 'inf'):
    config.model = {'name': 'own', 'limit': value}
    with refuses(f'config.model.limit is {said}', 'which config.json cannot hold'):
      validate(config)


def test_an_argument_called_name_is_refused(register):
  class Own(nnx.Module):
    def __init__(self, num_features, name='own', *, rngs):
      self.out = nnx.Linear(num_features, 1, rngs=rngs)

  with refuses("the model 'own' takes an argument called name; rename it"):
    zoo.register_model('own')(Own)


def test_a_metric_is_named_once(register):
  @zoo.register_metric('size')
  def size(model, task, key):
    return {'of it': 1.0}

  with refuses("config.eval.metrics is ('size', 'size'); it must name 'size' only"):
    validate(small_config(eval__metrics=('size', 'size')))


@pytest.mark.parametrize(
  'make',
  [
    lambda: optax.sgd(0.1),
    lambda rate, decay: optax.sgd(rate),
    lambda rate, beta1: optax.sgd(rate, beta1),  # A field that is None is not given.
    lambda rate, *, own: optax.sgd(rate),
  ],
)
def test_a_maker_of_optimizers_takes_the_arguments_that_it_is_given(make, register):
  wanted = 'it must take the arguments (learning_rate); others than decayed, hidden, '
  with refuses("the optimizer 'own' takes (", wanted):
    zoo.register_optimizer('own')(make)


def test_a_maker_of_optimizers_may_take_masks_and_defaults(register):
  @zoo.register_optimizer('own')
  def own(rate, beta1=0.9, *, decayed, hidden, scaled):
    return optax.sgd(rate, beta1)

  @zoo.register_optimizer('own')
  def other(rate, **options):
    return optax.sgd(rate)


def test_what_a_maker_returns_must_be_an_optimizer(register, tmp_path):
  zoo.register_optimizer('own')(lambda rate: 0.1)
  with refuses("the optimizer 'own' returns 0.1; it must return an optax.Gradient"):
    zoo.train(small_config(optimizer__name='own'), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_several_processes_must_use_all_their_devices(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 4)
  validate(small_config(mesh__data=8))
  with refuses('data 3 × model 2', 'leaves out 2 of 8 devices', 'several processes'):
    validate(small_config(mesh__data=3, mesh__model=2))


def test_processes_wait_for_one_another_as_long_as_jax_does():
  """A machine that is suspended for some seconds does not end the others."""
  arguments = inspect.signature(jax.distributed.initialize).parameters
  mesh = small_config().mesh
  assert mesh.heartbeat_timeout == arguments['heartbeat_timeout_seconds'].default
  assert mesh.start_timeout == arguments['initialization_timeout'].default


def test_a_field_that_a_saved_config_lacks_is_a_difference():
  saved = json.loads(to_json(small_config()))
  del saved['mesh']['start_timeout']  # It may change, but it may not be missing.
  assert differences(saved, to_content(small_config())) == [
    "mesh.start_timeout ('absent' there, 300 here)"
  ]


def test_a_field_that_is_missing_has_its_default():
  config = small_config()
  with config.unlocked():
    del config.train.num_parts, config.mesh
  assert validate(config) == validate(small_config(mesh__data=-1))


def test_a_config_names_a_model_and_a_task():
  config = small_config()
  with config.unlocked():
    del config.task.name
  with refuses("no field 'task.name'"):
    validate(config)


def test_the_exact_objective_is_refused_for_a_model_without_a_learning_rule(
  register,
):
  class WithoutRule(zoo.models.TokenModel):
    def __init__(self, num_features, num_heads, init_scale, *, rngs):
      super().__init__(num_features, rngs=rngs)

    def body(self, tokens, at):
      return tokens[:, at, :1]

  register('without_rule')(WithoutRule)
  config = small_config(objective__name='exact')
  validate(config)
  config.model.name = 'without_rule'
  with refuses("config.objective.name is 'exact'", "'sampled' for 'without_rule'"):
    validate(config)


def test_minus_one_takes_all_devices_that_are_left():
  assert mesh_shape(read(small_config(mesh__data=-1))) == (8, 1)
  assert mesh_shape(read(small_config(mesh__data=-1, mesh__model=2))) == (4, 2)
  with refuses('16 devices'):
    mesh_shape(read(small_config(mesh__data=-1, mesh__model=16)))


def test_differences_name_fields_and_both_values_and_leave_out_the_mesh():
  saved = json.loads(to_json(small_config()))
  assert differences(saved, to_content(small_config(mesh__data=2))) == []
  assert (
    differences(saved, to_content(small_config(checkpoint__every_minutes=3.0))) == []
  )
  changed = small_config(seed=3, task__prior_mean=(1.0, 2.0, 3.0))
  assert differences(saved, to_content(changed)) == [
    'seed (0 there, 3 here)',
    'task.prior_mean (2.0 there, [1.0, 2.0, 3.0] here)',
  ]
  # The digest tells which weights a run starts from, wherever they lie.
  fields = {'train__init_from_step': 4, 'train__init_from_digest': 16 * 'a'}
  saved = json.loads(to_json(small_config(train__init_from='/a', **fields)))
  assert (
    differences(saved, to_content(small_config(train__init_from='/b', **fields))) == []
  )
  fields['train__init_from_digest'] = 16 * 'b'
  assert (
    len(differences(saved, to_content(small_config(train__init_from='/b', **fields))))
    == 2
  )
