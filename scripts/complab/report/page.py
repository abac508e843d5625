"""How does a stranger see what is behind a number, with nothing but a browser?

`figures/{run}/index.html` is one file that loads nothing: exhibits, claims and ledgers, each number a link
that opens its chain. The chains are those that `complab audit` prints, embedded as JSON and put on the page
as text only. The same evidence gives the same bytes.
"""

import base64
import hashlib
import json
import shlex
from pathlib import Path

import jinja2
from markupsafe import Markup

from complab.config import PROJECT, Settings
from complab.report import chain, names, placing
from complab.report.chain import Chain
from complab.report.packed import packed
from complab.report.page_parts import Links, parts
from complab.report.tree import Tree

# What could end the element, begin another one, or end a line of a script: as JSON writes it instead.
_ESCAPES = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def draw(settings: Settings, results: Path, figures: Path) -> list[Path]:
    """Write the run's evidence page, from the evidence, or the bundle, and the exhibits of the settings' run.

    Raises Unverified, and writes nothing, if the evidence does not verify or other exhibits are drawn.
    """
    with Tree.open(settings.run, Path(results), Path(figures)) as tree:
        text = page(settings, tree)
    return placing.place({names.PAGE: text}, Path(figures) / settings.run)


def page(settings: Settings, tree: Tree) -> str:
    """The page as HTML."""
    told, links = parts(settings, tree)
    assert not links.loose, links.loose
    style, script = (_part(name) for name in (names.PAGE_STYLE, names.PAGE_SCRIPT))
    template = _environment().get_template(names.PAGE_TEMPLATE)
    embed = chains(tree, links)
    return template.render(
        told,
        again=again(embed),
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
        chains=embedded(embed),
    )


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(PROJECT),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _part(name: str) -> str:
    """A style or script as it stands in its element."""
    text = f"\n{(PROJECT / name).read_text(encoding='utf-8')}"
    assert "</" not in text and "<!--" not in text, f"{name} would end its own element"
    return text


def policy(style: str, script: str) -> str:
    """The content security policy: nothing but this style, this script and embedded pictures."""
    told = {
        "default-src": "'none'",
        "style-src": _source(style),
        "script-src": _source(script),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in told.items())


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def chains(tree: Tree, links: Links) -> dict:
    """The chain of every number, in JSON values; ``shown`` holds what a browser would round otherwise."""
    found = {name: chain.chain(tree, number) for name, number in links.numbers.items()}
    return {
        "names": list(found),
        "chains": [told.as_dict() for told in found.values()],
        "shown": [shown(told, links.files[name]) for name, told in found.items()],
    }


def again(told: dict) -> dict:
    """How many numbers were computed again from their rows, and which came out otherwise."""
    found = dict(zip(told["names"], (each["recomputed"] for each in told["chains"]), strict=True))
    return {
        "computed": sum(result != chain.NOTHING for result in found.values()),
        "other": [name for name, result in found.items() if result not in (chain.SAME, chain.NOTHING)],
    }


def shown(told: Chain, file: str) -> dict:
    """What `complab audit` prints of a chain's unrounded values, and the command that prints it all."""
    return {
        "value": chain.value_of(told),
        "interval": chain.interval_of(told),
        "processes": chain.processes_of(told),
        "audit": audit_command(told, file),
    }


def audit_command(told: Chain, file: str) -> str:
    """The command that prints the same chain in a terminal; ``file`` is the exhibit that has the number."""
    words = ["complab", "audit", f"figures/{told.run}/{file}"]
    words += [] if told.table == names.MAIN_TABLE else ["--table", told.table]
    words += ["--row", told.row, *(["--column", told.column] if told.column else [])]
    return shlex.join(words)


def embedded(value: object) -> Markup:
    """A JSON value, each part of it once, as the content of a script element of type application/json."""
    text = json.dumps(packed(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(str.maketrans(_ESCAPES)))
