from aero.reproduction.cells import plan_target as plan_target
from aero.reproduction.cost_tables import reproduce_costs as reproduce_costs
from aero.reproduction.outcome import write_target as write_target
from aero.reproduction.running import run_cells as run_cells
from aero.reproduction.targets import load_target as load_target
from aero.reproduction.targets import target_names as target_names
