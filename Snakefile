"""complab: the chapter's evidence and exhibits, from config.yaml to figures/.

`snakemake --cores 1` measures what is missing or stale and redraws what depends on it;
`snakemake -n` says what that would be, and why.
"""

import sys
from pathlib import Path

# The rules and the scripts read the same configuration through the same module.
sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from complab import startup

with startup.problems_in_one_line():
    startup.require_place(Path(workflow.basedir))


configfile: "config.yaml"


include: "workflow/rules/plan.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/diagnose.smk"
include: "workflow/rules/report.smk"


rule all:
    """Everything: verified evidence of every cell and every exhibit drawn from it."""
    default_target: True
    input:
        f"{RUN}/complete.json",


rule evidence:
    """The evidence of every cell, without drawing anything; fails if a cell failed."""
    input:
        [f"{RUN}/{name}/complete.json" for name in experiments],


rule exhibits:
    """Every table and figure drawn again from the evidence that is there; nothing is measured."""
    input:
        started,
    log:
        f"{RUN}/redraw.log",
    conda:
        "envs/conda.yaml"
    resources:
        overrides=OVERRIDES,
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            redraw 2>&1 | tee {log:q}
        """
