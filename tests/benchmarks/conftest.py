"""Commands are called in the process of the tests, as those of `launch` are."""

from tests.launch.conftest import call as call
