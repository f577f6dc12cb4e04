"""The documentation site: all public names, no broken link, readable on a phone."""

import importlib.util
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
import types
from typing import Any

import pytest

import zoo
from tests.launch.processes import ROOT, bound, environment
from tests.marks import mostly_full
from tests.paper.browser import CHROMIUM, opened
from tests.test_docstrings import public_names

DOCS = ROOT / 'docs'


def test_every_page_is_in_the_table_of_contents():
  text = (DOCS / 'index.md').read_text()
  parts = re.findall(r'{toctree}\n(.*?)```', text, re.DOTALL)
  listed = re.findall(r'^(?:.* <)?([\w/]+)>?$', '\n'.join(parts), re.MULTILINE)
  pages = [path.stem for path in (*DOCS.glob('*.md'), *DOCS.glob('*.ipynb'))]
  assert len({*pages}) == len(pages)  # else a link to one may lead to the other
  assert {*listed, 'index'} == {*pages, 'generated/api/index'}


def test_the_gallery_has_each_picture_with_what_made_it():
  parts = (DOCS / 'gallery.md').read_text().split('\n## ')[1:]
  shown = [name for part in parts for name in re.findall(r'images/(\w+\.png)', part)]
  assert sorted(shown) == sorted(path.name for path in (DOCS / 'images').iterdir())
  assert all('```sh' in part or 'has the code' in part for part in parts)


_PAGES = [
  'start',
  'one_model',
  'how_to',
  'train',
  'sweep',
  'plot',
  'own_data',
  'own_parts',
  'export',
  'commands',
]


_MULTI = re.DOTALL | re.MULTILINE


def assert_shows(block, printed):
  """The parts of a block, between lines with …, were printed, up to numbers."""

  def plain(text):
    return ' '.join(re.sub(r'[-+]?\d+(\.\d*)?(e[-+]\d+)?', '#', text).split())

  for part in re.split('^…$', block, flags=re.MULTILINE):
    assert plain(part) in plain(printed), (part, printed)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # two trainings and a probe, with all of XLA's effort
@pytest.mark.parametrize('page', mostly_full(['concepts'], _PAGES))
def test_the_code_on_a_page_runs_as_it_stands(page, tmp_path, cache):
  # `launch.results` reads docs and studies, and `launch.benchmark` needs benchmarks.
  for name in 'checkpoints', 'launch', 'configs', 'docs', 'studies', 'benchmarks':
    (tmp_path / name).symlink_to(ROOT / name)
  variables = environment(cache) | {
    'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
    'PYTHONPATH': str(ROOT),
  }
  text = (DOCS / f'{page}.md').read_text()
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
    printed = done.stdout
    said += printed
  if page == 'start':
    # What the page quotes is what was printed, up to the last digits on other machines.
    assert re.search(r'optimum of the linear family +5\.238095\n', said)
    assert 'Is it doing gradient descent? Yes: one step of size 0.476' in said
    assert 'guess 2.0: 5.2381\nguess 3.0: 5.4342\n' in said
    assert 'Is it doing gradient descent? No: the nearest step, one step of' in said
  if page == 'concepts':
    assert 'ridge   0.164 ± 0.003\nbayes   0.164 ± 0.003\n0.61\n' in said


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


@pytest.fixture(scope='module')
def reference():
  """The functions of docs/ that write the reference."""
  pytest.importorskip('sphinx', reason="the site needs pip install -e '.[docs]'")
  return types.SimpleNamespace(**runpy.run_path(str(DOCS / 'site_reference.py')))


@pytest.mark.slow  # it needs Sphinx
def test_sections_of_a_docstring_are_lists_text_and_code(reference):
  from sphinx.ext.napoleon import Config, GoogleDocstring  # pyright: ignore

  docstring = """Doubles a number.

With a number x it is

    y = 2 x
    z = y

which `double` returns.

Args:
  number: What is doubled, such as the risk
    of a model.

Returns:
  Twice the number: its
  double.

Raises:
  UserError: If it is no number.

Example:
  >>> double(2)
  4

References:
  Anonymous, arXiv 2512.04268."""
  settings = runpy.run_path(str(DOCS / 'conf.py'))
  options = {name: settings[name] for name in settings if name.startswith('napoleon_')}
  lines = reference.prepared(docstring).splitlines()
  config: Any = Config(**options)  # of napoleon, which stands in for that of Sphinx
  text = str(GoogleDocstring(lines, config, what='function'))
  assert [block.strip() for block in text.split('\n\n') if block.strip()] == [
    'Doubles a number.',
    'With a number x it is',
    '::',
    'y = 2 x\n      z = y',
    'which `double` returns.',
    ':param number: What is doubled, such as the risk\n               of a model.',
    ':returns: Twice the number: its\n          double.',
    ':raises UserError: If it is no number.',
    '.. rubric:: Example',
    '>>> double(2)\n4',
    '.. rubric:: References',
    'Anonymous, arXiv 2512.04268.',
  ]


@pytest.mark.slow
def test_sections_formulas_and_examples_are_shown_as_such(site):
  text = (site / 'generated' / 'api' / 'zoo.mixers.html').read_text()
  start = text.index('id="zoo.mixers.SoftmaxAttention"')
  shown = text[start : text.index('<dt class="sig', start + 1)]
  for term in 'Parameters', 'Raises':
    assert re.search(rf'<dt class="field-\w+">{term}<', shown), term
  assert re.search(
    r'<pre>.*o_t = Σ_i .*\n.*y_t = W_o', re.sub(r'<(?!/?pre)[^>]*>', '', shown)
  )
  for rubric in 'Example', 'References':
    assert f'<p class="rubric">{rubric}</p>' in shown
  assert '<span class="gp">&gt;&gt;&gt; </span>' in shown


@pytest.mark.slow  # it needs Sphinx
def test_signatures_have_shapes_and_full_names(reference):
  arguments, result = reference.signature_of(zoo.Prompt.tokens)
  assert arguments == "(guess: Float[Array, ' b *k'])"
  assert result == "Float[Array, 'b t e']"
  arguments, _ = reference.signature_of(zoo.LearningRule.__call__)
  assert arguments == '(prompt: zoo.Prompt)'
  assert 'U: how G moves each weight' in reference.fields_of(zoo.LearningRule)
