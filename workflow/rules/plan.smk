"""What is to be measured, and what is its evidence about?

REQUIRED INPUTS: config.yaml with what the command line lays over it.
OUTPUTS: results/{run}/planned.txt, the cells to measure, the subjects to diagnose, and why; `plan`, `experiments`,
`cells`, `subjects` for the rules.
"""

import json

from complab import config as choices
from complab import staleness
from complab.diagnose import kept
from complab.report import names

with startup.problems_in_one_line():
    overrides = choices.overrides_between(choices.read_yaml(choices.CONFIG_FILE), config)
    plan = staleness.Plan(choices.load(overrides=overrides))

# The jobs read config.yaml themselves and get what the command line changed. It reaches them as a
# resource, not as a parameter: the same settings said in other words must not make a cell stale.
OVERRIDES = json.dumps(overrides, sort_keys=True)
# A prefix replaces Snakemake's own strict mode.
shell.prefix(startup.shell_prefix(sys.executable))


def started(_wildcards):
    """No input file, but what a run that executes has to ask first: see `startup.begin`."""
    with startup.problems_in_one_line():
        startup.begin(workflow, choices.PROJECT)
    return []


RUN = f"results/{plan.settings.run}"
FIGURES = f"figures/{plan.settings.run}"
experiments = list(plan.settings["experiments"])
cells = plan.settings.cells()


def cell_of(name, wildcards):
    """The cell that a job measures."""
    return choices.Cell(name, wildcards.policy, wildcards.cache, int(wildcards.replicate))


# No exhibit is drawn while a cell waits, however many could be: Snakemake adds up what runs at once.
EXHIBITS_BELOW = 1000


def priority(name, wildcards):
    """Higher the earlier the cell stands in the plan."""
    return EXHIBITS_BELOW + len(cells) - cells.index(cell_of(name, wildcards))


def about(name, wildcards):
    """The one parameter whose change makes a cell stale."""
    return plan.about(cell_of(name, wildcards))


def records(name):
    """The provenance records of an experiment's cells."""
    return [f"{RUN}/{cell.path}/provenance.json" for cell in cells if cell.experiment == name]


stale = {cell: reason for cell in cells if (reason := plan.why_stale(cell))}
for line in staleness.summarise(stale):
    print(f"complab: {line}", file=sys.stderr)


def ledger_of(name):
    """Where the ledger of a subject lies."""
    return f"{RUN}/{kept.FOLDER}/{name}/ledger.json"


subjects = plan.settings["subjects"]
diagnosed_from = {name: plan.diagnosed_from(name) for name in subjects}
# By the file whose absence or age tells it.
stale_subjects = {
    ledger_of(name): reason
    for name in subjects
    if (reason := kept.why_stale(Path(ledger_of(name)), name, plan, diagnosed_from[name]["code"]))
}
for file, reason in stale_subjects.items():
    print(f"complab: 1 subject to diagnose ({file}): {reason}", file=sys.stderr)

# Snakemake compares parameters only where it remembers the last run. A copied or cleaned folder has no
# such memory, so each cell and each subject also has this file as input: newer than its evidence exactly
# if it is stale.
PLANNED = f"{RUN}/planned.txt"
# A clock that was wrong may have dated a record in the future, where no plan would ever be newer.
for cell in stale:
    startup.not_of_the_future(plan.folder(cell) / "provenance.json")
for file in stale_subjects:
    startup.not_of_the_future(Path(file))
if stale or stale_subjects or not Path(PLANNED).exists():
    staleness.write_plan(Path(PLANNED), {**stale, **stale_subjects})


def planned(name, wildcards):
    """The plan as an input that counts only for a stale cell."""
    started(wildcards)
    return PLANNED if cell_of(name, wildcards) in stale else ancient(PLANNED)


def planned_subject(name):
    """The plan as an input that counts only for a stale subject."""
    return PLANNED if ledger_of(name) in stale_subjects else ancient(PLANNED)
