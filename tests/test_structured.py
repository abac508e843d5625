"""What a structured trace tells is counted alike on every release.

The traces under data/traces were recorded on real releases by data/traces/record.py, whose program breaks
once where it can go on and once in a loop, compiles one function for three lengths, and another like it.
"""

import hashlib
import json
import re
from pathlib import Path

import pytest

from complab import structured

DATA = Path(__file__).parent / "data" / "traces"
RELEASES = ("2.6.0", "2.13.0")


def text_of(release):
    return (DATA / release / "trace.log").read_bytes().decode("utf-8")


@pytest.mark.parametrize("release", RELEASES)
class TestRecorded:
    def test_frames_graphs_and_lookups_are_counted(self, release):
        told = structured.parse(text_of(release))
        # Two of the broken function, one given up in its loop, three lengths, one more function.
        assert (told.frames, told.graphs) == (7, 6)
        for cache in ("fx_graph", "aotautograd"):
            assert [told.lookups(cache, outcome) for outcome in ("hit", "miss", "bypass")] == [1, 5, 0]

    def test_breaks_have_their_place_and_reason(self, release):
        told = structured.parse(text_of(release))
        assert [(item.file, item.lineno) for item in told.breaks] == [
            ("/recorded/program.py", 6),
            ("/recorded/program.py", 14),
        ]
        assert all("Tensor.item" in item.label for item in told.breaks)

    def test_recompiles_name_every_entry_that_refused(self, release):
        first, second = structured.parse(text_of(release)).recompiles
        assert "size mismatch at index 0. expected 4, actual 5" in first
        assert [line.split(":")[0] for line in second.splitlines()] == ["3/1", "3/0"]

    def test_unchanged_texts_give_the_same_trace_to_the_byte(self, release):
        text = text_of(release)
        assert structured.rewritten(text, lambda told: told) == text

    def test_changed_texts_are_gone_everywhere_and_their_sums_fit(self, release):
        text = structured.rewritten(text_of(release), lambda told: told.replace("/recorded", "$TMP"))
        assert "/recorded" in text_of(release) and "/recorded" not in text
        again = structured.parse(text)
        assert (again.frames, again.graphs, len(again.breaks)) == (7, 6, 2)
        assert again.breaks[0].file == "$TMP/program.py"

    def test_parts_between_entries_add_up_to_the_whole(self, release):
        text = text_of(release)
        starts = [found.start() for found in re.finditer(r"(?m)^V", text)]
        cut = starts[len(starts) // 2]
        whole, parts = structured.parse(text), [structured.parse(part) for part in (text[:cut], text[cut:])]
        assert whole.graphs == sum(part.graphs for part in parts)
        assert whole.breaks == parts[0].breaks + parts[1].breaks
        assert whole.recompiles == parts[0].recompiles + parts[1].recompiles

    def test_entries_can_be_left_out(self, release):
        kept = structured.rewritten(text_of(release), lambda told: told, lambda entry: not entry.artifact)
        told = structured.parse(kept)
        assert (told.frames, told.graphs, told.breaks, told.caches) == (7, 6, (), {})


def entry_text(payload, total=None):
    total = total or hashlib.md5(payload.encode()).hexdigest()
    told = json.dumps({"dynamo_output_graph": {}, "has_payload": total})
    head = f"V0131 23:59:59.123000 4711 torch/_dynamo/output_graph.py:1] {told}\n"
    return head + "".join(f"\t{line}\n" for line in payload.split("\n"))


def test_an_entry_is_counted_with_its_whole_payload_only():
    assert structured.parse(entry_text("def forward(self):\n\n    return ()")).graphs == 1
    assert structured.parse(entry_text("def forward", total="0" * 32)).graphs == 0
    assert (
        structured.parse(entry_text("def forward(self):\n    return ()").partition("    return")[0]).graphs
        == 0
    )


@pytest.mark.parametrize(
    "text", ["", "\n", "\tpayload of nothing\n", "V0131 no entry\n", "V0131 1 2 a:1] {not json}\n"]
)
def test_what_is_no_entry_is_passed_over(text):
    assert structured.parse(text) == structured.Trace(0, 0, (), (), {})
