"""Mixers: the layers that move information between tokens, each registered by name.

`zoo.list_mixers` lists the names. A transformer takes a name or a class as its
argument `mixer`. The docstring of the class has the equations of the mixer, its paper,
and the differences from the paper and from public code. Here all short convolutions and
most linear maps have biases; in most public code they have none. The equations leave
out the biases of queries, keys, values, gates and outputs. The NumPy loops in
`tests/mixers/reference` have all biases.
"""

from zoo.mixers.attention import ForgettingAttention as ForgettingAttention
from zoo.mixers.attention import ReLUAttention as ReLUAttention
from zoo.mixers.attention import SoftmaxAttention as SoftmaxAttention
from zoo.mixers.convolution import Hyena as Hyena
from zoo.mixers.decay import GatedLinearAttention as GatedLinearAttention
from zoo.mixers.decay import LinearMixer as LinearMixer
from zoo.mixers.decay import Mamba2 as Mamba2
from zoo.mixers.decay import Retention as Retention
from zoo.mixers.delta import Comba as Comba
from zoo.mixers.delta import Delta as Delta
from zoo.mixers.delta import GatedDelta as GatedDelta
from zoo.mixers.delta import GatedDelta2 as GatedDelta2
from zoo.mixers.delta import GatedDeltaProduct as GatedDeltaProduct
from zoo.mixers.delta import KimiDelta as KimiDelta
from zoo.mixers.linear_state import HeadState as HeadState
from zoo.mixers.linear_state import LinearState as LinearState
from zoo.mixers.linear_state import State as State
from zoo.mixers.log_linear import LogLinear as LogLinear
from zoo.mixers.mamba3 import Mamba3 as Mamba3
from zoo.mixers.mesa import Mesa as Mesa
from zoo.mixers.mixer import Mixer as Mixer
from zoo.mixers.mixer import Slot as Slot
from zoo.mixers.recurrence import Inputs as Inputs
from zoo.mixers.rwkv7 import RWKV7 as RWKV7
from zoo.mixers.ssm import S4D as S4D
from zoo.mixers.ssm import Longhorn as Longhorn
from zoo.mixers.ssm import Mamba as Mamba
from zoo.mixers.titans import Titans as Titans
from zoo.mixers.ttt import TTT as TTT
