"""Deep linear attention: exact risks, optima, and lower bounds for a given depth."""

from zoo.theory.deep.deep_rule import check_depth as check_depth
from zoo.theory.deep.deep_rule import degree as degree
from zoo.theory.deep.gd_plus_plus import FamilyOptimum as FamilyOptimum
from zoo.theory.deep.gd_plus_plus import GDPlusPlus as GDPlusPlus
from zoo.theory.deep.gd_plus_plus import gd_plus_plus_optimum as gd_plus_plus_optimum
from zoo.theory.deep.gd_plus_plus import gd_plus_plus_risk as gd_plus_plus_risk
from zoo.theory.deep.sampled import SampledRisk as SampledRisk
from zoo.theory.deep.sampled import require_deep as require_deep
from zoo.theory.deep.sampled import sample_contexts as sample_contexts
from zoo.theory.deep.sampled import sampled_risk as sampled_risk
from zoo.theory.deep.trace_moments import lower_bound as lower_bound
