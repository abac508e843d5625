"""Draw the exhibits and account for the cells.

REQUIRED INPUTS: the provenance record of every cell of an experiment, failed ones included.
OUTPUTS: figures/{run}/{experiment}.* and figures/{run}/manifest.json;
results/{run}/{experiment}/complete.json, which is not written if a cell failed.
"""

from complab.report import names


def records(name):
    """The provenance records of an experiment's cells."""
    return [
        f"results/{plan.settings.run}/{cell.path}/provenance.json" for cell in cells if cell.experiment == name
    ]


for name in experiments:

    rule:
        name:
            f"draw_{name}"
        input:
            records(name),
        output:
            [f"figures/{plan.settings.run}/{file}" for file in names.outputs(plan.settings, name)],
        params:
            about=plan.drawn_from(name),
            experiment=name,
        log:
            f"results/{plan.settings.run}/{name}/draw.log",
        conda:
            "../../envs/conda.yaml"
        priority: 20
        shell:
            r"""
            {PYTHON:q} scripts/pipeline.py \
                --overrides {OVERRIDES:q} \
                draw --experiment {params.experiment:q} 2>&1 | tee {log:q}
            """

    rule:
        name:
            f"complete_{name}"
        input:
            records(name),
        output:
            f"results/{plan.settings.run}/{name}/complete.json",
        params:
            experiment=name,
        log:
            f"results/{plan.settings.run}/{name}/complete.log",
        conda:
            "../../envs/conda.yaml"
        # Last of all: it fails when a cell failed, and nothing else may be held up by that.
        priority: -10
        shell:
            r"""
            {PYTHON:q} scripts/pipeline.py \
                --overrides {OVERRIDES:q} \
                complete --experiment {params.experiment:q} 2>&1 | tee {log:q}
            """

    rule:
        name:
            name.split("_")[0]
        input:
            f"results/{plan.settings.run}/{name}/complete.json",
            [f"figures/{plan.settings.run}/{file}" for file in names.outputs(plan.settings, name)],


rule manifest:
    """Hash every exhibit file of the run."""
    input:
        [
            f"figures/{plan.settings.run}/{file}"
            for name in experiments
            for file in names.outputs(plan.settings, name)
        ],
    output:
        f"figures/{plan.settings.run}/manifest.json",
    log:
        f"results/{plan.settings.run}/manifest.log",
    conda:
        "../../envs/conda.yaml"
    shell:
        r"""
        {PYTHON:q} scripts/pipeline.py \
            --overrides {OVERRIDES:q} \
            manifest 2>&1 | tee {log:q}
        """
