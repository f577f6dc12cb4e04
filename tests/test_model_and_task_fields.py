"""The page of the fields of models, mixers and tasks: it is current and whole."""

import importlib
import pkgutil
import re

import pytest

import zoo
from tests import pages
from tests.launch.processes import ROOT
from zoo.config.defaults import FROM_THE_TASK, model_section, task_section
from zoo.core.registry import MIXERS, MODELS, TASKS, parameters


@pytest.fixture(scope='module')
def writer():
  """The module that writes the page."""
  return pages.module('model_and_task_fields')


@pytest.fixture(scope='module')
def page():
  """The page."""
  return (ROOT / 'docs' / 'model_and_task_fields.md').read_text(encoding='utf-8')


def rows_on(page, kind, name):
  """The cells of each row of a section, by the field."""
  section = page.partition(f'\n### {kind} `{name}`\n')[2]
  section = re.split(r'^##', section, flags=re.MULTILINE)[0]
  rows = re.findall(r'^\| `(\w+)` \| (.*?) \| (.*) \|$', section, re.MULTILINE)
  assert len(rows) == max(0, section.count('\n| ') - 1), (kind, name)
  return {field: (default, meaning) for field, default, meaning in rows}


def all_rows(writer, page):
  """Each field with its cells, and with the default of the class if it has one."""
  for kind, classes in ('Model', MODELS), ('Mixer', MIXERS), ('Task', TASKS):
    for name in writer.names(kind.lower()):
      known = parameters(classes[name])
      for field, cells in rows_on(page, kind, name).items():
        yield f'{kind} {name}.{field}', known.get(field), *cells


def test_the_page_of_the_fields_of_models_and_tasks_is_current(writer, page):
  assert writer.page() == page, 'run python docs/model_and_task_fields.py'


def test_every_model_mixer_and_task_of_the_library_has_a_section(writer, page):
  sections = re.findall(r'^### (\w+) `(\w+)`\n\n(.+)$', page, re.MULTILINE)
  expected = [
    (kind.capitalize(), name)
    for kind in ('model', 'mixer', 'task')
    for name in writer.names(kind)
  ]
  assert [(kind, name) for kind, name, _ in sections] == expected
  assert {*writer.names('model')} <= {*zoo.list_models()}
  assert {'transformer', 'yq_lsa'} <= {*writer.names('model')}
  for kind, name, text in sections:
    (place,) = re.findall(r'^\w.*\. The class is `(zoo\.\w+\.\w+)`\.', text)
    classes = {'Model': MODELS, 'Mixer': MIXERS, 'Task': TASKS}[kind]
    assert pkgutil.resolve_name(place) is classes[name]


def test_every_field_is_on_the_page(writer, page):
  for name in writer.names('model'):
    fields = {*parameters(MODELS[name])} - {'rngs'}
    assert rows_on(page, 'Model', name).keys() == fields
    # All that a config may set, and what it takes from its task.
    assert fields - {*FROM_THE_TASK} == {*model_section(name)} - {'name'}
  for name in writer.names('mixer'):
    fields = {*parameters(MIXERS[name])} - {'slot', 'rngs'}
    assert rows_on(page, 'Mixer', name).keys() == fields
  for name in writer.names('task'):
    fields = {*parameters(TASKS[name]), *task_section(name)} - {'name'}
    assert rows_on(page, 'Task', name).keys() == fields


def test_every_field_has_a_meaning_in_the_docstring_of_its_class(writer, page):
  for place, _, default, meaning in all_rows(writer, page):
    assert default, place
    assert re.match(r"[A-Zβg`']", meaning), f'{place}: {meaning!r}'
    assert meaning.endswith('.'), f'{place}: {meaning!r}'
    assert '|' not in meaning, place  # it is a cell of a table


def test_docstrings_have_the_defaults_of_the_code(writer, page):
  for place, parameter, _, meaning in all_rows(writer, page):
    # Others are cut from the page, since they are in the column of defaults.
    assert 'by default' not in meaning, f'{place}: {meaning!r}'
    for said in re.findall(r"'(\w+)' \(the default\)", meaning):
      assert parameter is not None, place
      assert parameter.default == said, place


def test_the_config_file_of_a_model_has_the_defaults_of_the_page(writer):
  for name in writer.names('model'):
    section = importlib.import_module(f'configs.{name}').get_config().model
    known = parameters(MODELS[name])
    for field, held in section.to_dict().items():
      if field == 'name':
        continue
      default = known[field].default
      if default is known[field].empty:
        shown = {row.field: row.default for row in writer.rows_of_model(name)}[field]
        assert shown == f'must be given; `{held!r}` in `configs/{name}.py`'
      else:
        assert held == default or (held == {} and default is None), field


def test_a_field_without_an_entry_in_its_docstring_has_no_meaning(writer):
  def taken(width: int = 3, depth: float = 0.5):
    """Does something.

    Args:
      width: Number of entries, ≥ 1; 3
        by default.

    Returns:
      depth: This is another section.
    """

  assert writer.arguments_of(taken) == {
    'width': 'Number of entries, ≥ 1; 3 by default.'
  }
  assert writer._rows(taken) == [
    ('width', '`3`', 'Number of entries, ≥ 1.'),
    ('depth', '`0.5`', ''),
  ]


def test_the_code_of_the_page_prints_what_it_says(page, capsys):
  ((code, said),) = re.findall(r'```python\n(.*?)```\n\n```\n(.*?)```', page, re.DOTALL)
  exec(compile(code, 'model_and_task_fields.md', 'exec'), {})
  assert capsys.readouterr().out == said
