"""TODO"""

from ml_collections import ConfigDict

from configs import defaults


def get_config(variant: str = '') -> ConfigDict:
  config = defaults.get_config(variant)
  config.model.name = 'multi_head_lsa'
  config.lock()
  return config
