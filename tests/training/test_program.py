"""Programs that are kept for the next run of the same config."""

import jax
import pytest

from tests.training.fake_program import make_fake
from tests.training.runs import small_config
from zoo import training
from zoo.training import trainer

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


@pytest.fixture
def made(monkeypatch):
  """Programs that nothing is compiled for, made as `program_of` asks for them."""
  trainer._kept_program.cache_clear()
  monkeypatch.setattr(
    trainer, 'make_program', lambda configs: make_fake(configs, False)
  )
  yield trainer.program_of
  trainer._kept_program.cache_clear()


def test_another_config_has_a_program_of_its_own(made):
  first = made(small_config())
  assert made(small_config()) is first
  assert made(small_config(seed=1)) is not first
  assert made(small_config(seed=1)).configs[0].seed == 1


def test_a_config_that_is_changed_afterwards_changes_no_kept_program(made):
  config = small_config()
  first, rate = made(config), config.optimizer.learning_rate
  with config.unlocked():
    config.optimizer.learning_rate = 10 * rate
  assert made(config).configs[0].optimizer.learning_rate == 10 * rate
  assert made(small_config()) is first
  assert first.configs[0].optimizer.learning_rate == rate


def test_the_programs_that_were_used_last_are_kept(made):
  first, second = made(small_config()), made(small_config(seed=1))
  for seed in range(2, 9):
    assert made(small_config()) is first
    made(small_config(seed=seed))
  assert made(small_config()) is first
  assert made(small_config(seed=1)) is not second


def test_a_class_that_is_registered_anew_has_another_program(made, register):
  programs = []
  for _ in range(2):

    @register('linear')
    class Linear:
      pass

    programs.append(made(small_config()))
  assert programs[0] is not programs[1]
