"""The documentation site: all public names, no broken link, readable on a phone."""

import ast
import importlib
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import zoo
from tests.launch.processes import ROOT, bound, environment
from tests.marks import mostly_full
from tests.paper.browser import CHROMIUM, opened

DOCS = ROOT / 'docs'


def public_names() -> Iterator[tuple[str, Any]]:
  """Each public name with what it is: of `zoo`, of its packages, and of studies."""
  packages = [
    f'zoo.{package.name}'
    for package in pkgutil.iter_modules(zoo.__path__)
    if package.ispkg
  ]
  studies = 'studies', 'studies.atlas', 'studies.llm', 'studies.paper'
  theory = 'zoo.theory.deep', 'zoo.theory.dynamics'
  for name in ['zoo', *packages, *theory, *studies]:
    module = importlib.import_module(name)
    names = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
      if isinstance(node, ast.ImportFrom):
        names += [alias.asname for alias in node.names if alias.asname == alias.name]
      elif isinstance(node, ast.FunctionDef):
        names.append(node.name)
    names = [public_name for public_name in names if not public_name.startswith('_')]
    for public_name in names:
      if not inspect.ismodule(value := getattr(module, public_name)):
        yield f'{name}.{public_name}', value


_PAGES = [
  'start',
  'garg',
  'your_model',
  'train',
  'sweep',
  'plot',
  'own_data',
  'own_parts',
  'export',
  'commands',
]


# These pages train for minutes. The test trains a variant of seconds, and does not
# compare what it prints.
_TRAINED_SMALL = {'garg': ('transformer.py:garg', 'transformer.py:garg,smoke')}
_MULTI = re.DOTALL | re.MULTILINE


def assert_shows(block, printed):
  """The parts of a block were printed, up to numbers.

  Parts are between lines with …; a … before a path stands for the folder of the test.
  """

  def plain(text):
    return ' '.join(re.sub(r'[-+]?\d+(\.\d*)?(e[-+]\d+)?', '#', text).split())

  for part in re.split('^…$|…(?=/)', block, flags=re.MULTILINE):
    assert plain(part) in plain(printed), (part, printed)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # two trainings and a probe, with all of XLA's effort
@pytest.mark.parametrize('page', mostly_full([], ['concepts', *_PAGES]))
def test_the_code_on_a_page_runs_as_it_stands(page, tmp_path, cache):
  # `launch.results` reads docs and studies, and `launch.benchmark` needs benchmarks.
  for name in 'checkpoints', 'launch', 'configs', 'docs', 'studies', 'benchmarks':
    (tmp_path / name).symlink_to(ROOT / name)
  variables = environment(cache) | {
    'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
    'PYTHONPATH': str(ROOT),
  }
  text = (DOCS / f'{page}.md').read_text()
  if page in _TRAINED_SMALL:
    assert _TRAINED_SMALL[page][0] in text
    text = text.replace(*_TRAINED_SMALL[page])
  # Files that a reader makes: a name in a line of its own, with the content below it.
  for name, content in re.findall(
    r'^`(\w+\.py)`\n\n```python\n(.*?)^```$', text, _MULTI
  ):
    (tmp_path / name).write_text(content)
  blocks = re.findall(r'^```(\w*)\n(.*?)^```$', text, _MULTI)
  said, printed = '', None
  for language, code in blocks:
    if language not in ('sh', 'python'):
      if printed is not None:
        assert_shows(code, printed)
      printed = None  # only the first block behind a program has its output
      continue
    printed = None
    if 'pip install' in code:
      continue  # .ci/run does
    if 'huggingface_hub' in code:
      continue  # tests/test_docs.py runs it without a network
    if 'WandbWriter' in code:
      continue  # tests/training/test_wandb.py runs it without an account
    if 'import torch' in code and importlib.util.find_spec('torch') is None:
      continue
    words = ['bash', '-ec', code] if language == 'sh' else [sys.executable, '-c', code]
    done = subprocess.run(
      bound(words),
      cwd=tmp_path,
      env=variables,
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, (code, done.stderr)
    said += done.stdout
    printed = None if page in _TRAINED_SMALL else done.stdout
  if page == 'start':
    # What the page quotes is what was printed, up to the last digits on other machines.
    assert re.search(r'optimum of the linear family +5\.238095\n', said)
    assert 'Is it doing gradient descent? Yes: one step of size 0.476' in said
    assert 'Is it doing gradient descent? No: the nearest step, one step of' in said
  if page == 'concepts':
    assert 'ridge   0.164 ± 0.003\nbayes   0.164 ± 0.003\n0.61\n' in said
    assert 'guess 2.0: 5.2381\nguess 3.0: 5.4342\n' in said


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  """The site, built by the command of CONTRIBUTING.md with another folder."""
  pytest.importorskip('myst_nb', reason="the site needs pip install -e '.[docs]'")
  text = (ROOT / 'CONTRIBUTING.md').read_text()
  (command,) = re.findall(r'^(sphinx-build .*?)(?:  #.*)?$', text, re.MULTILINE)
  _, *arguments, _ = shlex.split(command)
  assert {'-W', '-n'} <= {*arguments}
  folder = tmp_path_factory.mktemp('site')
  done = subprocess.run(
    [sys.executable, '-m', 'sphinx', '-E', '-q', *arguments, str(folder)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return folder


@pytest.mark.slow
@pytest.mark.full
def test_every_public_name_is_in_the_reference(site):
  from sphinx.util.inventory import InventoryFile  # pyright: ignore

  inventory = InventoryFile.loads((site / 'objects.inv').read_bytes(), uri='')
  known = {name for kind in inventory.data.values() for name in kind}
  missing = [place for place, _ in public_names() if place not in known]
  assert not missing
  assert {'studies.Study', 'studies.CellTable', 'studies.fill'} <= known


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='Chromium is not installed')
def test_every_page_is_whole_and_fits_a_phone(site):
  pages = sorted(site.rglob('*.html'))
  assert len(pages) > 100
  with opened(site.joinpath('index.html').as_uri()) as browser:
    for page in pages:
      browser.events.clear()
      browser.open(page.as_uri())
      for width in 1280, 390:
        browser.resize(width)
        wide = browser.evaluate('document.documentElement.scrollWidth')
        assert wide <= width, (page.name, wide)
      broken = '[...document.images].filter(one => !one.naturalWidth).length'
      assert browser.evaluate(broken) == 0, page.name
      assert not complaints(browser.events), page.name


def complaints(events):
  """What a page has written to the console, thrown, or asked a network for."""
  messages = []
  for event in events:
    match event['method'], event['params']:
      case ('Runtime.exceptionThrown', what) | ('Log.entryAdded', what):
        messages.append(what)
      case 'Runtime.consoleAPICalled', {'type': 'error' | 'warning'} as what:
        messages.append(what)
      case 'Network.requestWillBeSent', {'request': {'url': url}}:
        messages += [] if url.startswith(('file:', 'data:', 'blob:')) else [url]
  return messages
