"""Diagnose each subject of the configuration, after all cells, with the command that a person types.

REQUIRED INPUTS: the file of a subject that is one.
OUTPUTS: results/{run}/subjects/{name}/ledger.json, also of a subject that cannot be used, and what is drawn
from it: figures/{run}/subject_{name}.*
"""


def subject_flags(name):
    """What the configuration lays down for the command."""
    settings = plan.settings
    flags = [f"--threads={settings['threads']}", f"--timeout={settings['cell_timeout']}"]
    flags += ["--quick"] if subjects[name]["quick"] else []
    return [*flags, f"--python={settings['python']}"] if settings["python"] else flags


subjects_drawn_with = staleness.digest_of(
    staleness.code_digests(staleness.SCRIPTS / "complab" / "report" / "subjects.py")
)

for name in subjects:

    rule:
        name:
            f"subject_{name}"
        input:
            started,
            planned_subject(name),
            [file for file in [subjects[name]["subject"]] if file.endswith(".py")],
        output:
            ledger_of(name),
        log:
            f"{RUN}/subjects/{name}/diagnose.log",
        priority: EXHIBITS_BELOW
        conda:
            "../../envs/conda.yaml"
        threads: workflow.cores
        params:
            about=diagnosed_from[name],
            subject=lambda wildcards, name=name: subjects[name]["subject"],
            flags=subject_flags(name),
            out=lambda wildcards, output: str(Path(output[0]).parent),
        shell:
            r"""
            PYTHONPATH=scripts python -m complab.cli diagnose {params.subject:q} \
                {params.flags:q} \
                --record --out {params.out:q} 2>&1 | tee {log:q}
            """

    rule:
        name:
            f"draw_subject_{name}"
        input:
            ledger_of(name),
        output:
            [f"{FIGURES}/{file}" for file in names.subject_outputs(name)],
        log:
            f"{RUN}/subjects/{name}/draw.log",
        priority: 20
        conda:
            "../../envs/conda.yaml"
        resources:
            overrides=OVERRIDES,
        params:
            about=subjects_drawn_with,
            subject=name,
        shell:
            r"""
            python scripts/pipeline.py \
                --overrides {resources.overrides:q} \
                subject --name {params.subject:q} 2>&1 | tee {log:q}
            """
