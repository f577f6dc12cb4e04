"""Corrupted files of models are answered in one line, in time and memory."""

import shutil

import jax.numpy as jnp
import pytest

from tests import fuzz
from tests.language_models import tiny
from tests.language_models.test_decoder import make_mesh
from tests.llm.pairs import TINY_BERT
from zoo.language_models import tokenizer as tokenizers
from zoo.language_models.chat_template import ChatTemplate
from zoo.language_models.embeddings import SentenceEmbedder
from zoo.language_models.weights import GGUFWeights, load_decoder, open_weights

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def folder(tmp_path):
  return tiny.save_folder('qwen2', tmp_path / 'model')


@pytest.fixture
def encoder(tmp_path):
  return shutil.copytree(TINY_BERT, tmp_path / 'encoder')


def load(path):
  with open_weights(path) as weights:
    if isinstance(weights, GGUFWeights):
      tokenizers.from_gguf(weights.metadata, weights.name).chat('Hello')
    load_decoder(weights, make_mesh(), jnp.float32)


def mutate_start(size):
  """Mutates the first bytes as such: what follows are numbers of a tensor."""

  def mutate(random, good):
    return fuzz.mutate_bytes(random, good[:size]) + good[size:]

  return mutate


def mutate_safetensors(random, good):
  """Mutates the JSON of the header, or its bytes and the length before them."""
  end = 8 + int.from_bytes(good[:8], 'little')
  if random.random() < 0.3:
    return mutate_start(end + 100)(random, good)
  header = fuzz.mutate_json(random, good[8:end])
  return len(header).to_bytes(8, 'little') + header + good[end:]


def test_safetensors(folder):
  path = folder / 'model.safetensors'
  assert fuzz.check_all(path, lambda: load(folder), mutate_safetensors) > 0.5


def test_the_index_of_several_files(models, tmp_path):
  folder = shutil.copytree(models['qwen2']['files'], tmp_path / 'model')
  path = folder / 'model.safetensors.index.json'
  assert fuzz.check_all(path, lambda: load(folder), fuzz.mutate_json) > 0.5


@pytest.mark.parametrize('kind', ['qwen2', 'smollm3', 'gemma3'])
def test_the_config_of_a_decoder(tmp_path, kind):
  folder = tiny.save_folder(kind, tmp_path / kind)
  path = folder / 'config.json'
  assert fuzz.check_all(path, lambda: load(folder), fuzz.mutate_json) > 0.5


def test_gguf(models, tmp_path):
  path = tmp_path / 'model.gguf'
  shutil.copy(models['llama_3_1']['gguf'], path)
  header = path.stat().st_size - sum(
    array.nbytes for array in tiny.tensors('llama_3_1').values()
  )
  assert fuzz.check_all(path, lambda: load(path), mutate_start(header)) > 0.5


def answer(folder):
  tokenizer = tokenizers.from_folder(folder, 'model')
  tokens = tokenizer.encode(tokenizer.chat('The lamps are lit, 1.25 and 3.80.'))
  tokenizer.decode(tokens)


@pytest.mark.parametrize('file', ['tokenizer.json', 'tokenizer_config.json'])
def test_the_files_of_a_tokenizer(folder, file):
  def read():
    answer(folder)

  assert fuzz.check_all(folder / file, read, fuzz.mutate_json) > 0.5


# Of several lines, so that lines are repeated and cut.
TEMPLATE = """{{ bos_token }}{% set ns = namespace(text='', n=3) %}
{% macro turn(m) %}<|{{ m.role }}|>{{ m.content | trim ~ '!' }}{% endmacro %}
{% for m in messages %}{{ turn(m) }}{{ loop.last }}
{% for i in range(ns.n * 10) %}{% set ns.text = ns.text ~ 'x' * i %}{% endfor %}
{% set ns.text = ns.text.replace('x', 'yy') + [ns.text, 'z'] | join(', ') %}
{% endfor %}{{ ns.text[::-1] | tojson }}{{ '%5d' % (ns.n ** 9) }}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
# What makes much, put in at any place.
PIECES = [
  *('* 10**9', '** 999999', '{% for i in range(99999) %}', '| join(ns.text)', '999999'),
  *("~ ns.text * 9999", '{{ turn(messages[0]) }}', '[ns, ns.text]', '| list', '%', '('),
]  # fmt: skip


def mutate_template(random, good):
  text = good.decode()
  for _ in range(int(random.integers(1, 4))):
    place = int(random.integers(len(text)))
    piece = PIECES[int(random.integers(len(PIECES)))]
    text = text[:place] + piece + text[place + int(random.integers(9)) :]
  return text.encode()


@pytest.mark.parametrize('mutate', [mutate_template, fuzz.mutate_bytes])
def test_chat_templates(tmp_path, mutate):
  path = tmp_path / 'chat_template.jinja'
  path.write_text(TEMPLATE)

  def render():
    source = path.read_bytes().decode(errors='replace')
    ChatTemplate(source, 'model').render('Hello', {'bos_token': '<s>'})

  assert fuzz.check_all(path, render, mutate) > 0.5


@pytest.mark.parametrize('file', ['config.json', 'tokenizer.json'])
def test_the_json_of_a_sentence_encoder(encoder, file):
  def embed():
    SentenceEmbedder.load(encoder)(['a cat'])

  assert fuzz.check_all(encoder / file, embed, fuzz.mutate_json) > 0.5


def test_the_weights_of_a_sentence_encoder(encoder):
  path = encoder / 'model.safetensors'
  assert (
    fuzz.check_all(path, lambda: SentenceEmbedder.load(encoder), mutate_safetensors)
    > 0.5
  )
