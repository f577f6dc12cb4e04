import pytest


@pytest.fixture(scope='session')
def cache(tmp_path_factory):
  """A folder for compiled programs, shared by the processes of this test run."""
  return tmp_path_factory.getbasetemp() / 'compiled_by_processes'
