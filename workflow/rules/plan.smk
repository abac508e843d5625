"""What is to be measured, and what is its evidence about?

REQUIRED INPUTS: config.yaml with what the command line lays over it.
OUTPUTS: none; `plan`, `experiments` and `cells` for the rules, and on the terminal why cells are stale.
"""

import json
import shlex

import yaml

from complab import config as choices
from complab import staleness
from complab.errors import Problem

try:
    with open(choices.CONFIG_FILE, encoding="utf-8") as stream:
        overrides = choices.overrides_between(yaml.safe_load(stream), config)
    plan = staleness.Plan(choices.load(overrides=overrides))
except Problem as problem:
    raise WorkflowError(str(problem))

# The jobs read config.yaml themselves and get what the command line changed. It reaches them as a
# resource, not as a parameter: the same settings said in other words must not make a cell stale.
OVERRIDES = json.dumps(overrides, sort_keys=True)
# `python` in a rule is the interpreter that runs Snakemake, whether or not its environment is active.
shell.prefix(f'PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"; ')


RUN = f"results/{plan.settings.run}"
FIGURES = f"figures/{plan.settings.run}"
experiments = list(plan.settings["experiments"])
cells = plan.settings.cells()


def about(name, wildcards):
    """The one parameter whose change makes a cell stale."""
    return plan.about(choices.Cell(name, wildcards.policy, wildcards.cache, int(wildcards.replicate)))


def records(name):
    """The provenance records of an experiment's cells."""
    return [f"{RUN}/{cell.path}/provenance.json" for cell in cells if cell.experiment == name]


for line in staleness.summarise([(cell, reason) for cell in cells if (reason := plan.why_stale(cell))]):
    print(f"complab: {line}", file=sys.stderr)
