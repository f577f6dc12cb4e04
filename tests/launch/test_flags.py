"""Fields of configs set on the command line: what a run gets of them."""

import sys

import pytest
from absl import flags

from launch import cli, config_flag
from tests.compare import refuses
from tests.launch.processes import ROOT
from zoo.config.read import read
from zoo.training.optimizers import warmup_steps

CONFIGS = '--config=configs'


@pytest.fixture
def parsed(monkeypatch, request):
  """The config that arguments of a command make."""
  values = flags.FlagValues()
  for module in cli, config_flag:
    monkeypatch.setattr(module, 'FLAGS', values)

  def parse(*arguments):
    for name in list(values):
      delattr(values, name)
    flags.DEFINE_list('import', [], '', flag_values=values)
    config_flag.config_flags.DEFINE_config_file('config', flag_values=values)
    argv = ['launch.main', *arguments]
    monkeypatch.setattr(sys, 'argv', argv)
    cli.parse(argv)
    return values['config'].value

  return parse


def test_warm_up_is_a_tenth_of_the_steps_that_are_set(parsed):
  def warmup(*arguments):
    config = read(parsed(f'{CONFIGS}/transformer.py', *arguments))
    return warmup_steps(config.optimizer, config.train.num_steps)

  assert warmup() == 200
  assert warmup('--config.train.num_steps=305') == 30
  assert warmup('--config.train.num_steps', '100000') == 200
  both = '--config.optimizer.warmup_steps=7', '--config.train.num_steps=300'
  assert warmup(*both) == warmup(*reversed(both)) == 7


def test_a_mistyped_flag_is_answered_by_the_nearest_whole_name(parsed, capsys):
  with pytest.raises(SystemExit):
    parsed(f'{CONFIGS}/lsa.py', '--confg.train.num_steps=300')
  said = 'unknown flag --confg.train.num_steps; did you mean --config.train.num_steps?'
  assert capsys.readouterr().err == f'error: {said}\n'


def test_none_sets_a_field_back_and_a_later_flag_wins(parsed):
  clip = '--config.optimizer.clip_norm'
  config = parsed(f'{CONFIGS}/transformer.py', f'{clip}=None')
  assert config.optimizer.clip_norm is None
  assert parsed(f'{CONFIGS}/lsa.py', f'{clip}=2').optimizer.clip_norm == 2.0
  twice = parsed(f'{CONFIGS}/lsa.py', f'{clip}=None', f'{clip}=2')
  assert twice.optimizer.clip_norm == 2.0
  twice = parsed(f'{CONFIGS}/lsa.py', f'{clip}=2', f'{clip}=None')
  assert twice.optimizer.clip_norm is None
  looped = parsed(
    f'{CONFIGS}/transformer.py:looped', '--config.model.num_trained_loops=None'
  )
  assert looped.model.num_trained_loops is None
  assert looped.model.num_loops == 20


def test_every_option_that_the_documents_name_can_be_set(parsed):
  model = '--config.model'
  config = parsed(
    *(f'{CONFIGS}/transformer.py', f'{model}.guess=fixed', f'{model}.guess_bias=0.5'),
    *(f'{model}.guess_weights=(1,2,3,4,5)', f'{model}.hidden_features=7'),
    *(f'{model}.num_loops=3', f'{model}.num_trained_loops=2'),
    *(f'{model}.mixer=mamba,softmax', f"{model}.mixer_options={{'state_size': 8}}"),
  )
  fields = config.model.to_dict()
  assert fields['guess_weights'] == (1, 2, 3, 4, 5)
  assert (fields['guess_bias'], fields['hidden_features']) == (0.5, 7)
  assert fields['num_trained_loops'] == 2
  assert fields['mixer_options'] == {'state_size': 8}


def test_modules_of_own_classes_may_stand_in_a_file_of_flags(call, folder):
  flags_file = folder / 'flags.txt'
  flags_file.write_text(
    '--import=own_classes_under_test\n'
    '--config=own_model.py:smoke\n'
    '--config.train.num_steps=0\n'
  )
  answer = call('main', f'--flagfile={flags_file}')
  assert answer.code == 2
  (line,) = answer.err.splitlines()
  assert 'config.train.num_steps is 0' in line


