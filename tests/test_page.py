"""Does the evidence page lead from every number to its chain, and does it load and run nothing foreign?"""

import base64
import hashlib
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

import recorded
from complab import config, evidence
from complab.config import PROJECT
from complab.errors import Unverified
from complab.report import chain, exhibits, names, page, targets
from complab.report.packed import packed, unpacked
from complab.report.tree import Tree

E6 = "e6_dynamic_shapes"
STEADY = f"{E6}.main.default.steady_ms"
COMMITTED = sorted((PROJECT / "figures").glob(f"torch-*/{names.PAGE}"))


class Document(HTMLParser):
    """The elements of a page with their attributes, and the text in them."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.open = ""
        self.inside: dict[str, list[str]] = {"style": [], "script": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in self.inside:
            self.inside[tag].append("")

        self.open = tag

    def handle_endtag(self, tag):
        self.open = ""

    def handle_data(self, data):
        if self.open in self.inside:
            self.inside[self.open][-1] += data
        self.texts.append(data)

    def of(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def links(self) -> list[str]:
        """The names of the numbers that are links."""
        return [attributes["data-n"] for attributes in self.of("a") if "data-n" in attributes]

    @property
    def policy(self) -> dict[str, str]:
        meta = next(
            found for found in self.of("meta") if found.get("http-equiv") == "Content-Security-Policy"
        )
        return dict(part.split(" ", 1) for part in meta["content"].split("; "))


def text_of(folder) -> str:
    return (folder / names.PAGE).read_text(encoding="utf-8")


def embedded(text: str) -> str:
    """The JSON that the page holds."""
    return re.search(r'<script type="application/json" id="chains">(.*?)</script>', text, re.DOTALL).group(1)


def chains_of(text: str) -> dict[str, dict]:
    """The embedded chains by the name of their number."""
    found = unpacked(json.loads(embedded(text)))
    return dict(zip(found["names"], found["chains"], strict=True))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The folder of every exhibit of the recorded evidence, the page among them."""
    return recorded.draw(recorded.ROOT, tmp_path_factory.mktemp("figures"))


@pytest.fixture(scope="module")
def document(drawn):
    return Document(text_of(drawn))


@pytest.fixture(scope="module")
def tree(drawn):
    with Tree.open(recorded.RUN, recorded.ROOT, drawn.parent) as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The folder of the exhibits of evidence whose texts try to become markup."""
    folder = tmp_path_factory.mktemp("hostile")
    return recorded.draw(recorded.hostile(recorded.copied(folder)), folder / "figures")


# Every number leads to its chain


def test_every_number_of_every_lineage_is_a_link_and_has_a_chain(drawn, document, tree):
    chains = chains_of(text_of(drawn))
    assert len(tree.numbers) > 300
    assert set(document.links) == set(chains)
    assert len(chains) == len(tree.numbers)
    places = {(told["exhibit"], told["table"], told["row"], told["column"]) for told in chains.values()}
    assert places == {(told.exhibit, told.table, told.row, told.column) for told in tree.numbers}


def test_a_link_leads_to_the_fragment_that_names_its_number(document):
    for attributes in document.of("a"):
        if "data-n" in attributes:
            assert unquote(attributes["href"]) == f"#number={attributes['data-n']}"


def test_the_chains_are_those_that_audit_prints(drawn, tree):
    chains = chains_of(text_of(drawn))
    for number in tree.numbers:
        told = next(
            found
            for found in chains.values()
            if (found["exhibit"], found["place"]) == (number.exhibit, number.place)
        )
        assert told == json.loads(json.dumps(chain.chain(tree, number).as_dict()))


@pytest.mark.parametrize(
    "number",
    [
        STEADY,
        "e3_graph_breaks.cost.default.ratio",
        f"{E6}.figure.static/cold/sweep",
        "claims.e6-static-limit",
        "ledgers.ledger_opening_failure.stability.calls",
        "ledgers.e6_dynamic_shapes/static/model.stable",
        "noise.e6_dynamic_shapes/static/model.control",
    ],
)
def test_the_command_that_a_chain_shows_prints_that_number_and_no_other(drawn, number):
    found = unpacked(json.loads(embedded(text_of(drawn))))
    at = found["names"].index(number)
    command = shlex.split(found["shown"][at]["audit"])
    assert command[:2] == ["complab", "audit"]
    options = dict(zip(command[3::2], command[4::2], strict=True))
    wanted = targets.Wanted(*(options.get(name, "") for name in ("--table", "--row", "--column")))
    file = drawn.parent / command[2].removeprefix("figures/")
    (answer,) = targets.answers(str(file), wanted, recorded.ROOT, drawn.parent)
    assert [(each.exhibit, each.place) for each in answer.numbers] == [
        (found["chains"][at]["exhibit"], found["chains"][at]["place"])
    ]


def test_numbers_have_the_names_that_prose_takes_them_by(drawn, document):
    listed = json.loads((drawn / names.NUMBERS[0]).read_text(encoding="utf-8"))["numbers"]
    assert STEADY in document.links
    assert set(document.links) <= set(listed)


def test_the_page_says_how_many_numbers_were_computed_again(document):
    assert re.search(r"the \d+ that have rows were computed again, and all came out the same", told(document))


def test_claims_and_ledgers_bear_what_they_are_filtered_by(document):
    claims = [found for found in document.of("article") if "data-verdict" in found]
    assert {found["data-verdict"] for found in claims} >= {"holds", "not measured"}
    rows = {found["data-level"] for found in document.of("tr") if "data-level" in found}
    assert {"STABLE", "CAPTURED"} <= rows


def told(document: Document) -> str:
    return " ".join(" ".join(document.texts).split())


def test_a_failed_cell_is_told_and_the_page_still_drawn(tmp_path):
    results = recorded.copied(tmp_path)
    recorded.fail(results, f"{E6}/static/cold/1")
    found = told(Document(text_of(recorded.draw(results, tmp_path / "figures"))))
    assert f"Failed: {E6}/static/cold/1 while timed: process 'timed' was killed by SIGKILL" in found
    assert re.search(r"failed 1 planned", found)


def test_exhibits_of_other_evidence_are_refused(drawn, tmp_path):
    results = recorded.copied(tmp_path)

    def slower(row):
        changed = {"value": row.value * 3} if row.metric == "steady_compiled" else {}
        return evidence.Row(**(vars(row) | changed))

    recorded.edit_rows(results, f"{E6}/default/cold/1", slower)
    with pytest.raises(Unverified, match=r"e6_dynamic_shapes.lineage.json.*draw the exhibits again"):
        page.draw(recorded.settings(results), results, drawn.parent)


# Nothing is loaded, and nothing that was measured becomes markup


def test_the_page_loads_nothing(document):
    for tag, attributes in document.elements:
        loaded = [attributes.get(name) for name in ("src", "srcset", "data", "poster", "action")]
        loaded += [attributes.get("href")] if tag not in ("a",) else []
        assert all(value is None or value.startswith("data:") for value in loaded), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (
            tag,
            attributes,
        )
    style, script = document.inside["style"][0], document.inside["script"][-1]
    assert "url(" not in style and "@import" not in style
    assert not re.search(
        r"fetch|XMLHttpRequest|import\(|WebSocket|innerHTML|insertAdjacent|document\.write|eval", script
    )


def test_the_policy_allows_this_style_and_this_script_and_no_other(document):
    def digest(text):
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert document.policy == {
        "default-src": "'none'",
        "style-src": digest(document.inside["style"][0]),
        "script-src": digest(document.inside["script"][-1]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert [found.get("type") for found in document.of("script")] == ["application/json", None]
    assert len(document.of("style")) == 1


def test_a_text_with_script_in_it_stays_text(hostile, drawn):
    text = text_of(hostile)
    found = Document(text)
    kinds = [(tag, set(attributes)) for tag, attributes in found.elements if tag in ("script", "img")]
    assert kinds == [
        (tag, set(attributes))
        for tag, attributes in Document(text_of(drawn)).elements
        if tag in ("script", "img")
    ]
    assert recorded.HOSTILE in "".join(found.texts)
    chains = chains_of(text)
    assert any(recorded.HOSTILE in told["text"] for told in chains.values())
    assert any(recorded.HOSTILE in line for told in chains.values() for line in logged(told))
    assert "49" not in found.texts


def logged(told: dict) -> list[str]:
    logs = [cell.get("log") or {"messages": []} for cell in told["cells"]]
    return [message["text"] for log in logs for message in log["messages"]]


# Sameness and size


def test_the_same_evidence_gives_the_same_bytes_in_a_process_without_torch_and_snakemake(drawn, tmp_path):
    program = f"""
