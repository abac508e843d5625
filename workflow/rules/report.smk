"""Draw the exhibits and account for the cells.

REQUIRED INPUTS: the provenance record of every cell of an experiment, failed ones included.
OUTPUTS: figures/{run}/{experiment}.* and figures/{run}/manifest.json,
figures/{run}/ledgers.*, ledger_*.txt, noise.*, claims.* and numbers.* about all experiments together,
figures/{run}/index.html with all of it;
results/{run}/complete.json and results/{run}/{experiment}/complete.json, not written if a cell failed.
"""

for name in experiments:

    rule:
        name:
            f"draw_{name}"
        input:
            records(name),
        output:
            [f"{FIGURES}/{file}" for file in names.outputs(plan.settings, name)],
        log:
            f"{RUN}/{name}/draw.log",
        priority: 20
        conda:
            "../../envs/conda.yaml"
        resources:
            overrides=OVERRIDES,
        params:
            about=plan.drawn_from(name),
            experiment=name,
        shell:
            r"""
            python scripts/pipeline.py \
                --overrides {resources.overrides:q} \
                draw --experiment {params.experiment:q} 2>&1 | tee {log:q}
            """

    rule:
        name:
            f"complete_{name}"
        input:
            records(name),
        output:
            f"{RUN}/{name}/complete.json",
        log:
            f"{RUN}/{name}/complete.log",
        # Last of all: it fails when a cell failed, and nothing else may be held up by that.
        priority: -10
        conda:
            "../../envs/conda.yaml"
        resources:
            overrides=OVERRIDES,
        params:
            experiment=name,
        shell:
            r"""
            python scripts/pipeline.py \
                --overrides {resources.overrides:q} \
                complete --experiment {params.experiment:q} 2>&1 | tee {log:q}
            """

    rule:
        name:
            name.split("_")[0]
        input:
            f"{RUN}/{name}/complete.json",
            [f"{FIGURES}/{file}" for file in names.outputs(plan.settings, name)],


rule ledgers:
    """Draw every ledger of the run side by side, and what its noise could hide."""
    input:
        [record for name in experiments for record in records(name)],
    output:
        [f"{FIGURES}/{file}" for file in names.ledger_outputs(plan.settings)],
    log:
        f"{RUN}/ledgers.log",
    conda:
        "../../envs/conda.yaml"
    resources:
        overrides=OVERRIDES,
    params:
        about=plan.ledgers_from(),
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            ledgers 2>&1 | tee {log:q}
        """


rule claims:
    """Judge every claim of the register from the evidence of all experiments."""
    input:
        [record for name in experiments for record in records(name)],
    output:
        [f"{FIGURES}/{file}" for file in names.CLAIMS],
    log:
        f"{RUN}/claims.log",
    priority: 10
    conda:
        "../../envs/conda.yaml"
    resources:
        overrides=OVERRIDES,
    params:
        about=plan.judged_from(),
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            claims 2>&1 | tee {log:q}
        """


rule numbers:
    """Give every number of the exhibits its name, for prose to take it by."""
    input:
        [f"{FIGURES}/{file}" for file in names.lineages(plan.settings)],
    output:
        [f"{FIGURES}/{file}" for file in names.NUMBERS],
    log:
        f"{RUN}/numbers.log",
    conda:
        "../../envs/conda.yaml"
    resources:
        overrides=OVERRIDES,
    params:
        about=staleness.digest_of(
            staleness.code_digests(staleness.SCRIPTS / "complab" / "report" / "numbers.py")
        ),
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            numbers 2>&1 | tee {log:q}
        """


rule page:
    """Draw the evidence page: every exhibit in one file, each number with what lies behind it."""
    input:
        [record for name in experiments for record in records(name)],
        [f"{FIGURES}/{file}" for file in names.lineages(plan.settings)],
        [f"{FIGURES}/{file}" for file in names.pictures(plan.settings)],
        [f"{FIGURES}/subject_{name}.json" for name in subjects],
        names.PAGE_PARTS,
        "workflow/claims.yaml",
    output:
        f"{FIGURES}/{names.PAGE}",
    log:
        f"{RUN}/page.log",
    conda:
        "../../envs/conda.yaml"
    resources:
        overrides=OVERRIDES,
    params:
        about=staleness.digest_of(
            staleness.code_digests(staleness.SCRIPTS / "complab" / "report" / "page.py")
        ),
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            page 2>&1 | tee {log:q}
        """


rule manifest:
    """Hash every exhibit file of the run."""
    input:
        [f"{FIGURES}/{file}" for file in names.every_output(plan.settings)],
    output:
        f"{FIGURES}/manifest.json",
    log:
        f"{RUN}/manifest.log",
    conda:
        "../../envs/conda.yaml"
    resources:
        overrides=OVERRIDES,
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            manifest 2>&1 | tee {log:q}
        """


rule complete:
    """Account for the cells of all experiments, after everything that can be drawn is drawn."""
    input:
        f"{FIGURES}/manifest.json",
        [record for name in experiments for record in records(name)],
    output:
        f"{RUN}/complete.json",
    log:
        f"{RUN}/complete.log",
    conda:
        "../../envs/conda.yaml"
    resources:
        overrides=OVERRIDES,
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            complete 2>&1 | tee {log:q}
        """
