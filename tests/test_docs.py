"""What the documents tell people to type does what they say."""

import ast
import contextlib
import io
import json
import pathlib
import pprint
import re
import shutil
import subprocess
import sys
from unittest import mock

import pytest
import safetensors.numpy
from matplotlib.figure import Figure

import zoo
from tests.launch.processes import ROOT, launch, run
from tests.marks import FULL, mostly_full
from tests.training.runs import assert_same_bits, saved_arrays

PAGES = [*ROOT.glob('docs/*.md'), *ROOT.glob('studies/*/*.md')]


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_the_code_of_the_readme_prints_what_it_says(monkeypatch, capsys, unchecked):
  text = (ROOT / 'README.md').read_text()
  ((code, said),) = re.findall(r'```python\n(.*?)```\n\n```\n(.*?)```', text, re.DOTALL)
  monkeypatch.chdir(ROOT)
  exec(compile(code, 'README.md', 'exec'), {})
  assert capsys.readouterr().out == said


# Pages for readers who know another library. Each program is followed by its output.
_COMING_FROM = 'from_pytorch', 'from_garg', 'from_transformerlens'
# The blocks of these pages are one program.
_ONE_PROGRAM = ('from_transformerlens',)


def blocks_of(page: str) -> list[tuple[str, str]]:
  """The blocks of code of a page, each with the output that follows it."""
  text = (ROOT / 'docs' / f'{page}.md').read_text()
  return re.findall(r'```python\n((?:(?!```).)*)```\n\n```\n(.*?)```', text, re.DOTALL)


def programs_of(page: str) -> list[tuple[str, str]]:
  """The programs of a page, each with its output."""
  blocks = blocks_of(page)
  if page not in _ONE_PROGRAM:
    return blocks
  codes, outputs = zip(*blocks, strict=True)
  return [('\n'.join(codes), ''.join(outputs))]