import sys
import recorded
from pathlib import Path
from complab.report import page
page.draw(recorded.settings(), recorded.ROOT, Path({str(tmp_path)!r}))
sys.exit(bool({{"torch", "snakemake"}} & set(sys.modules)))
"""
    folder = tmp_path / recorded.RUN
    folder.mkdir()
    for path in drawn.iterdir():
        if path.suffix in (".json", ".svg"):
            (folder / path.name).write_bytes(path.read_bytes())
    environment = {
        "PYTHONPATH": f"{config.PROJECT / 'scripts'}:{config.PROJECT / 'tests'}",
        "PYTHONHASHSEED": "4711",
        "TZ": "Asia/Tokyo",
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / names.PAGE).read_bytes() == (drawn / names.PAGE).read_bytes()


def test_the_manifest_hashes_the_page(drawn):
    listed = exhibits.write_manifest(recorded.settings(), drawn)
    files = json.loads(listed.read_text(encoding="utf-8"))["files"]
    listed.unlink()
    assert files[names.PAGE] == evidence.file_entry(drawn / names.PAGE)


def test_the_page_is_small(drawn):
    assert (drawn / names.PAGE).stat().st_size < 1_500_000


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_a_committed_page_is_small_and_leads_to_every_number_of_its_run(path):
    assert path.stat().st_size < 6_000_000
    text = path.read_text(encoding="utf-8")
    with Tree(path.parent.name, path.parent / "none", path.parent) as tree:
        assert len(set(Document(text).links)) == len(chains_of(text)) == len(tree.numbers)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        [[], {}, "", 0],
        [True, 1, 1.0, False, 0, 0.0, None, "1"],
        {"a": [1, {"b": "x"}], "c": [1, {"b": "x"}], "b": {"c": 2, "a": 1}, "d": {"a": 1, "c": 2}},
        [-0.0, 0.0, 1e300, "\u2028</script>"],
    ],
    ids=repr,
)
def test_what_is_packed_comes_back_as_it_was(value):
    again = unpacked(json.loads(json.dumps(packed(value))))
    assert repr(again) == repr(value)


def test_equal_parts_are_stored_once():
    part = {"file": "a" * 1000, "lines": ["2-4"]}
    assert len(json.dumps(packed([part] * 1000))) < 10_000
