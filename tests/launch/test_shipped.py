"""What ships is found from any folder: configs, and trained checkpoints."""

import os
import pathlib
import shutil
import sys

import pytest

import launch
import zoo
from launch import config_flag
from tests.compare import refuses
from tests.launch.processes import ROOT, run
from zoo.host import files
from zoo.host.devices import leave_out_pass


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def test_a_file_of_the_folder_comes_first(tmp_path):
  def path_of(argument):
    _, flag = config_flag.with_config_file(['launch.main', f'--config={argument}'])
    return flag.removeprefix('--config=')

  shipped = str(ROOT / 'configs' / 'yq_lsa.py')
  assert path_of('configs/yq_lsa.py') == shipped
  assert path_of('configs/yq_lsa.py:smoke') == f'{shipped}:smoke'
  (tmp_path / 'configs' / 'yq_lsa.py').mkdir(parents=True)  # which is no file
  assert path_of('configs/yq_lsa.py') == shipped
  (tmp_path / 'configs' / 'lsa.py').write_text('')
  assert path_of('configs/lsa.py') == str(pathlib.Path('configs/lsa.py'))


def test_a_checkpoint_is_found_in_the_repository_and_in_the_package(
  tmp_path, monkeypatch
):
  name = 'checkpoints/yq_lsa'
  assert zoo.load(name).step > 0
  assert files.checkpoint_path(name) == ROOT / name
  package = tmp_path / 'site-packages' / 'zoo'
  shutil.copytree(ROOT / name, package / 'shipped' / 'yq_lsa')
  monkeypatch.setattr(files, '__file__', str(package / 'host' / 'files.py'))
  assert files.checkpoint_path(name) == package / 'shipped' / 'yq_lsa'
  for other in 'checkpoints/none', 'runs/yq_lsa', 'yq_lsa', 'checkpoints':
    assert files.checkpoint_path(other) == tmp_path / other
  own = tmp_path / name
  own.mkdir(parents=True)
  assert files.checkpoint_path(name) == own


def test_a_shipped_checkpoint_is_not_opened_in_place_of_a_model_of_ones_own(
  tmp_path, caplog
):
  shipped = ROOT / 'checkpoints' / 'lsa'
  # Commands write into these folders, without being asked.
  (tmp_path / 'checkpoints' / 'runs').mkdir(parents=True)
  with caplog.at_level('WARNING'):
    assert files.checkpoint_path('checkpoints/lsa') == shipped
  assert f'{shipped} is opened instead' in caplog.text
  (tmp_path / 'checkpoints' / 'lsa_at_noise_1').mkdir()
  with refuses('lsa does not exist', f'ICL Zoo ships, give {shipped}'):
    zoo.load('checkpoints/lsa')


@pytest.mark.parametrize(
  ('file', 'hides'),
  [
    ('zoo.py', True),
    ('configs/__init__.py', True),
    ('configs/own.py', False),
    ('studies/__init__.py', True),
  ],
)
def test_a_file_that_hides_a_package_is_named(
  tmp_path, monkeypatch, capsys, file, hides
):
  (tmp_path / file).parent.mkdir(exist_ok=True)
  (tmp_path / file).write_text('')
  monkeypatch.syspath_prepend(tmp_path)
  name = file.partition('/')[0].removesuffix('.py')
  monkeypatch.delitem(sys.modules, name, raising=False)
  if not hides:
    return launch.refuse_shadows()
  with pytest.raises(SystemExit, match='2'):
    launch.refuse_shadows()
  (line,) = capsys.readouterr().err.splitlines()
  assert f'{tmp_path / file} hides the package' in line


@pytest.mark.parametrize(
  ('before', 'after'),
  [
    ('', '--xla_gpu_enable_triton_gemm=false'),
    ('--xla_dump_to=x', '--xla_dump_to=x --xla_gpu_enable_triton_gemm=false'),
    ('--xla_gpu_enable_triton_gemm=true', '--xla_gpu_enable_triton_gemm=true'),
  ],
)
def test_the_pass_that_aborts_on_gpus_is_left_out(tmp_path, monkeypatch, before, after):
  monkeypatch.setenv('XLA_FLAGS', before)
  leave_out_pass()
  assert os.environ['XLA_FLAGS'] == before  # JAX has CPUs alone.
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'jax_plugins').mkdir()
  leave_out_pass()
  assert os.environ['XLA_FLAGS'] == after


@pytest.mark.slow
def test_the_import_of_zoo_leaves_out_the_pass(tmp_path):
  (tmp_path / 'jax_plugins').mkdir()
  code = "import os, zoo; print(os.environ['XLA_FLAGS'])"
  paths = f'{ROOT}:{tmp_path}'
  done = run([sys.executable, '-c', code], tmp_path, PYTHONPATH=paths, XLA_FLAGS='')
  assert done.stdout == '--xla_gpu_enable_triton_gemm=false\n', done.stderr
