"""TODO"""

from typing import Any

from configs import defaults


def get_config(variant: str = '') -> Any:
  config = defaults.get_config(variant)
  config.model.name = 'yq_lsa'
  config.lock()
  return config
