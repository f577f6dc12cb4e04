"""The list of fields: what is read from it, and how it says what a field may be."""

import re

import pytest

from configs import common
from launch import config_flag
from tests import pages
from tests.compare import refuses
from tests.launch.processes import ROOT
from zoo.config.fields import (
  FIELDS,
  FORMER_FIELDS,
  Count,
  Number,
  OneOf,
  Registered,
  Truth,
  check_field,
  may_change,
)


def test_a_config_has_the_fields_of_the_list_with_their_defaults():
  config = common.get_config()
  names = ['seed']
  for section in {*config.keys()} - {'seed'}:
    names += [f'{section}.{field}' for field in config[section]]
  assert sorted(names) == sorted(FIELDS)
  for name, field in FIELDS.items():
    section, _, key = name.rpartition('.')
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


def test_the_comment_of_a_field_is_whole_sentences_and_says_what_none_means():
  for name, field in FIELDS.items():
    assert re.match('[A-Z`]', field.comment), name
    assert field.comment.endswith('.'), name
    assert '|' not in field.comment, name  # it is a cell of a table
    if field.default is None:
      assert re.search(r'\. None \w+', field.comment), name


def test_a_field_may_be_none_if_that_is_its_default():
  for name, field in FIELDS.items():
    if field.default is None:
      check_field(name, None)
  with refuses('config.train.num_steps is None'):
    check_field('train.num_steps', None)


def test_a_check_says_in_words_what_it_allows():
  assert Number(above=0.0, maximum=1.0).words() == 'a number > 0 and ≤ 1'
  assert Count(0).words() == 'an integer ≥ 0'
  assert OneOf(('a', 'b')).words() == '`a`, `b`'
  assert Registered({'a': 1}).words() == '`a`, or one of your own'
  assert Truth().words() == '`True` or `False`'


def test_more_steps_allow_more_changes_and_former_fields_are_always_free():
  assert may_change(more_steps=True) - may_change(more_steps=False) == {
    'optimizer.warmup_steps',
    'train.num_steps',
  }
  assert {*FORMER_FIELDS} <= may_change(more_steps=False)
  assert not {*FORMER_FIELDS} & FIELDS.keys()


def test_the_page_of_fields_is_current():
  page = pages.module('fields').page()
  written = (ROOT / 'docs' / 'fields.md').read_text(encoding='utf-8')
  assert page == written, 'run python docs/fields.py'


def test_the_help_of_the_config_flag_lists_each_field_with_its_comment():
  said = config_flag.help_of(FIELDS)
  for name, field in FIELDS.items():
    assert f'\n--config.{name}: {field.comment}' in said
