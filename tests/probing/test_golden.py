"""Numbers of instruments are those that were kept: see tests/probing/golden.py."""

import json

import pytest

from tests.probing.golden import FILE, INSTRUMENTS, as_kept

_KEPT = json.loads(FILE.read_text())


# Bits depend on the machine and the compiler, and some instruments search.
@pytest.mark.slow
@pytest.mark.parametrize('name', INSTRUMENTS)
def test_numbers_of_instruments_are_those_that_were_kept(name):
  found, kept = as_kept(INSTRUMENTS[name]()), _KEPT[name]
  assert sorted(found) == sorted(kept)
  assert found == pytest.approx(kept, rel=2e-3, abs=1e-4)
