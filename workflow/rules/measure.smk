"""Measure each cell in a process of its own, one at a time.

REQUIRED INPUTS: the scripts of the experiments; a warm cell needs its cold cell.
OUTPUTS: results/{run}/{experiment}/{policy}/{cache}/{replicate}/provenance.json, written last of the
files beside it, so it stands for all of them.
"""

from complab.measure import headers as sealed_headers

HEADERS = sealed_headers.folder_of(plan).relative_to(choices.PROJECT)


rule headers:
    """Build and seal the precompiled headers of this environment, once."""
    input:
        started,
    output:
        f"{HEADERS}/manifest.json",
    log:
        f"{HEADERS}.log",
    # Before every cell, or those that compile nothing would all go first.
    priority: EXHIBITS_BELOW + len(cells) + 1
    conda:
        "../../envs/conda.yaml"
    threads: workflow.cores
    resources:
        overrides=OVERRIDES,
    shell:
        r"""
        python scripts/pipeline.py \
            --overrides {resources.overrides:q} \
            headers 2>&1 | tee {log:q}
        """


for name in experiments:

    rule:
        name:
            name
        input:
            planned=lambda wildcards, name=name: planned(name, wildcards),
            # Only their being there counts: each cell verifies the headers it uses.
            headers=branch(
                evaluate("{cache} == 'none'"),
                then=[],
                otherwise=ancient(f"{HEADERS}/manifest.json"),
            ),
            cold=branch(
                evaluate("{cache} == 'warm'"),
                then=f"{RUN}/{name}/{{policy}}/cold/{{replicate}}/provenance.json",
                otherwise=[],
            ),
        output:
            f"{RUN}/{name}/{{policy}}/{{cache}}/{{replicate}}/provenance.json",
        log:
            f"{RUN}/{name}/{{policy}}/{{cache}}/{{replicate}}/run.log",
        wildcard_constraints:
            policy="|".join(plan.settings.experiment(name)["policies"]),
            cache="none|cold|warm",
            replicate="[0-9]+",
        # In the order of the plan: an experiment's cells together, replicate by replicate, a warm one
        # right after its cold one.
        priority: lambda wildcards, name=name: priority(name, wildcards)
        conda:
            "../../envs/conda.yaml"
        # All of them: no other job may run beside a timed one.
        threads: workflow.cores
        resources:
            overrides=OVERRIDES,
        params:
            about=lambda wildcards, name=name: about(name, wildcards),
            experiment=name,
            cold=f"{RUN}/{name}/{{policy}}/cold/{{replicate}}",
            out=f"{RUN}/{name}/{{policy}}/{{cache}}/{{replicate}}",
        shell:
            r"""
            python scripts/{params.experiment:q}.py \
                --policy {wildcards.policy:q} \
                --cache {wildcards.cache:q} \
                --replicate {wildcards.replicate:q} \
                --overrides {resources.overrides:q} \
                --attempt {params.about[attempt]} \
                --expect {params.about[all]} \
                --cold {params.cold:q} \
                --out {params.out:q} \
                --record-failure
            """
