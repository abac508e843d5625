"""Which files does an experiment's exhibit consist of? Known from the configuration alone.

Snakemake asks this while it reads the rules, so nothing heavy may be imported here.
"""

from pathlib import Path

from complab.config import Settings

MANIFEST = "manifest.json"
MAIN_TABLE = "main"
LEDGERS, NOISE, JUDGED = "ledgers", "noise", "claims"
LINEAGE = ".lineage.json"
TABLE_FORMATS = ("csv", "md", "tex")
CLAIMS = ("claims.csv", "claims.md", "claims.tex", "claims.lineage.json")
NUMBERS = ("numbers.json", "numbers.tex")
# The evidence page: it prints what the other files hold.
PAGE = "index.html"
# What it is made with, below the project's folder.
PAGE_TEMPLATE, PAGE_STYLE, PAGE_SCRIPT = PAGE_PARTS = tuple(
    f"workflow/report/{part}" for part in ("page.html.j2", "page.css", "page.js")
)
FIGURE_FORMATS = ("pdf", "svg", "png")


def table_stem(experiment: str, table: str) -> str:
    """File name of a table without its ending; the main one bears the experiment's own name."""
    return experiment if table == MAIN_TABLE else f"{experiment}.{table}"


def pages_index(experiment: str) -> str:
    """First page of the folder that is drawn from a structured trace."""
    return f"{experiment}.tlparse/index.html"


def outputs(settings: Settings, experiment: str) -> list[str]:
    """Every file of the experiment's exhibit by name, none if it declares no exhibit.

    Of a folder of pages only the first is named: which others there are, the trace decides.
    """
    exhibit = settings.experiment(experiment)["exhibit"]
    stems = [table_stem(experiment, table) for table in exhibit["tables"]]
    tables = [f"{stem}.{end}" for stem in stems for end in TABLE_FORMATS]
    figures = [f"{experiment}.{end}" for end in FIGURE_FORMATS] if "figure" in exhibit else []
    pages = [pages_index(experiment)] if exhibit["trace"] else []
    drawn = tables + figures + pages
    return [*drawn, f"{experiment}.lineage.json"] if drawn else []


def ledger_texts(settings: Settings) -> dict[str, dict]:
    """The regions whose ledger is also written out as a text, as far as their experiment is configured."""
    return {
        name: told
        for name, told in settings["ledgers"].items()
        if told["experiment"] in settings["experiments"]
    }


def ledger_outputs(settings: Settings) -> list[str]:
    """Files about all experiments of the run: every ledger, those written out, and the noise."""
    tables = [f"{stem}.{end}" for stem in (LEDGERS, NOISE) for end in (*TABLE_FORMATS, "lineage.json")]
    return tables + [f"ledger_{name}.txt" for name in ledger_texts(settings)]


def subject_outputs(name: str) -> list[str]:
    """Files about a diagnosed subject: its ledger as data and as text, and the picture of its calls."""
    return [f"subject_{name}.{end}" for end in ("json", "md", *FIGURE_FORMATS)]


def drawn_outputs(settings: Settings) -> list[str]:
    """Every exhibit file of the run that is drawn from its evidence."""
    drawn = [file for experiment in settings["experiments"] for file in outputs(settings, experiment)]
    drawn += [file for name in settings["subjects"] for file in subject_outputs(name)]
    return [*drawn, *ledger_outputs(settings), *CLAIMS]


def lineages(settings: Settings) -> list[str]:
    """The lineage files of the run, in order of its exhibits."""
    return [name for name in drawn_outputs(settings) if name.endswith(LINEAGE)]


def pictures(settings: Settings) -> list[str]:
    """The figures as the evidence page shows them."""
    return [name for name in drawn_outputs(settings) if name.endswith(".svg")]


def every_output(settings: Settings) -> list[str]:
    """Every exhibit file of the run."""
    return [*drawn_outputs(settings), *NUMBERS, PAGE]


def with_pages(folder: Path, wanted: list[str]) -> list[str]:
    """The exhibit's files with every file beside a first page, as they lie in ``folder``."""
    found = list(wanted)
    for index in (name for name in wanted if "/" in name):
        below = sorted(path for path in (folder / index).parent.rglob("*") if path.is_file())
        found += [name for path in below if (name := path.relative_to(folder).as_posix()) != index]
    return found
