"""Which files does an experiment's exhibit consist of? Known from the configuration alone.

Snakemake asks this while it reads the rules, so nothing heavy may be imported here.
"""

from complab.config import Settings

MANIFEST = "manifest.json"
MAIN_TABLE = "main"
TABLE_FORMATS = ("csv", "md", "tex")
CLAIMS = ("claims.csv", "claims.md", "claims.tex", "claims.lineage.json")
FIGURE_FORMATS = ("pdf", "svg", "png")


def table_stem(experiment: str, table: str) -> str:
    """File name of a table without its ending; the main one bears the experiment's own name."""
    return experiment if table == MAIN_TABLE else f"{experiment}.{table}"


def outputs(settings: Settings, experiment: str) -> list[str]:
    """Every file of the experiment's exhibit by name, none if it declares no exhibit."""
    exhibit = settings.experiment(experiment)["exhibit"]
    stems = [table_stem(experiment, table) for table in exhibit["tables"]]
    tables = [f"{stem}.{end}" for stem in stems for end in TABLE_FORMATS]
    figures = [f"{experiment}.{end}" for end in FIGURE_FORMATS] if "figure" in exhibit else []
    drawn = tables + figures
    return [*drawn, f"{experiment}.lineage.json"] if drawn else []
