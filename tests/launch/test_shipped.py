"""What ships is found from any folder: configs, and trained checkpoints."""

import importlib
import os
import pathlib
import shutil
import sys

import pytest

import launch
import zoo
from launch import config_flag
from tests.launch.processes import ROOT
from zoo.host import files


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
  shipped = pathlib.Path(name)
  assert files.or_shipped(shipped) == ROOT / name
  package = tmp_path / 'site-packages' / 'zoo'
  shutil.copytree(ROOT / name, package / 'shipped' / 'yq_lsa')
  monkeypatch.setattr(files, '__file__', str(package / 'host' / 'files.py'))
  assert files.or_shipped(shipped) == package / 'shipped' / 'yq_lsa'
  for other in 'checkpoints/none', 'runs/yq_lsa':
    assert files.or_shipped(pathlib.Path(other)) == pathlib.Path(other)
  pathlib.Path(name).mkdir(parents=True)
  assert files.or_shipped(shipped) == shipped


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
    (None, '--xla_gpu_enable_triton_gemm=false'),
    ('--xla_dump_to=x', '--xla_dump_to=x --xla_gpu_enable_triton_gemm=false'),
    ('--xla_gpu_enable_triton_gemm=true', '--xla_gpu_enable_triton_gemm=true'),
  ],
)
def test_commands_leave_out_the_pass_that_aborts_on_gpus(monkeypatch, before, after):
  if before is None:
    monkeypatch.delenv('XLA_FLAGS', raising=False)
  else:
    monkeypatch.setenv('XLA_FLAGS', before)
  importlib.reload(launch)
  assert os.environ['XLA_FLAGS'] == after
