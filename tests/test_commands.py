"""The page of the commands: it is current, and what it says of flags is whole."""

import re

import pytest

from launch.__main__ import COMMANDS
from tests import pages
from tests.launch.processes import ROOT


@pytest.fixture(scope='module')
def commands():
  """The module that writes the page."""
  return pages.module('commands')


@pytest.fixture(scope='module')
def flags_of(commands):
  """The flags of each command, by name."""
  return {name: commands.flags_of(name) for name in COMMANDS}


def test_the_page_of_commands_is_current(commands):
  written = (ROOT / 'docs' / 'commands.md').read_text(encoding='utf-8')
  assert commands.page() == written, 'run python docs/commands.py'


def test_each_command_has_a_section(commands):
  assert sorted(commands.SECTIONS) == sorted(COMMANDS)


def test_the_help_of_a_flag_is_whole_sentences_and_ends_with_the_default(flags_of):
  for name, found in flags_of.items():
    for flag in found.values():
      text = re.sub(r'^<.*?>: |;$', '', flag.help.partition('\n')[0])
      assert re.match('[A-Z`].*[.…]$', text), f'{name} --{flag.name}: {text}'
      meaning, _, default = text.partition(' Default: ')
      assert meaning.endswith(('.', '…')), f'{name} --{flag.name}'
      assert '. ' not in default, f'{name} --{flag.name}'


def test_texts_of_flags_name_flags_that_exist(commands, flags_of):
  known = {f'{name}.{flag}' for name, found in flags_of.items() for flag in found}
  known |= {name.partition('.')[2] for name in known}
  assert known >= {*commands.MAY_BE}
  assert known >= {*commands.DEFAULTS}


def test_examples_have_flags_of_their_command(commands, flags_of):
  for name, section in commands.SECTIONS.items():
    (line, *_) = [
      part
      for part in section.example.replace('\\\n', '').splitlines()
      if 'launch' in part
    ]
    assert line.startswith(f'python -m launch.{name}')
    given = re.findall(r'--(\w+)', section.example.partition('-m launch')[2])
    assert {*given} <= {*flags_of[name]}, name
