"""The page of the server in a browser: every tab answers, nothing is loaded from elsewhere, and texts stay texts.

It needs playwright and Chromium, and is skipped where they are missing. AXE names a file axe.min.js, by which
the page is checked for faults of accessibility too.
"""

import os
import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest

from pipelines.serve.tasks import TextFormat

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
AXE = os.environ.get("AXE")
READY = re.compile(r"ready: (http://127\.0\.0\.1:\d+)\n")
MARKUP = "<img src=x onerror=alert(1)> The mice had fever of BRCA1 👩‍⚕️ 𝒢out, 통풍 النقرس गठिया 痛风."
SERIOUS = """axe.run().then(result => result.violations.filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => one.id + ": " + one.nodes.map(node => node.target.join(" ")).join(", ")))"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]


@pytest.fixture
def address(start_forked, model, cross_encoder, tagger, linker, extractor, answerer, readmission_model, write_lines):
    rows = ["said,language,note", "a dog barks,en,1", "개가 짖는다,ko,2", '"<b>ein</b> hund",de,3']
    table = write_lines("faq.csv", rows)
    models = [f"words={model}", f"tags={tagger}", f"terms={linker}", f"relations={extractor}"]
    models += [f"answers={answerer}", f"risk={readmission_model}"]
    columns = ["--column", "said", "--show", "language", "--show", "note", "--truncate"]
    process, printed = start_forked("serve", *models, f"pairs={cross_encoder}", table, *columns, "--port", "0")
    while not (ready := READY.search(printed()[0])):
        assert process.is_alive(), printed()[1]
        time.sleep(0.1)
    return ready[1]


@contextmanager
def browser_page(address, width, scheme):
    """A page whose errors and requests are collected, `(page, errors, requests)`."""
    errors, requests = [], []
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(120_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.goto(address)
        page.wait_for_selector("[role=tab]")
        yield page, errors, requests
        browser.close()


def ask(page, tab, **fields):
    """The panel of a tab, with the answer to a request of these fields."""
    page.get_by_role("tab", name=tab).click()
    panel = page.locator("[role=tabpanel]:not([hidden])")
    for name, value in fields.items():
        panel.locator(f"[name={name}]").fill(value)
    if panel.locator("button.main").count():
        panel.locator("button.main").click()
        panel.locator("details, .error").first.wait_for()
    assert panel.locator(".error").count() == 0, panel.inner_text()
    return panel


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_tab_answers_in_a_browser(address, width, scheme):
    with browser_page(address, width, scheme) as (page, errors, requests):
        search = ask(page, "Search", query="<b>EIN</b> Hund 짖는다")
        hits = search.locator(".hits li").all_inner_texts()
        assert len(hits) == 3
        [german] = [hit for hit in hits if "<b>ein</b> hund" in hit]
        assert re.search(r"note\s*3\s*cosine \d\.\d{3} · German · line 4", german)
        assert sorted(search.locator("mark").all_inner_texts()) == ["ein", "hund", "짖는다"]
        assert search.locator("bdi[lang=ko]").first.inner_text() == "개가 짖는다"
        similarity = ask(page, "Similarity", first="a dog barks\nein hund", second="ein hund\n개가 짖는다")
        assert similarity.locator("tbody tr").count() == 2
        assert "1.000" in similarity.inner_text()
        entities = ask(page, "Entities", text=MARKUP)
        assert "Relations" in entities.locator("h2").all_inner_texts()
        shown = entities.locator(".text")
        shown.evaluate("node => node.querySelectorAll('mark small').forEach(type => type.remove())")
        assert shown.inner_text() == MARKUP
        for name in sorted({*get_args(TextFormat)} - {"brat", "triples"}):
            with page.expect_download() as download:
                entities.get_by_role("button", name=name, exact=True).click()
            assert "BRCA1" in Path(download.value.path()).read_text("utf-8"), name
        saved = []
        page.on("download", lambda file: saved.append(file.suggested_filename))
        with page.expect_download(lambda file: file.suggested_filename == "entities.txt"):
            entities.get_by_role("button", name="brat", exact=True).click()
        assert saved == ["entities.ann", "entities.txt"]
        buttons = entities.locator(".row button").all_inner_texts()
        assert sorted(buttons) == sorted(get_args(TextFormat))
        ranking = ask(page, "Ranking", query="a dog", documents="a dog barks\n<b>ein</b> hund")
        assert sorted(ranking.locator(".hit").all_inner_texts()) == ["<b>ein</b> hund", "a dog barks"]
        answer = ask(page, "Answers", question="Who had fever?", context=MARKUP)
        assert answer.locator(".text").inner_text() == MARKUP
        risk = ask(page, "Readmission", notes="Plan:\nthe wound is dry. <b>qzx</b> slept well.")
        assert "no medical device" in risk.inner_text()
        assert re.search(r"\d+\.\d\s%", risk.locator(".score").inner_text())
        about = page.locator("#panels").inner_text
        page.get_by_role("tab", name="About").click()
        assert all(words in about() for words in ("A cross-encoder: it reads", "no medical device", "digest"))
        page.get_by_role("tab", name="About").focus()
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", name="Search").get_attribute("aria-selected") == "true"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert errors == []
        assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.skipif(AXE is None, reason="AXE names no axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_tab_has_a_serious_fault_of_accessibility(address, scheme):
    with browser_page(address, 390, scheme) as (page, _, _):
        for tab in ("Search", "Similarity", "Ranking", "Entities", "Answers", "Readmission", "About"):
            ask(page, tab)
            page.evaluate(Path(AXE).read_text("utf-8"))
            assert page.evaluate(SERIOUS) == [], tab
