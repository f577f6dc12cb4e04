"""Architectures: models of prompts, one family in each file, each registered by name.

`zoo.list_models` lists the names, and `zoo.create_model` makes a model by its name.
"""

from zoo.models.deep_lsa import DeepLSA as DeepLSA
from zoo.models.deep_set import DeepSet as DeepSet
from zoo.models.heads import quantile_edges as quantile_edges
from zoo.models.linear_attention import LSA as LSA
from zoo.models.linear_attention import LTB as LTB
from zoo.models.linear_attention import Constant as Constant
from zoo.models.linear_attention import LinearAttention as LinearAttention
from zoo.models.linear_attention import MultiHeadLSA as MultiHeadLSA
from zoo.models.linear_attention import YqLSA as YqLSA
from zoo.models.mlp import MLP as MLP
from zoo.models.mlp import MLPMixer as MLPMixer
from zoo.models.recurrent import GRU as GRU
from zoo.models.recurrent import LSTM as LSTM
from zoo.models.sequential import SequentialLearner as SequentialLearner
from zoo.models.tabular import Tabular as Tabular
from zoo.models.token_model import TokenModel as TokenModel
from zoo.models.transformer import Transformer as Transformer
