"""The documentation site: all public names, no broken link, readable on a phone."""

import ast
import functools
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import types

import pytest

import zoo
from tests.launch.processes import ROOT, bound, environment
from tests.marks import mostly_full
from tests.paper.browser import CHROMIUM, opened

DOCS = ROOT / 'docs'


def public_names():
  """Each public name with what it is: of `zoo`, of its packages, and of studies."""
  packages = [
    f'zoo.{package.name}'
    for package in pkgutil.iter_modules(zoo.__path__)
    if package.ispkg
  ]
  studies = 'studies', 'studies.atlas', 'studies.llm', 'studies.paper'
  for name in ['zoo', *packages, 'zoo.theory.deep', *studies]:
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


def test_every_public_class_function_and_method_has_a_docstring():
  public = dict(public_names())
  assert len(public) > 150
  for place, value in public.items():
    if not (inspect.isclass(value) or inspect.isroutine(value)):
      continue
    assert inspect.getdoc(value), place
    for name, part in vars(value).items() if inspect.isclass(value) else ():
      kinds = property, functools.cached_property, classmethod, staticmethod
      if not name.startswith('_') and (
        inspect.isfunction(part) or isinstance(part, kinds)
      ):
        assert inspect.getdoc(getattr(value, name)), f'{place}.{name}'


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


@pytest.mark.slow
@pytest.mark.timeout(3600)  # two trainings and a probe, with all of XLA's effort
@pytest.mark.parametrize('page', mostly_full(['concepts'], ['start', 'how_to']))
def test_the_code_on_a_page_runs_as_it_stands(page, tmp_path, cache):
  (tmp_path / 'checkpoints').symlink_to(ROOT / 'checkpoints')
  (tmp_path / 'launch').symlink_to(ROOT / 'launch')
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  variables = environment(cache) | {
    'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
    'PYTHONPATH': str(ROOT),
  }
  blocks = re.findall(
    r'```(sh|python)\n(.*?)```', (DOCS / f'{page}.md').read_text(), re.S
  )
  said = ''
  for language, code in blocks:
    if 'pip install' in code:
      continue  # .ci/run does
    if 'huggingface_hub' in code:
      continue  # tests/test_docs.py runs it without a network
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
  if page == 'start':
    # What the page quotes is what was printed, up to the last digits on other machines.
    assert re.search(r'optimum of the linear family +5\.238095\n', said)
    assert 'Is it doing gradient descent? Yes: one step of size 0.476' in said
    assert 'guess 2.0: 5.2381\nguess 3.0: 5.4342\n' in said
    assert 'Is it doing gradient descent? No: the nearest step, one step of' in said
  if page == 'concepts':
    assert said.startswith('0.61\n')


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  """The site, built by the command of CONTRIBUTING.md with another folder."""
  pytest.importorskip('myst_nb', reason="the site needs pip install 'icl-zoo[docs]'")
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
  pytest.importorskip('sphinx', reason="the site needs pip install 'icl-zoo[docs]'")
  return types.SimpleNamespace(**runpy.run_path(str(DOCS / 'site_reference.py')))


@pytest.mark.slow  # it needs Sphinx
def test_sections_of_a_docstring_are_lists_text_and_code(reference):
  docstring = """Doubles a number.

Args:
  number: What is doubled, such as the risk
    of a model.

Returns:
  Twice the number: its
  double.

Example:
  >>> double(2)
  4

References:
  Anonymous, arXiv 2512.04268."""
  name = r'\\ :code:`number`\\ \\:'.replace(r'\\', chr(92))
  assert reference.markup(docstring).split('\n\n') == [
    'Doubles a number.',
    '**Args**',
    f'- {name} What is doubled, such as the risk of a model.',
    '**Returns**',
    '   Twice the number\\: its double.',
    '**Example**',
    '>>> double(2)\n4',
    '**References**',
    '   Anonymous, arXiv 2512.04268.',
  ]


@pytest.mark.slow  # it needs Sphinx
def test_signatures_have_shapes_and_full_names(reference):
  arguments, result = reference.signature_of(zoo.Prompt.tokens)
  assert arguments == "(guess: Float[Array, ' b *k'])"
  assert result == "Float[Array, 'b t e']"
  arguments, _ = reference.signature_of(zoo.LearningRule.__call__)
  assert arguments == '(prompt: zoo.Prompt)'
  assert 'U: how G moves each weight' in reference.fields_of(zoo.LearningRule)
