"""Programs that are kept for the next run of the same config."""

import jax
import pytest

from tests.training.runs import small_config
from zoo import training
from zoo.models import YqLSA
from zoo.training.program import program_of

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.fixture
def compiled():
  """The programs that are compiled while a test runs: a list that grows."""
  found = []

  def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == '/jax/core/compile/backend_compile_duration':
      found.append(kwargs.get('fun_name'))

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield found
  jax.monitoring.unregister_event_duration_listener(listen)


def test_the_same_config_trained_again_compiles_nothing(tmp_path, compiled):
  first = training.train(small_config(), tmp_path / 'first')
  del compiled[:]
  second = training.train(small_config(), tmp_path / 'second')
  assert compiled == []
  assert first is not None
  assert second is not None
  assert first['exact_risk'] == second['exact_risk']


def test_another_config_has_a_program_of_its_own(tmp_path):
  risks = [
    training.train(small_config(seed=seed), tmp_path / str(seed)) for seed in (0, 1)
  ]
  assert risks[0] is not None
  assert risks[1] is not None
  assert risks[0]['exact_risk'] != risks[1]['exact_risk']


def test_a_config_that_is_changed_afterwards_changes_no_kept_program(tmp_path):
  config = small_config()
  first = training.train(config, tmp_path / 'first')
  with config.unlocked():
    config.optimizer.learning_rate = 10 * config.optimizer.learning_rate
  other = training.train(config, tmp_path / 'other')
  again = training.train(small_config(), tmp_path / 'again')
  assert first is not None
  assert other is not None
  assert again is not None
  assert other['exact_risk'] != first['exact_risk'] == again['exact_risk']


def test_a_class_that_is_registered_anew_has_a_program_of_its_own(register):
  def define():
    @register('own')
    class Own(YqLSA):
      pass

    return Own

  define()
  config = small_config(model__name='own')
  first = program_of(config)
  assert program_of(config) is first
  define()
  assert program_of(config) is not first