def test_a_file_may_leave_the_name_of_the_model_to_a_flag(call, folder):
  (folder / 'any_model.py').write_text(
    'from configs import common\ndef get_config():\n  return common.get_config()\n'
  )
  flags = '--config.model.name=lsa', '--config.train.batch_size=0'
  assert 'batch_size is 0' in call('main', '--config=any_model.py', *flags).err
  said = 'config.model.name is None; it must be the name of a model'
  assert said in call('main', '--config=any_model.py').err


def test_a_config_without_a_section_is_one_line(call, folder):
  (folder / 'no_train.py').write_text(
    'from configs import yq_lsa\n'
    'def get_config():\n'
    "  config = yq_lsa.get_config('smoke')\n"
    '  with config.unlocked():\n'
    '    del config.train\n'
    '  return config\n'
  )
  answer = call('main', '--config=no_train.py', '--init_from=nowhere')
  assert answer.code == 2
  assert 'nowhere' in answer.err.splitlines()[-1]
  answer = call('main', '--config=configs/llm/smollm2.py', '--init_from=nowhere')
  assert answer.code == 2
  (line,) = answer.err.splitlines()
  assert "the config has no field 'model.name'" in line


def test_a_dot_in_a_path_of_weights_is_one_line(call):
  flag = "--config.optimizer.scales={'layers.0': 0.1}"
  answer = call('main', f'{CONFIGS}/transformer.py:smoke', flag)
  assert answer.code == 2
  (line,) = answer.err.splitlines()
  assert 'flag --config.optimizer.scales: a key of the dictionary has a dot' in line
  assert 'layers/0/mixer' in line


def test_an_exit_of_a_config_file_keeps_its_message_and_its_code(
  parsed, tmp_path, monkeypatch
):
  (tmp_path / 'leaves.py').write_text(
    "import sys\ndef get_config(code):\n  sys.exit(int(code) or 'no data set')\n"
  )
  monkeypatch.chdir(tmp_path)
  for code, wanted in ('0', 'no data set'), ('1', 1), ('3', 3):
    with pytest.raises(SystemExit) as ended:
      parsed(f'--config=leaves.py:{code}')
    assert ended.value.code == wanted


def test_the_name_of_the_same_model_and_of_an_own_one_may_be_a_flag(parsed):
  name = '--config.model.name'
  config = parsed(f'{CONFIGS}/yq_lsa.py', f'{name}=yq_lsa')
  flag = config_flag.FLAGS['config']
  for value in 'yq_lsa', 'own_model':
    config_flag._check_model(flag, value)
  assert config.model.name == 'yq_lsa'
  with refuses('choose the other model by --config=configs/lsa.py'):
    config_flag._check_model(flag, 'lsa')


def test_too_little_memory_without_a_config_is_one_line(call, monkeypatch):
  def fail():
    raise MemoryError('Unable to allocate 3 TiB')

  monkeypatch.setattr('zoo.list_models', fail)
  answer = call('catalog')
  assert answer.code == 1
  (line,) = answer.err.splitlines()
  assert line.startswith('error: the memory is not enough: Unable to allocate 3 TiB')
  assert 'context_length' in line


def test_a_copy_of_a_config_file_trains_with_the_number_that_was_changed(
  parsed, tmp_path, monkeypatch
):
  text = (ROOT / 'configs' / 'yq_lsa.py').read_text()
  changed = text.replace('learning_rate = 5e-3', 'learning_rate = 1e-3')
  assert changed != text
  (tmp_path / 'mine.py').write_text(changed)
  monkeypatch.chdir(tmp_path)
  shipped, copy = parsed(f'{CONFIGS}/yq_lsa.py'), parsed('--config=mine.py')
  assert (shipped.optimizer.learning_rate, copy.optimizer.learning_rate) == (5e-3, 1e-3)
  copy.optimizer.learning_rate = 5e-3
  assert copy == shipped


@pytest.mark.parametrize(
  ('line', 'error'),
  [
    ('1 / 0', ZeroDivisionError),
    ("raise ValueError('mine')", ValueError),  # which ml_collections and absl replace
    ('common.get_config() / 2', TypeError),  # as for a field of another type
  ],
)
def test_an_error_in_a_config_file_keeps_its_lines(parsed, tmp_path, line, error):
  file = tmp_path / 'mine.py'
  text = 'from configs import common\n\n\ndef get_config():\n'
  file.write_text(f'{text}  {line}\n')
  with pytest.raises(error) as raised:
    parsed(f'--config={file}')
  assert (str(file), 5) in [(str(at.path), at.lineno + 1) for at in raised.traceback]
