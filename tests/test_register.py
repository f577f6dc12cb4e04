"""Words that claim a proof stand only where docs/register.toml has what they claim."""

import ast
import fnmatch
import pydoc
import re
import runpy
import tomllib
from collections.abc import Iterator
from typing import Any

from tests.launch.processes import ROOT

_RESERVED = re.compile(r'\b(?:proved|exact|infimum|optimum|optimal)\b')
_SURE = 'proved', 'certified numerically'  # what may be claimed in these words


def _register() -> dict[str, list[dict[str, Any]]]:
  return tomllib.loads((ROOT / 'docs' / 'register.toml').read_text(encoding='utf-8'))


def _plain(text: str) -> str:
  """Prose on one line, in lower case: without code, addresses of links and letters."""
  text = re.sub(r'```.*?```', ' ', text, flags=re.DOTALL)
  text = re.sub(r'`[^`]*`', '`', text)
  text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', text)
  return ' '.join(text.replace('**', '').split()).lower()


def _texts() -> Iterator[tuple[str, str]]:
  """Documents and cards, and the docstrings, captions and labels of the library."""
  pages = '*.md', 'docs/*.md', 'studies/*/*.md', 'checkpoints/*.md'
  for pattern in *pages, 'checkpoints/*/card.json':
    for path in ROOT.glob(pattern):
      if path.name not in ('CHANGELOG.md', 'how_sure.md'):
        yield str(path.relative_to(ROOT)), _plain(path.read_text(encoding='utf-8'))
  for pattern in 'zoo/**/*.py', 'studies/**/*.py', 'launch/*.py', 'configs/*.py':
    for path in ROOT.glob(pattern):
      program = path.read_text(encoding='utf-8')
      if not _RESERVED.search(program.lower()):
        continue
      for node in ast.walk(ast.parse(program)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
          continue
        if _RESERVED.search(node.value.lower()):
          yield str(path.relative_to(ROOT)), _plain(node.value)


def _covered(text: str, phrase: str, match: re.Match[str]) -> bool:
  """Whether a phrase stands around a word that was found."""
  start = max(0, match.end() - len(phrase))
  return phrase in text[start : match.start() + len(phrase)]


def test_reserved_words_stand_where_the_register_has_them():
  toml = _register()
  entries = [entry for entry in toml['statement'] if 'phrases' in entry] + toml['words']
  used = {phrase: False for entry in entries for phrase in entry['phrases']}
  unknown = []
  for path, text in _texts():
    allowed = [
      phrase
      for entry in entries
      if any(fnmatch.fnmatch(path, pattern) for pattern in entry.get('where', ['*']))
      for phrase in entry['phrases']
    ]
    for match in _RESERVED.finditer(text):
      around = [phrase for phrase in allowed if _covered(text, phrase, match)]
      used |= dict.fromkeys(around, True)
      if not around and text != match[0]:  # a name of a config, a column or a claim
        unknown.append((path, text[max(0, match.start() - 40) : match.end() + 30]))
  assert not unknown
  assert all(used.values()), [phrase for phrase, seen in used.items() if not seen]


def test_statements_have_a_place_where_they_can_be_checked():
  names = set()
  for entry in _register()['statement']:
    assert entry['status'] in _SURE or 'phrases' not in entry, entry['says']
    page, _, heading = entry['page'].partition('#')
    text = (ROOT / 'docs' / page).read_text(encoding='utf-8')
    titles = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
    anchors = [
      re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles
    ]
    assert not heading or heading in anchors, entry['page']
    assert 'code' not in entry or pydoc.locate(entry['code']), entry['code']
    assert 'test' not in entry or (ROOT / entry['test']).exists(), entry['test']
    names.add(entry['says'])
  assert len(names) == len(_register()['statement'])


def test_the_page_is_made_from_the_register():
  page = runpy.run_path(str(ROOT / 'docs' / 'how_sure.py'))['page']
  written = (ROOT / 'docs' / 'how_sure.md').read_text(encoding='utf-8')
  assert page() == written, 'run python docs/how_sure.py'
