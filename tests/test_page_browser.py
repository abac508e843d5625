"""Does the evidence page work in a real browser, by mouse and by keyboard, on a desk and on a phone?

Needs Debian's packages chromium and chromium-driver.
"""

import json
import re
import shutil
import time
from urllib.parse import unquote

import pytest

import recorded
from complab.report import chain, names
from complab.report.tree import Tree

pytestmark = pytest.mark.browser

E6 = "e6_dynamic_shapes"
STEADY = f"{E6}.main.default.steady_ms"
# A phone, in CSS pixels.
NARROW = 360
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium without any past."""
    from selenium import webdriver

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program and driver, "these tests need a browser: apt install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The folder of every exhibit of evidence whose texts try to become markup, under a strange name."""
    folder = tmp_path_factory.mktemp("Seite für Gäste #1 ")
    return recorded.draw(recorded.hostile(recorded.copied(folder)), folder / "figures")


@pytest.fixture
def opened(browser, drawn):
    """``opened(fragment, width, dark)`` loads the page as a reader would see it."""

    def load(fragment="", width=1280, dark=False):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            # Nothing glides away from where it was to be clicked.
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        browser.get("about:blank")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.get((drawn / names.PAGE).as_uri() + fragment)
        # Until a page has been painted once, a browser may drop what is clicked on it.
        browser.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
        )
        return browser

    return load


def ask(browser, script, *arguments):
    return browser.execute_script(f"return {script}", *arguments)


def link(browser, number):
    return browser.find_element("css selector", f'main a[data-n="{number}"]')


