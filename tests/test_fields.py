"""The list of fields: what is read from it, and how it says what a field may be."""

import pytest

from configs import common
from launch import config_flag
from zoo.config.read import FIELDS, may_change
from zoo.objectives.functions import OBJECTIVES
from zoo.training.optimizers import OPTIMIZERS


def test_a_config_has_the_fields_of_the_list_with_their_defaults():
  config = common.get_config()
  config.model = {'name': 'lsa'}
  names = ['seed', 'model.name', 'task.name']
  for section in {*config.keys()} - {'seed', 'model', 'task'}:
    names += [f'{section}.{field}' for field in config[section]]
  assert sorted(names) == sorted(FIELDS)
  for name, field in FIELDS.items():
    section, _, key = name.rpartition('.')
    if key == 'name' and section in ('model', 'task'):
      continue
    holder = config[section] if section else config
    held = holder.to_dict()[key]
    assert held == field.default
    assert type(held) is type(field.default)


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    ('objective.min_examples', int),
    ('optimizer.clip_norm', float),
    ('train.init_from', str),
    ('checkpoint.steps', object),
    ('task.prior_mean', object),
  ],
)
def test_a_flag_is_read_as_the_type_of_its_field(name, kind):
  section, _, key = name.rpartition('.')
  assert common.get_config()[section].get_type(key) is kind


def test_more_steps_allow_more_changes():
  assert may_change(more_steps=True) - may_change(more_steps=False) == {
    'optimizer.warmup_steps',
    'train.num_steps',
  }


def test_the_help_of_the_config_flag_lists_each_field_with_its_comment():
  said = config_flag.help_of(FIELDS)
  for name, field in FIELDS.items():
    assert f'\n--config.{name}: {field.description}' in said


def test_descriptions_name_what_is_registered():
  for name, entries in ('optimizer.name', OPTIMIZERS), ('objective.name', OBJECTIVES):
    for entry in entries:
      assert f'`{entry}`' in FIELDS[name].description
