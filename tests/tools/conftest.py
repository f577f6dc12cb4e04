"""The fixture that calls a command."""

from tests.launch.conftest import call as call
