"""The pages of `milepost view` in a real browser: they fit, they are readable, nothing acts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from proc.chromium import CHROMIUM, Page, browser
from unit.view.kit import Shelf

from milepost.launch.view.runs import Runs
from milepost.launch.view.server import ViewServer

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed"),
]
RUN: Final = "runs/lookup-1"
PAGES: Final = (
    "",
    RUN,
    f"{RUN}/steps/2",
    f"{RUN}/groups/g0",
    f"{RUN}/groups/odd",
    f"{RUN}/trajectories",
    f"{RUN}/trajectories/g0.1?colour=difference",
    f"{RUN}/trajectories/odd.0",
    f"{RUN}/trajectories/odd.1",
)
CONTRAST: Final = """(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((value) => value / 255)
      .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || element.closest("svg, select") || !element.checkVisibility()) continue;
    const pair = [light(getComputedStyle(element).color), light(below(element))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    found.push([Math.round(ratio * 100) / 100, element.className + ": " + element.textContent]);
  }
  return found.sort((a, b) => a[0] - b[0]).slice(0, 3);
})()"""
"""The least contrasts of text with what lies behind it, by the formula of WCAG 2."""
READABLE: Final = 4.5
"""WCAG 2, level AA."""


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    shelf = Shelf(tmp_path_factory.mktemp("pages") / "runs").write()
    shelf.copy("a-name-that-goes-on-and-on-without-a-place-to-break-it-0123456789", status="failed")
    return shelf


@pytest.fixture
async def site(shelf: Shelf) -> AsyncIterator[str]:
    async with ViewServer(Runs(shelf.folder)) as server:
        yield server.address


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with browser(tmp_path / "profile") as page:
        yield page


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light"), (800, "dark")])
async def test_pages_fit_the_window_can_be_read_and_ask_for_nothing_from_elsewhere(
    page: Page, site: str, width: int, scheme: str
) -> None:
    """On a phone and on a wide screen, by day and by night."""
    await page.shape(width, dark=scheme == "dark")
    for path in PAGES:
        await page.open(site + path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        for ratio, words in await page.evaluate(CONTRAST):
            assert ratio >= READABLE, f"{path}: {ratio} of {words}"
    assert page.complaints == []
    assert all(address.startswith(site) for address in page.requested)


async def test_nothing_that_a_model_wrote_acts(page: Page, site: str) -> None:
    for path in ("trajectories", "trajectories/odd.1", "groups/odd", "trajectories?text=document"):
        await page.open(f"{site}{RUN}/{path}")
        assert await page.evaluate("document.title.endsWith(' - milepost')")
        assert (
            await page.evaluate("document.querySelectorAll('img, script:not([src])').length") == 0
        )
        assert "<script>document" in await page.evaluate("document.body.innerText")
    assert page.complaints == []


async def test_tokens_take_the_colour_that_is_chosen_and_the_address_keeps_it(
    page: Page, site: str
) -> None:
    await page.open(f"{site}{RUN}/trajectories/g0.1")
    colours = (
        "new Set([...document.querySelectorAll('.tokens .t')]"
        ".map((t) => getComputedStyle(t).backgroundColor)).size"
    )
    legend = "[...document.querySelectorAll('.legend p')].filter((p) => p.checkVisibility()).length"
    counts = {}
    for name in ("version", "difference", "mask", "who"):
        await page.evaluate(f"document.querySelector('input[value={name}]').click()")
        counts[name] = await page.evaluate(colours)
        assert await page.evaluate(legend) == 1
        assert f"colour={name}" in await page.evaluate("location.search")
    # Four producers; three versions and none; both sides of zero and none; loss and none.
    assert (counts["who"], counts["version"], counts["mask"]) == (4, 4, 2)
    assert counts["difference"] > 3
    await page.open(await page.evaluate("location.href"))
    assert await page.evaluate("document.querySelector('input[value=who]').checked")


async def test_the_reader_goes_by_keys_and_says_what_a_token_is(page: Page, site: str) -> None:
    await page.open(f"{site}{RUN}/trajectories/g0.1")
    first = await page.evaluate("document.querySelector('.tokens .w3').id.slice(1)")
    await page.evaluate("document.querySelector('.tokens').focus()")
    for _ in range(int(first) + 1):
        await page.press("ArrowRight")
    words = await page.evaluate("document.getElementById('about').innerText")
    for name in (f"token {first}", "version 0", "engine -", "trainer -", "ratio m_t", "loss yes"):
        assert name in words
    await page.open(f"{site}{RUN}/trajectories/odd.0#mismatch")
    marked = await page.evaluate(
        "document.querySelectorAll('.tokens .x').length + '/' + "
        "document.getElementById('mismatch').nextSibling.classList.contains('x')"
    )
    assert marked == "10/true"


async def test_a_search_is_a_form_and_its_result_an_address(page: Page, site: str) -> None:
    await page.open(f"{site}{RUN}/trajectories")
    await page.press("/")
    assert await page.evaluate("document.activeElement.name") == "text"
    await page.evaluate(
        "document.querySelector('[name=reward_min]').value = '2';"
        "document.querySelector('[name=order]').value = '-reward'"
    )
    rows = "[...document.querySelectorAll('tbody th')].map((one) => one.innerText.trim())"
    await page.following("document.querySelector('form').requestSubmit()")
    assert await page.evaluate(rows) == ["g2.3", "g1.3", "g0.3", "g2.2", "g1.2", "g0.2"]
    await page.open(await page.evaluate("location.href"))
    assert len(await page.evaluate(rows)) == 6