def files_of(page: str) -> list[tuple[str, str]]:
  """The files that a page tells people to write, by name."""
  text = (ROOT / 'docs' / f'{page}.md').read_text()
  return re.findall(r'`(\w+)\.py`\n\n```python\n(.*?)```', text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs', 'unchecked', 'register')
@pytest.mark.parametrize(
  ('page', 'number'),
  mostly_full(
    [('from_pytorch', 0)],
    [
      (page, number)
      for page in _COMING_FROM
      for number in range(len(programs_of(page)))
    ],
  ),
)
def test_a_program_of_a_page_of_coming_from_prints_what_it_says(
  page, number, tmp_path, monkeypatch, capsys
):
  code, said = programs_of(page)[number]
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  for name, text in files_of(page):
    (tmp_path / f'{name}.py').write_text(text)
    sys.modules.pop(name, None)  # it registers when it is imported
  exec(compile(code, f'{page}.md', 'exec'), {})
  assert_same_but_for_rounding(capsys.readouterr().out, said)


@pytest.mark.slow
def test_the_code_of_the_page_of_distributions_prints_what_it_says(capsys, unchecked):
  text = (ROOT / 'docs' / 'distributions.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```\n\n```\n(.*?)```', text, re.DOTALL)
  assert len(blocks) == text.count('```python') == 2
  for code, said in blocks:
    exec(compile(code, 'distributions.md', 'exec'), {})
    assert_same_but_for_rounding(capsys.readouterr().out, said)


# Building the site writes them, so that they are not in a checkout.
_WRITTEN = {
  *('commands.md', 'fields.md', 'instruments.md'),
  *('model_and_task_fields.md', 'parameters.md'),
}


def test_links_in_documents_lead_somewhere():
  for document in [*ROOT.glob('*.md'), *PAGES]:
    for target in re.findall(r'\]\(([^)#]+)', document.read_text()):
      if '://' not in target and pathlib.Path(target).name not in _WRITTEN:
        assert (document.parent / target).exists(), (document.name, target)


@pytest.mark.slow
def test_names_of_zoo_in_documents_are_its_attributes():
  """In a process of its own, where tests have imported no more than is said here."""
  names = set()
  for document in {ROOT / 'README.md', *PAGES}:
    text = re.sub(r'(import|from) zoo\S*', '', document.read_text())
    names |= {*re.findall(r'(?<![\w/])zoo(?:\.[A-Za-z_]\w*)+', text)}
  assert 'zoo.theory.exact_risk' in names
  code = f"""
import functools, zoo
import zoo.reports.probe
for name in {sorted(names)}:
  try:
    functools.reduce(getattr, name.split('.')[1:], zoo)
  except AttributeError as error:
    print(name, error)
"""
  process = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert (process.stdout, process.returncode) == ('', 0), process.stderr


@pytest.mark.slow
def test_a_model_is_exported_as_the_page_says(tmp_path, monkeypatch, unchecked):
  text = (ROOT / 'docs' / 'export.md').read_text()
  (code,) = re.findall(r'```python\n([^`]*zoo\.export\(saved[^`]*)```', text)
  # It compiles the model; tests/checkpoints/test_saving.py shows that it is done.
  name = 'zoo.storage.saving._check_predicts_the_same'
  monkeypatch.setattr(name, lambda *arguments: None)
  monkeypatch.chdir(tmp_path)
  exec(compile(code, 'export.md', 'exec'), {})
  (named,) = re.findall(r'such as `(layers[^`]+)`', text)
  assert named in safetensors.numpy.load_file('model.safetensors')
  assert [path.name for path in tmp_path.iterdir()] == ['model.safetensors']
  ignored = subprocess.run(
    ['git', 'check-ignore', 'model.safetensors'], cwd=ROOT, check=False
  )
  assert ignored.returncode in (0, 128)  # 128: this is no clone


@pytest.mark.slow
def test_a_model_goes_to_the_hub_and_back_as_the_page_says(
  tmp_path, monkeypatch, capsys, unchecked
):
  hub = pytest.importorskip('huggingface_hub')
  text = (ROOT / 'docs' / 'export.md').read_text()
  (code,) = re.findall(r'```python\n([^`]*huggingface_hub[^`]*)```', text)

  def upload(**arguments):
    shutil.copytree(arguments['folder_path'], tmp_path / arguments['repo_id'])

  for name, replacement in {
    'create_repo': lambda name, exist_ok: None,
    'upload_folder': upload,
    'snapshot_download': lambda name: tmp_path / name,
  }.items():
    fake = mock.create_autospec(getattr(hub, name), side_effect=replacement)
    monkeypatch.setattr(hub, name, fake)
  monkeypatch.chdir(tmp_path)
  exec(compile(code, 'export.md', 'exec'), {})
  assert capsys.readouterr().out.startswith('SavedModel(model=Transformer(…)')


@pytest.mark.full
@pytest.mark.slow
def test_the_code_on_probing_prints_what_it_says(
  tmp_path, monkeypatch, capsys, unchecked
):
  text = (ROOT / 'docs' / 'probing.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```(?:\n\n```\n(.*?)```)?', text, re.DOTALL)
  assert len(blocks) == 4
  monkeypatch.chdir(tmp_path)
  for code, said in blocks:
    exec(compile(code, 'probing.md', 'exec'), {})
    printed = capsys.readouterr().out
    assert printed if 'print' in code else not printed
    if said:
      assert_same_but_for_rounding(printed, said)


@pytest.mark.parametrize(
  ('name', 'number'),
  [
    pytest.param('tasks.md', 1, marks=pytest.mark.slow),
    pytest.param('inside.md', 1, marks=FULL),
    pytest.param('sites.md', 3, marks=FULL),
    pytest.param('layers.md', 1, marks=FULL),
    pytest.param('unexplained.md', 1, marks=FULL),
    pytest.param('tabular.md', 2, marks=FULL),
  ],
)
def test_the_code_of_a_page_prints_what_it_says(
  name, number, monkeypatch, capsys, unchecked
):
  text = (ROOT / 'docs' / name).read_text()
  pattern = r'```python\n((?:(?!```).)*)```\n\n```\n([^…]*?)```'
  blocks = re.findall(pattern, text, re.DOTALL)
  assert len(blocks) == number
  monkeypatch.chdir(ROOT)
  for code, said in blocks:
    exec(compile(code, name, 'exec'), {})
    assert_same_but_for_rounding(capsys.readouterr().out, said)


@pytest.mark.parametrize(
  ('name', 'num_pictures'),
  [
    pytest.param('probing_by_example.ipynb', 2, marks=FULL),
    pytest.param('inside_by_example.ipynb', 3, marks=FULL),
    pytest.param('dynamics_by_example.ipynb', 2, marks=FULL),
    pytest.param('your_task.ipynb', 2, marks=FULL),
    pytest.param('theory_by_example.ipynb', 4, marks=FULL),
  ],
)
def test_a_notebook_runs_and_says_what_is_stored_in_it(
  name, num_pictures, monkeypatch, unchecked, register, promotion_that_optax_needs
):
  notebook = ROOT / 'docs' / name
  assert notebook.stat().st_size < 200_000
  of_a_machine = r'/(root|home|tmp|work|Users)/|Traceback'
  assert not re.search(of_a_machine, notebook.read_text())
  monkeypatch.chdir(notebook.parent)
  variables: dict[str, object] = {}
  pictures = 0
  for cell in json.loads(notebook.read_text())['cells']:
    if cell['cell_type'] != 'code':
      continue
    lines = ''.join(cell['source']).splitlines()
    tree = ast.parse('\n'.join(line for line in lines if not line.startswith('%')))
    shown = None
    with contextlib.redirect_stdout(io.StringIO()) as said:
      if isinstance(last := tree.body[-1], ast.Expr):
        tree.body.pop()
      exec(compile(tree, name, 'exec'), variables)
      if isinstance(last, ast.Expr):
        ending = compile(ast.Expression(last.value), name, 'eval')
        shown = eval(ending, variables)
    text = ''
    for output in cell['outputs']:
      text += ''.join(output.get('text', ''))
      if 'image/png' in output.get('data', {}):
        assert isinstance(shown, Figure)
        pictures += 1
      elif output['output_type'] == 'execute_result':
        assert ''.join(output['data']['text/plain']) == pprint.pformat(shown)
    assert_same_but_for_rounding(said.getvalue(), text)
  assert pictures == num_pictures


def assert_same_but_for_rounding(page: str, expected: str) -> None:
  """The same words, and numbers that differ in the last of four digits at most."""
  number = r'-?\d+\.\d*'
  assert re.sub(number, '#', page) == re.sub(number, '#', expected)
  for left, right in zip(
    re.findall(number, page), re.findall(number, expected), strict=True
  ):
    digits = len(right.partition('.')[2])
    assert abs(float(left) - float(right)) < 1.5 * 10.0**-digits


_OWN_CLASSES = 'your_model', 'task_interface'


@pytest.fixture
def outside(tmp_path):
  """A folder with the files of the pages on a model and a task of one's own."""
  files = [file for page in _OWN_CLASSES for file in files_of(page)]
  names = 'own_lstm', 'own_loop', 'own_lstm_config', 'my_tasks'
  assert tuple(name for name, _ in files) == names
  for name, code in files:
    (tmp_path / f'{name}.py').write_text(code)
  return tmp_path


@pytest.mark.slow
@pytest.mark.full
def test_mixers_of_ones_own_keep_the_contract(register, unchecked):
  text = (ROOT / 'docs' / 'mixers.md').read_text()
  programs = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  assert len(programs) == 2
  for code in programs:
    assert 'zoo.check_model' in code
    exec(compile(code, 'mixers.md', 'exec'), {})
  listed = re.findall(r'^\| `(\w+)` \|', text.partition('## Options')[0], re.MULTILINE)
  assert sorted([*listed, 'moving_average', 'forgetting']) == zoo.list_mixers()


@pytest.mark.slow
@pytest.mark.full
def test_an_architecture_outside_the_package_trains_and_resumes(outside, cache):
  arguments = ('--config=own_lstm_config.py:smoke',)
  answer = launch(*arguments, cache=cache, cwd=outside)
  assert answer.returncode == 0, answer.stderr
  assert re.search(r'own_lstm +\d+\.\d+ ± \d+\.\d+ +\d+\.\d+ +-\n', answer.stdout)
  workdir = outside / 'checkpoints' / 'runs' / 'own_lstm_config-smoke'
  whole = saved_arrays(workdir, 20)
  # As if it had been killed behind its first checkpoint.
  shutil.rmtree(workdir / 'checkpoints' / '20')
  (workdir / 'summary.json').unlink()
  again = launch(*arguments, cache=cache, cwd=outside)
  assert again.returncode == 0, again.stderr
  assert 'resuming at step 10 of 20' in again.stderr
  assert_same_bits(saved_arrays(workdir, 20), whole)


@pytest.mark.slow
@pytest.mark.full
def test_a_task_outside_the_package_trains(outside, cache):
  arguments = (
    '--import=my_tasks',
    '--config=configs/yq_lsa.py:smoke,task=projected_sine',
  )
  answer = launch(*arguments, cache=cache, cwd=outside)
  assert answer.returncode == 0, answer.stderr
  assert 'nearest_neighbours' in answer.stdout


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
  ('page', 'number'), [('model_interface', 1), ('task_interface', 2)]
)
def test_programs_of_the_pages_on_own_classes_print_what_they_say(
  page, number, outside, cache
):
  blocks = blocks_of(page)
  assert len(blocks) == number
  for code, said in blocks:
    (outside / 'program.py').write_text(code)
    words = [sys.executable, 'program.py']
    done = run(words, cache, outside, PYTHONPATH=f'{ROOT}:{outside}')
    assert done.returncode == 0, done.stderr
    assert_same_but_for_rounding(done.stdout, said)
