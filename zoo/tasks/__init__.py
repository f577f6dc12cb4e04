"""Tasks: distributions of prompts, with one family in each file.

`zoo.create_task` makes a task by the name under which it is registered.
"""

from zoo.tasks.arrays import Arrays as Arrays
from zoo.tasks.associative_recall import AssociativeRecall as AssociativeRecall
from zoo.tasks.base import BaseTask as BaseTask
from zoo.tasks.base import FunctionClass as FunctionClass
from zoo.tasks.base import register_task as register_task
from zoo.tasks.boolean import Conjunction as Conjunction
from zoo.tasks.boolean import Majority as Majority
from zoo.tasks.boolean import NearestNeighbour as NearestNeighbour
from zoo.tasks.boolean import Parity as Parity
from zoo.tasks.boolean import SparseParity as SparseParity
from zoo.tasks.decision_tree import DecisionTree as DecisionTree
from zoo.tasks.gaussian_clusters import GaussianClusters as GaussianClusters
from zoo.tasks.hidden_markov import HiddenMarkov as HiddenMarkov
from zoo.tasks.labelled_clusters import LabelledClusters as LabelledClusters
from zoo.tasks.linear_regression import LinearRegression as LinearRegression
from zoo.tasks.logistic_regression import LogisticRegression as LogisticRegression
from zoo.tasks.markov_chain import MarkovChain as MarkovChain
from zoo.tasks.mixture import Mixture as Mixture
from zoo.tasks.outlier_regression import OutlierRegression as OutlierRegression
from zoo.tasks.quadratic_regression import QuadraticRegression as QuadraticRegression
from zoo.tasks.relu_network import ReluNetwork as ReluNetwork
from zoo.tasks.rotated_regression import RotatedRegression as RotatedRegression
from zoo.tasks.sinusoid import Sinusoid as Sinusoid
from zoo.tasks.sparse_regression import SparseRegression as SparseRegression
from zoo.tasks.state_tracking import ModularAddition as ModularAddition
from zoo.tasks.state_tracking import ModularArithmetic as ModularArithmetic
from zoo.tasks.state_tracking import ParityPrefix as ParityPrefix
from zoo.tasks.state_tracking import Permutations as Permutations
from zoo.tasks.tabular import Tabular as Tabular
from zoo.tasks.task_pool import TaskPool as TaskPool
from zoo.tasks.urns import Urns as Urns