def settled(answer, wanted):
    """The last answer, which is the wanted one unless it did not come within ten seconds.

    What follows a click or a key (a closed dialog's event, an address taken back) may come in a later turn.
    """
    deadline = time.monotonic() + 10
    while (told := answer()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return told


def is_open(browser):
    return settled(lambda: ask(browser, "document.getElementById('chain').open"), True)


def is_closed(browser):
    return not settled(lambda: ask(browser, "document.getElementById('chain').open"), False)


def focused(browser, wanted):
    told = "document.activeElement.dataset.n || document.activeElement.id"
    return settled(lambda: ask(browser, told), wanted) == wanted


def address(browser, wanted):
    return settled(lambda: unquote(ask(browser, "location.hash")), wanted) == wanted


def press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        ActionChains(browser).send_keys(getattr(Keys, key, key)).perform()


def lines(browser, kind):
    """The numbered lines that a chain shows: of ``rows`` or of the ``log``."""
    return ask(
        browser,
        "[...document.querySelectorAll('#chain .lines.' + arguments[0] + ' li')].map("
        "line => [...line.children].map(part => part.textContent))",
        kind,
    )


def shown(browser, selector):
    return ask(
        browser,
        "[...document.querySelectorAll(arguments[0])].filter(one => one.checkVisibility()).length",
        selector,
    )


def told(drawn, number):
    """The chain of a number as audit prints it."""
    exhibit, table, row, column = number.split(".")
    with Tree.open(recorded.RUN, drawn.parents[1] / "results", drawn.parent) as tree:
        found = next(
            each
            for each in tree.numbers_of(exhibit)
            if (each.table, each.row, each.column) == (table, row, column)
        )
        return chain.text_of(chain.chain(tree, found))


def test_a_click_on_a_number_shows_the_rows_that_audit_prints(opened, drawn):
    browser = opened()
    link(browser, STEADY).click()
    assert is_open(browser)
    printed = told(drawn, STEADY)
    rows = [tuple(line) for line in lines(browser, "rows") if line[0]]
    assert rows
    # In both: line number and row, in the same order.
    assert rows == re.findall(rf"^ +(\d+)  ({E6},.*)$", printed, re.MULTILINE)
    text = ask(browser, "document.getElementById('chain').textContent")
    for part in (
        "median of steady_compiled in ms",
        "cold-proven",
        f"python scripts/{E6}.py --policy default",
    ):
        assert part in text and part in printed
    value = re.search(r"value +(.*); recomputed", printed).group(1)
    assert value in text


def test_rows_are_shown_for_every_process(opened, drawn):
    number = "e3_graph_breaks.main.with_break.steady_ms"
    browser = opened(f"#number={number}")
    rows = [tuple(line) for line in lines(browser, "rows") if line[0]]
    assert len(rows) == 6
    assert rows == re.findall(r"^ +(\d+)  (e3_graph_breaks,.*)$", told(drawn, number), re.MULTILINE)


def test_the_line_of_the_log_that_tells_is_marked(opened, drawn):
    number = "e3_graph_breaks.main.with_break.log_breaks"
    browser = opened(f"#number={number}")
    marked = ask(
        browser, "[...document.querySelectorAll('#chain .log .row.marked')].map(one => one.textContent)"
    )
    assert marked and all("Graph break" in line for line in marked)
    printed = told(drawn, number)
    # In a terminal a cell's first messages do.
    assert all(line in printed for line in marked[: chain.SHOWN])


def test_by_keyboard_a_number_opens_and_the_focus_comes_back(opened):
    browser = opened()
    ask(browser, "arguments[0].focus()", link(browser, f"{E6}.main.static.steady_ms"))
    press(browser, "TAB")
    assert focused(browser, STEADY)
    press(browser, "ENTER")
    assert is_open(browser)
    assert address(browser, f"#number={STEADY}")
    for _ in range(40):
        press(browser, "TAB")
        assert ask(
            browser, "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    press(browser, "ESCAPE")
    assert is_closed(browser)
    assert focused(browser, STEADY)
    assert address(browser, "")


def test_a_link_to_a_number_opens_it_and_back_closes_it(opened):
    browser = opened(f"#number={STEADY}")
    assert is_open(browser)
    assert ask(browser, "document.getElementById('chain-title').textContent").endswith(" ms")
    browser.find_element("id", "close").click()
    assert focused(browser, STEADY)
    link(browser, STEADY).click()
    browser.back()
    assert is_closed(browser)


def test_a_number_that_is_not_there_is_said_to_be_unknown(opened):
    browser = opened("#number=e6.no.such")
    assert is_closed(browser)
    assert ask(browser, "document.getElementById('told').textContent") == "No number is called e6.no.such."


def choose(browser, name, value):
    from selenium.webdriver.support.select import Select

    Select(browser.find_element("id", name)).select_by_value(value)


def test_filters_hide_what_is_not_asked_for_and_stand_in_the_address(opened):
    browser = opened()
    every = shown(browser, ".claim")
    choose(browser, "f-verdict", "holds")
    holds = shown(browser, ".claim")
    assert 0 < holds < every
    assert shown(browser, '.claim:not([data-verdict="holds"])') == 0
    choose(browser, "f-experiment", E6)
    assert shown(browser, "section.experiment") == 1
    assert shown(browser, f'.claims:not([data-experiment="{E6}"])') == 0
    choose(browser, "f-level", "STABLE")
    assert shown(browser, "tr.region") == shown(browser, 'tr.region[data-level="STABLE"]') == 1
    kept = f"#experiment={E6}&verdict=holds&level=STABLE"
    assert address(browser, kept)
    claims = shown(browser, ".claim")

    browser = opened(kept)
    assert (shown(browser, ".claim"), shown(browser, "tr.region")) == (claims, 1)
    browser.find_element("id", "clear").click()
    assert shown(browser, ".claim") == every
    assert address(browser, "")


def test_a_link_keeps_what_is_filtered(opened):
    browser = opened(f"#experiment={E6}")
    link(browser, STEADY).click()
    assert address(browser, f"#experiment={E6}&number={STEADY}")
    press(browser, "ESCAPE")
    assert shown(browser, "section.experiment") == 1


def test_a_number_is_found_by_what_is_printed(opened):
    browser = opened()
    text = ask(browser, "arguments[0].querySelector('.h').textContent", link(browser, STEADY))
    field = browser.find_element("id", "search")
    field.send_keys(f"{E6} default steady_ms")
    assert ask(browser, "document.querySelector('#found a').dataset.n") == STEADY
    field.clear()
    field.send_keys(text)
    assert STEADY in ask(browser, "[...document.querySelectorAll('#found a')].map(one => one.dataset.n)")
    press(browser, "ESCAPE")
    assert shown(browser, "#found") == 0
    field.clear()
    field.send_keys(f"{E6} default steady_ms")
    press(browser, "ENTER")
    assert is_open(browser)
    press(browser, "ESCAPE")
    assert focused(browser, "search")


def test_a_command_can_be_copied(opened):
    browser = opened(f"#number={STEADY}")
    button = browser.find_elements("css selector", "#chain section:last-child .command button")[1]
    button.click()
    assert settled(lambda: button.text, "Copied") == "Copied"


@pytest.mark.parametrize("fragment", ["", f"#number={STEADY}", "#claims", "#ledgers"])
def test_a_phone_scrolls_in_one_direction_only(opened, fragment):
    browser = opened(fragment, width=NARROW)
    assert ask(browser, "document.documentElement.scrollWidth") == NARROW
    assert ask(browser, "innerWidth") == NARROW
    if "number" in fragment:
        body = "document.getElementById('chain-body')"
        assert ask(browser, f"{body}.scrollWidth <= {body}.clientWidth")
        assert ask(browser, "document.getElementById('chain').getBoundingClientRect().width") == NARROW


def lightness(browser):
    """Of the ground and of the letters, from 0 to 255."""
    colours = ask(browser, "['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])")
    return [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in colours]


def test_dark_and_light_follow_the_system_until_the_button_says_otherwise(opened):
    ground, ink = lightness(opened())
    assert ground > 200 and ink < 60
    browser = opened(dark=True)
    ground, ink = lightness(browser)
    assert ground < 40 and ink > 200
    browser.find_element("id", "theme").click()
    ground, ink = lightness(browser)
    assert ground > 200 and ink < 60
    assert ask(browser, "document.getElementById('theme').textContent") == "Dark"
    ask(browser, "localStorage.clear()")


def test_a_text_with_script_in_it_stays_text_and_nothing_is_loaded(opened):
    browser = opened()
    browser.get_log("performance")
    browser.get_log("browser")
    browser = opened("#number=e3_graph_breaks.main.with_break.log_breaks")
    text = ask(browser, "document.body.textContent")
    assert recorded.HOSTILE in text
    assert ask(browser, "document.querySelectorAll('script').length") == 2
    pictures = ask(browser, "[...document.images].map(one => [one.src.slice(0, 19), one.naturalWidth > 0])")
    assert pictures and all(told == ["data:image/svg+xml;", True] for told in pictures)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    assert len([url for url in asked if url.startswith("file:")]) == 1
