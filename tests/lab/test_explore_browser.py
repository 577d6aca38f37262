"""Notebook 00 in a real browser: JupyterLab, its widgets, what they show when they are clicked. `make test-browser`.

LFO_CHROMIUM names a Chromium that is installed already; LFO_SCREENSHOTS a folder for pictures of what was seen.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "00_explore.ipynb"
PATIENCE = 900  # seconds, for a busy machine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """JupyterLab on a copy of the notebook, with settings of its own."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copy(NOTEBOOK, home)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--ServerApp.root_dir={home}", f"--port={port}", "--IdentityProvider.token=", "--no-browser"]
    places = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "RUNTIME")}
    settings = {"LFO_PROFILE": "smoke", "JUPYTER_PREFER_ENV_PATH": "1", **places}
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", *options]
    with (home / "log.txt").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await(f"http://127.0.0.1:{port}/api", server)
        yield f"http://127.0.0.1:{port}/lab/tree/{NOTEBOOK.name}"
    finally:
        server.terminate()
        server.wait()


def _await(url: str, server: subprocess.Popen) -> None:
    for _ in range(PATIENCE):
        assert server.poll() is None, "JupyterLab ended; see log.txt"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"{url} does not answer")


@pytest.fixture(scope="module")
def page(address):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = {"executable_path": os.environ.get("LFO_CHROMIUM") or shutil.which("chromium")}
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]  # as containers need it
        browser = playwright.chromium.launch(**options, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(address, wait_until="commit")
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(state="attached")
        run_all(page)
        page.locator(".explore-form table").wait_for()
        yield page
        browser.close()


def run_all(page) -> None:
    """By the menu; once more where it was closed under the pointer, as it is while JupyterLab is still being put up."""
    from playwright.sync_api import TimeoutError as NothingBegun

    for _ in range(PATIENCE // 60):
        page.keyboard.press("Escape")
        page.get_by_role("menuitem", name="Run", exact=True).click()
        with contextlib.suppress(NothingBegun):
            page.get_by_role("menuitem", name=re.compile("^Run All Cells")).click(timeout=30_000)
            page.locator(".jp-InputPrompt", has_text=re.compile(r"[*\d]")).first.wait_for(timeout=30_000)
            return
    raise AssertionError("no cell was run")


def pictured(page, name: str) -> None:
    if folder := os.environ.get("LFO_SCREENSHOTS"):
        page.add_style_tag(content=".Toastify { display: none }")  # JupyterLab asks whether one wants its news
        page.evaluate("document.querySelector('.widget-dropdown').scrollIntoView()")
        page.screenshot(path=Path(folder) / f"{name}.png")


def rows_of(page) -> dict[str, list[str]]:
    """The table of forms: the cells after the first, by who said the note."""
    rows = page.locator(".explore-form tbody tr").all()
    cells = [row.locator("td").all_inner_texts() for row in rows]
    return {first: rest for first, *rest in cells}


def test_the_policy_changes_its_form_when_it_is_told_the_truth(page):
    assert set(rows_of(page)) == {"nobody"}
    page.get_by_role("button", name="truth", exact=True).click()
    page.locator(".explore-form td", has_text=re.compile("^truth$")).wait_for()
    told = rows_of(page)
    assert set(told) == {"nobody", "truth"}
    assert told["nobody"][0] == "-" and "truth" in told["truth"][0], "who is told nothing reads no note"
    assert told["nobody"][1] != told["truth"][1], "the form is the same"
    assert told["truth"][2] == "yes"


def test_it_shows_tokens_by_role_and_advantages(page):
    rollouts = page.locator(".explore-rollouts")
    assert rollouts.locator("mark.action").count() and rollouts.locator("mark.note").count()
    assert "advantage" in rollouts.inner_text()
    assert page.locator(".explore-beside th").all_inner_texts() in (
        ["gave", "said", "predicted", "right"],
        ["world model"],
    )
    pictured(page, "explore_watch")


def test_another_world_begins_anew(page):
    world = page.locator(".widget-dropdown select").first
    assert world.locator("option").all_inner_texts()[:2] == ["0", "1"]
    before = page.locator(".explore-rollouts").inner_text()
    world.select_option("1")
    page.wait_for_function("shown => document.querySelector('.explore-rollouts').innerText != shown", arg=before)
    assert set(rows_of(page)) == {"nobody"}


def test_one_can_play_oneself(page):
    page.get_by_role("tab", name="play yourself").click()
    hand, line = page.locator(".explore-hand"), page.get_by_placeholder("Type: search")
    line.fill("ask everything")
    line.press("Enter")
    hand.get_by_text("'everything' is no field", exact=False).wait_for()
    line.fill("hang up")
    line.press("Enter")
    hand.get_by_text("You hung up", exact=False).wait_for()
    pictured(page, "explore_play")
