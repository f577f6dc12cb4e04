"""Headlines that take a minute hold."""

import pytest

from configs import get_config
from zoo.studies.headlines import HEADLINES
from zoo.studies.runner import Trainer
from zoo.studies.study import HOLDS, verdict

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize('name', ['one_step', 'pool_lines', 'prior_mean', 'saddles'])
def test_a_headline_of_a_minute_holds(name, tmp_path, unchecked):
  one = HEADLINES[name]
  found = one.measure(Trainer(tmp_path / 'runs', get_config))
  assert verdict(one, found.numbers) == HOLDS, found.numbers
