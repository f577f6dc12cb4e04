"""Answers and probabilities against plain calls of transformers, without a cache.

Each architecture has random weights. Prompts differ in length, so that batches have
padding, and are longer than the windows of the models that have some.
"""

import importlib.util
import json
import os
import pathlib

import numpy as np
import pytest

import zoo.llm
from tests.compare import refuses
from tests.llm import tiny
from tests.marks import FULL, mostly_full

torch = pytest.importorskip('torch', reason="needs the extra 'llm': torch")
transformers = pytest.importorskip('transformers', reason="needs the extra 'llm'")
pytestmark = [
  pytest.mark.slow,
  pytest.mark.timeout(600),
  pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]

DATA = pathlib.Path(__file__).parents[1] / 'data' / 'llm'
KINDS = 'llama', 'qwen2', 'mistral', 'gemma3_text', 'phi', 'gpt_neox'
TEXTS = 'How alike are a cat and a dog?', 'Rate.', 'How alike are 3.80 and 3.8, really?'
SCORES = '3.80', '3.81', '4.00', '3', 'high'


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """The folder of a model of each kind, made when it is asked for."""
  made = {}

  def folder(kind):
    if kind not in made:
      made[kind] = tiny.save_model(tmp_path_factory.mktemp('tiny') / kind, kind)
    return made[kind]

  return folder


def plain(folder):
  """The model and the tokenizer as transformers reads them."""
  model = transformers.AutoModelForCausalLM.from_pretrained(folder)
  return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def greedy(model, tokenizer, prompt, new):
  """The answer of a model that reads everything anew for each token."""
  ids = tokenizer(prompt, add_special_tokens=False)['input_ids']
  start = len(ids)
  for _ in range(new):
    ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    if ids[-1] == tokenizer.eos_token_id:
      break
  return tokenizer.decode(ids[start:], skip_special_tokens=True)


@torch.inference_mode()
def log_probability(model, tokenizer, prompt, text):
  """The log probability of a text after a prompt, read as one."""
  before, after = (
    tokenizer(of, add_special_tokens=False)['input_ids'] for of in (prompt, text)
  )
  logits = model(torch.tensor([before + after]), use_cache=False).logits[0]
  logs = logits.double().log_softmax(dim=-1)[len(before) - 1 : -1]
  return float(logs[range(len(after)), after].sum())


@pytest.mark.parametrize('kind', mostly_full(['gemma3_text', 'phi'], KINDS))
def test_answers_and_probabilities_are_those_of_plain_calls(folders, kind):
  reference = plain(folders(kind))
  model = zoo.llm.load_model(folders(kind))
  prompts = [model.chat(text) for text in TEXTS]
  prefixed = [model.chat(text, 'Score: ') for text in TEXTS]
  past = model.read(prompts, model.read_beginning(prompts))
  for known in (None, past):
    answers = model.generate(prompts, 12, known)
    assert answers == [greedy(*reference, prompt, 12) for prompt in prompts]
    answers = model.generate(prefixed, 5, known)
    assert answers == [greedy(*reference, prompt, 5) for prompt in prefixed]
    logs = model.log_probabilities(prefixed, SCORES, known)
    expected = [[log_probability(*reference, p, s) for s in SCORES] for p in prefixed]
    # Sums of a few dozen float32 numbers of size 10.
    np.testing.assert_allclose(logs, expected, atol=1e-4)
  # What was read before is not changed by what came after.
  np.testing.assert_allclose(
    model.log_probabilities(prompts, SCORES, past),
    model.log_probabilities(prompts, SCORES),
    atol=1e-4,
  )
  assert model.num_tokens(prompts[1]) == len('user Rate.') + len('model ') + 3
  assert model.num_params == sum(p.numel() for p in reference[0].parameters())
