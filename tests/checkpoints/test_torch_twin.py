"""The transformer in PyTorch predicts what the one of the zoo does."""

import runpy
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close
from tests.compiled import predict, predict_all
from tests.weights import drawn
from zoo.storage import saving

torch = pytest.importorskip('torch', reason="needs the extra 'llm': torch")
pytestmark = pytest.mark.slow  # where PyTorch is installed each compiles a transformer

# Every value of every argument that the prediction depends on, at least once.
GIVEN: list[dict[str, Any]] = [
  {},
  {'guess': 'network', 'feed_forward': 'swiglu', 'positions': 'rotary', 'norm': 'rms'},
  {'tokens': 'shifted', 'guess': 'residual_network', 'hidden_features': 5},
  {'tokens': 'shifted', 'guess': 'linear', 'feed_forward': 'linear', 'norm': 'none'},
  {'tokens': 'joint', 'causal': False, 'positions': 'none', 'guess': 'residual'},
  {'tokens': 'joint', 'guess': 'fixed', 'guess_weights': 2.0, 'guess_bias': -1.0},
  {'causal': False, 'positions': 'rotary', 'feed_forward': 'none', 'num_heads': 1},
  {'num_loops': 3, 'num_trained_loops': 2, 'guess': 'residual', 'num_layers': 1},
  {'num_outputs': 3, 'guess': 'residual', 'mixer': 'softmax,softmax'},
]


@pytest.mark.parametrize(
  'given', GIVEN, ids=lambda given: ', '.join(given) or 'default'
)
def test_the_twin_predicts_the_same(given, tmp_path, monkeypatch):
  monkeypatch.setattr(saving, '_check_predicts_the_same', lambda *given: None)
  sizes = {'num_features': 3, 'context_length': 4, 'width': 8, 'num_layers': 2}
  arguments = sizes | given

  def build() -> Any:
    return zoo.create_model('transformer', **arguments, rngs=nnx.Rngs(0))

  model = drawn(build, dtype='float32')
  name = 'gaussian_clusters' if 'num_outputs' in given else 'linear_regression'
  sizes_of_task = {'num_features': 3, 'context_length': 4}
  if 'num_outputs' in given:
    sizes_of_task['num_classes'] = 3
  task = zoo.create_task(name, **sizes_of_task)
  assert task.num_outputs == given.get('num_outputs', 1)
  file, twin = tmp_path / 'model.safetensors', tmp_path / 'transformer.py'
  config = {
    'model': {'name': 'transformer', 'width': 8, 'num_layers': 2, **given},
    'task': {'name': name, **sizes_of_task},
  }
  config['model'].pop('num_outputs', None)
  zoo.export(model, file, config, twin=twin)
  copy = runpy.run_path(str(twin))['load'](file)
  labels = (5, 4, 3) if 'num_outputs' in given else (5, 4)
  normal = np.random.default_rng(0).normal
  shapes = (5, 4, 3), labels, (5, 3), (5, *labels[2:])
  arrays = [normal(size=shape).astype('f') for shape in shapes]
  prompt = zoo.Prompt(*map(jnp.asarray, arrays))
  tensors = [torch.from_numpy(array) for array in arrays[:3]]
  with torch.no_grad():
    assert_close(copy(*tensors), predict(model, prompt), 1e-5)
    if model.predicts_all:
      assert_close(copy.predictions(*tensors), predict_all(model, prompt), 1e-5)
    else:
      with pytest.raises(ValueError, match='the query alone'):
        copy.predictions(*tensors)


def test_the_twin_refuses_the_file_of_another_model(tmp_path):
  from zoo.storage import torch_twin

  file = tmp_path / 'model.safetensors'
  zoo.export(zoo.load('checkpoints/yq_lsa'), file)
  with pytest.raises(ValueError, match='holds no transformer of ICL Zoo with softmax'):
    torch_twin.load(file)
