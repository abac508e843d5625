"""Measure each cell in a process of its own, one at a time.

REQUIRED INPUTS: the scripts of the experiments; a warm cell needs its cold cell.
OUTPUTS: results/{run}/{experiment}/{policy}/{cache}/{replicate}/provenance.json, written last of the
files beside it, so it stands for all of them.
"""

from complab.measure import headers as sealed_headers

HEADERS = sealed_headers.folder_of(plan).relative_to(choices.PROJECT)


rule headers:
    """Build and seal the precompiled headers of this environment, once."""
    output:
        f"{HEADERS}/manifest.json",
    log:
        f"{HEADERS}.log",
    conda:
        "../../envs/conda.yaml"
    threads: workflow.cores
    priority: 100
    shell:
        r"""
        {PYTHON:q} scripts/pipeline.py \
            --overrides {OVERRIDES:q} \
            headers 2>&1 | tee {log:q}
        """


for name in experiments:

    rule:
        name:
            name
        input:
            # Only their being there counts: each cell verifies the headers it uses.
            headers=ancient(f"{HEADERS}/manifest.json"),
            cold=branch(
                evaluate("{cache} == 'warm'"),
                then=f"results/{plan.settings.run}/{name}/{{policy}}/cold/{{replicate}}/provenance.json",
                otherwise=[],
            ),
        output:
            f"results/{plan.settings.run}/{name}/{{policy}}/{{cache}}/{{replicate}}/provenance.json",
        wildcard_constraints:
            policy="|".join(plan.settings.experiment(name)["policies"]),
            cache="none|cold|warm",
            replicate="[0-9]+",
        params:
            about=lambda wildcards, name=name: about(name, wildcards),
        log:
            f"results/{plan.settings.run}/{name}/{{policy}}/{{cache}}/{{replicate}}/run.log",
        conda:
            "../../envs/conda.yaml"
        # All of them: no other job may run beside a timed one.
        threads: workflow.cores
        # Replicate by replicate, so that drift falls on all policies alike; a warm cell follows its
        # cold one at once, so that both see the same machine.
        priority:
            lambda wildcards: 90 if wildcards.cache == "warm" else 80 - int(wildcards.replicate)
        shell:
            r"""
            {PYTHON:q} scripts/{rule}.py \
                --policy {wildcards.policy:q} \
                --cache {wildcards.cache:q} \
                --replicate {wildcards.replicate:q} \
                --overrides {OVERRIDES:q} \
                --attempt {params.about[attempt]} \
                --expect {params.about[all]} \
                --cold results/{plan.settings.run:q}/{rule}/{wildcards.policy:q}/cold/{wildcards.replicate:q} \
                --out "$(dirname {output:q})" \
                --record-failure
            """
