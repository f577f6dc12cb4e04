"""Language models: a decoder in JAX, its weights and tokens, and sentence embeddings.

model = zoo.language_models.LanguageModel.load('SmolLM2-135M-Instruct.gguf')
model.generate([model.chat('What is 3 + 4?')], max_new_tokens=20)
"""

import importlib
from typing import TYPE_CHECKING

from zoo.core.errors import UserError

if TYPE_CHECKING:
  from zoo.language_models.language_model import LanguageModel as LanguageModel

_EXTRA = 'gguf', 'jinja2', 'safetensors', 'tokenizers'


def __getattr__(name: str) -> object:
  if name != 'LanguageModel':
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    return importlib.import_module('zoo.language_models.language_model').LanguageModel
  except ModuleNotFoundError as error:
    if error.name not in _EXTRA:
      raise
    raise UserError(
      f"{error.name} is not installed; language models need pip install 'icl-zoo[llm]'"
    ) from None
