"""What would today's code draw from a run's evidence? Every table, text and lineage, but no picture.

Draws by the same functions as the rules do, from evidence that was read once.
"""

from dataclasses import dataclass

from complab.config import Settings
from complab.errors import Unverified, UsageProblem
from complab.report import claims, claims_table, drawing, gather, ledgers, lineage, names, register, tables
from complab.report.classes import STALE, TAMPERED
from complab.report.gather import Gathered
from complab.report.names import JUDGED
from complab.report.reading import MALFORMED
from complab.report.tree import Tree


@dataclass
class Redrawn:
    """An exhibit drawn again: what its lineage would hold, and its tables and texts by file."""

    content: dict
    files: dict[str, str]


class Redrawing:
    """Draws the exhibits of a run again from its evidence, each experiment's evidence put together once."""

    _UNASKED = object()

    def __init__(self, tree: Tree, settings: Settings | None):
        self.tree = tree
        self.settings = settings
        self._gathered: dict[str, Gathered | None] = {}
        self._ledgers: tuple | None = None
        self._claims: Redrawn | None = None
        self._changed: object = self._UNASKED

    @property
    def changed(self) -> str | None:
        """Whether code or configuration is another than drew the exhibits, as their manifest tells.

        Empty if neither is; None if the manifest is too old to tell.
        """
        if self._changed is self._UNASKED:
            told = self.tree.manifest.get("drawn_by")
            self._changed = (
                None if self.settings is None or not isinstance(told, dict) else self._compare(told)
            )
        return self._changed

    def _compare(self, told: dict) -> str:
        today = drawing.drawn_by(self.settings)
        if told.get("code") != today["code"]:
            return "code"
        return "" if told == today else "config"

    def why(self, kind: str) -> str:
        """What is stale, in front of what a finding tells."""
        return f"{self.changed or 'code or config'}: " if kind == STALE else ""

    @property
    def kind(self) -> str:
        """What it means if a number differs: tampering, unless it was drawn otherwise than today."""
        return STALE if self.changed else TAMPERED

    def gathered(self, experiment: str) -> Gathered | None:
        """The evidence of an experiment, None if any of it is missing, damaged or mixed."""
        if experiment not in self._gathered:
            self._gathered[experiment] = self._gather(experiment)
        return self._gathered[experiment]

    def _gather(self, experiment: str) -> Gathered | None:
        cells = self.settings.cells(experiment)
        reads = [self.tree.cell(cell.path) for cell in cells if cell.path in self.tree.cells]
        if len(reads) < len(cells) or not all(read.sound for read in reads):
            return None
        try:
            gather.refuse_strange_pairs(read.record for read in reads)
            found = gather.assembled(self.settings, experiment, (read.record for read in reads))
            for read in reads:
                if not read.record.failed:
                    found.know_ledger(read.record, read.ledgers)
            return found
        except (Unverified, *MALFORMED):
            return None

    def everything(self) -> list[Gathered] | None:
        """The evidence of all experiments, None if that of one is not whole."""
        found = [self.gathered(name) for name in self.settings["experiments"]]
        return None if None in found else found

    def of(self, exhibit: str) -> Redrawn | None:
        """The exhibit drawn again, None where its evidence or the configuration does not allow it."""
        try:
            if exhibit in self.settings["experiments"]:
                return self._experiment(exhibit)
            if exhibit in (names.LEDGERS, names.NOISE):
                return self._about_all(exhibit)
            return self._judged() if exhibit == JUDGED else None
        except (UsageProblem, Unverified, *MALFORMED):
            return None

    def _experiment(self, experiment: str) -> Redrawn | None:
        gathered = self.gathered(experiment)
        if gathered is None:
            return None
        built = {
            name: tables.build(gathered, self.settings, name)
            for name in self.settings.experiment(experiment)["exhibit"]["tables"]
        }
        files: dict[str, str] = {}
        for table in built.values():
            files |= tables.write(gathered, table)
        if self.settings.experiment(experiment)["exhibit"]["trace"]:
            from complab.report import pages

            files[f"{names.table_stem(experiment, names.MAIN_TABLE)}.md"] += pages.link(gathered)
        cells = {name: table.cells for name, table in built.items()}
        return Redrawn(lineage.content(gathered, cells, {}), files)

    def _about_all(self, exhibit: str) -> Redrawn | None:
        gathered = self.everything()
        if gathered is None:
            return None
        if self._ledgers is None:
            self._ledgers = ledgers.sheets(self.settings, gathered)
        both, written = self._ledgers
        sheet = next(sheet for sheet in both if sheet.whole.experiment == exhibit)
        files = tables.write(sheet.whole, sheet.table) | (written if exhibit == names.LEDGERS else {})
        return Redrawn(lineage.content(sheet.whole, sheet.cells, {}), files)

    def _judged(self) -> Redrawn | None:
        if self._claims is None:
            gathered = self.everything()
            if gathered is None:
                return None
            by_name = {told.experiment: told for told in gathered}
            listed = register.load()
            judged = claims.judge(listed, by_name)
            content = claims_table.content(by_name, judged)
            self._claims = Redrawn(content, claims_table.tables_of(listed, by_name, judged))
        return self._claims
