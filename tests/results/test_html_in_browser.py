"""The HTML report in a real Chromium, without a window and without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_runs
import pytest

from pytest_promptfmt.profiles.tokenizer_sources import archetype_folder

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright from the package index")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: apt-get install chromium")

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "</script><script>window.broken=1</script><img src=x onerror='window.broken=2'>\\u202Ereversed\\0"

LONG = "\\n".join(f"line {number}" for number in range(20))


def write(folder: Path, name: str, text: str, more: str = "output_type: generate_until\n") -> None:
    file = folder / "tasks" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'task: {name}\ntest_split: test\n{more}doc_to_text: "{text}"\ndoc_to_target: answer\n', "utf-8")


def run(folder: Path, *options: str) -> None:
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = forked_runs.run("pytest", "--promptfmt", "-q", *options, folder=folder, environment=environment)
    assert done.returncode in (0, 1), done.stdout + done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 60 tasks: one has changed, one has a mistake, one is hostile, two profiles have tokenizers."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    tokenizers = "gpt2: {tokenizer: 'archetype:bytelevel-gpt2'}, t5: {tokenizer: 'archetype:unigram-t5'}"
    (folder / "promptfmt.yaml").write_text(f"profiles: {{{tokenizers}}}\n", "utf-8")
    for number in range(54):
        write(folder, f"t{number:02}", "Q: {{question}}\\nA:")
    write(folder, "changed", "Question: {{question}}\\nAnswer:")
    choices = 'output_type: multiple_choice\ndoc_to_choice: ["yes", "no"]\n'
    write(folder, "choices", "Q: {{question}}\\nA:", choices)
    write(folder, "hostile", HOSTILE)
    write(folder, "long", LONG)
    write(folder, "long_too", LONG)
    run(folder, "--snapshot-update")
    write(folder, "changed", "Question: {{question}}\\nAnswer: ", choices)
    write(folder, "hostile", HOSTILE + "changed")
    write(folder, "long", LONG + " now")
    write(folder, "long_too", LONG + " now")
    write(folder, "mistaken", "Q: {{question}}\\nA: ", choices)
    run(folder, "--snapshot-update", "tasks/mistaken.yaml")
    run(folder, "--promptfmt-html=report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        context = started.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")), executable_path=CHROMIUM, args=ARGUMENTS, headless=True
        )
        yield context
        context.close()


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    page = browser.new_page()
    troubles: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_selector("#detail[data-item]")
    yield page
    page.close()
    assert troubles == []
    assert requests == [report.as_uri()], "one file, and nothing is loaded"


def find(page: Any, words: str) -> str:
    """Search, choose the first that is found, and return what is shown of it."""
    page.fill("#search", words)
    page.focus("#list")
    page.keyboard.press("Home")
    name = words.split()[0].removesuffix(".yaml")
    page.wait_for_function("name => document.querySelector('#detail h2').textContent.startsWith(name)", arg=name)
    return str(page.inner_text("#detail"))


def test_what_changed_comes_first_and_is_shown_side_by_side(page: Any) -> None:
    assert page.inner_text(".item[aria-selected=true]").startswith("long [plain] and 5 more")
    find(page, "changed.yaml plain")
    assert page.inner_text(".diff .removed") == "| Answer:⟨end⟩", "the blank behind the bar is not of the prompt"
    assert page.inner_text(".diff .added") == "| Answer:·⟨end⟩"
    assert page.inner_text(".diff ins").strip() == "·"


def test_filters_and_search_narrow_the_list_and_say_how_far(page: Any) -> None:
    once = page.inner_text("#count").removesuffix(" prompts").split(" of ")
    page.uncheck("#once")
    everything = int(page.inner_text("#count").split()[0])
    assert everything == 60 * 3
    assert int(once[0]) < everything == int(once[1]), "each change is listed once"
    page.select_option("#profile", "gpt2")
    assert page.inner_text("#count") == f"60 of {everything} prompts"
    page.fill("#search", "t0")
    assert page.inner_text("#count") == f"10 of {everything} prompts"
    page.keyboard.press("Escape")
    assert page.inner_text("#count") == f"{everything} of {everything} prompts"
    page.select_option("#category", "changed")
    assert page.inner_text("#count") == f"12 of {everything} prompts"
    page.keyboard.press("Escape")
    page.click("#summary button.bad")
    assert page.inner_text("#summary button.bad >> nth=0") == "12 changed"
    assert page.inner_text("#count") == f"12 of {everything} prompts"
    page.keyboard.press("Escape")
    page.select_option("#code", "PF201")
    assert "choices" not in page.inner_text("#space")
    assert "changed" in page.inner_text("#space")


def test_long_stretches_without_a_change_are_folded_and_come_back(page: Any) -> None:
    shown = find(page, "long plain")
    assert "line·5" not in shown.partition("doc 1")[2].partition("doc 2")[0]
    page.click("text=… 17 unchanged lines")
    assert "line·5" in page.inner_text(".diff >> nth=0")


def test_what_changed_alike_is_one_click_away(page: Any) -> None:
    find(page, "long plain")
    page.keyboard.press("Escape")
    page.click("#detail button:has-text('show all 6')")
    assert page.inner_text("#count").startswith("6 of ")
    assert page.inner_text("#summary code") == "pytest --promptfmt -q --snapshot-update"


def test_a_mistake_that_a_check_found_is_not_called_passed(page: Any) -> None:
    page.fill("#search", "mistaken")
    told = page.locator(".item .badge").all_inner_texts()
    page.focus("#list")
    page.keyboard.press("Home")
    page.wait_for_selector(".finding code")
    assert "A:··" in page.inner_text(".finding code"), "what is wrong with it can be seen"
    assert sorted(told) == ["finding", "passed", "passed"], "of the prompts of three profiles the first has it"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("words", ["changed.yaml plain", "choices gpt2", "mistaken plain", "t00 plain"])
def test_axe_finds_nothing_that_keeps_somebody_out(page: Any, theme: str, words: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.base", reason="needs axe-playwright-python")
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    find(page, words)
    page.evaluate(axe.AXE_FILE_PATH.read_text("utf-8"))
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []


def test_the_list_keeps_only_what_is_in_view(page: Any) -> None:
    page.uncheck("#once")
    assert page.locator(".item").count() < 60
    page.focus("#list")
    page.keyboard.press("End")
    page.wait_for_selector(".item[aria-posinset='180'][aria-selected=true]")
    assert page.locator(".item").count() < 60


def test_hostile_text_stays_text(page: Any) -> None:
    shown = find(page, "hostile plain")
    assert page.evaluate("window.broken") is None
    assert "</script><script>window.broken=1</script><img·src=x·onerror='window.broken=2'>" in shown
    assert "⟨U+202E⟩reversed⟨U+0000⟩" in shown
    assert page.locator("#detail img, #detail script").count() == 0


def test_tokens_and_the_choices_of_every_tokenizer_are_shown(page: Any) -> None:
    find(page, "choices gpt2")
    heads = page.locator("#detail table th").all_inner_texts()
    assert (heads[:2], set(heads[2:])) == (["doc", "choice"], {"gpt2", "t5"})
    assert page.locator("#detail .token").count() > 0
    page.check("#tokens")
    page.wait_for_selector("pre .token")
    assert page.inner_text("pre").replace("\n", "").startswith("Q")
    page.check("#ids")
    page.wait_for_selector("pre .token small")


def test_the_keyboard_reaches_everything_and_the_theme_can_be_turned(page: Any) -> None:
    page.focus("#list")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "list"
    first = page.inner_text("#detail h2")
    page.keyboard.press("j")
    page.wait_for_function("first => document.querySelector('#detail h2').textContent !== first", arg=first)
    assert page.get_attribute("#list", "aria-activedescendant") == "row-1"
    colour = "getComputedStyle(document.body).backgroundColor"
    page.focus("#detail")
    before = page.inner_text("#detail h2"), page.evaluate("document.getElementById('detail').scrollTop")
    page.keyboard.press("End")
    page.wait_for_function("at => document.getElementById('detail').scrollTop > at", arg=before[1])
    assert page.inner_text("#detail h2") == before[0], "what is read is scrolled, not changed"
    light = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) != light


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_colour_stands_out_from_its_background(page: Any, theme: str) -> None:
    """WCAG 2.2 asks for a contrast of 4.5 to 1."""
    ratios = page.evaluate(
        """theme => {
            document.documentElement.dataset.theme = theme;
            const style = getComputedStyle(document.documentElement);
            const light = name => {
              const hex = style.getPropertyValue(name).trim();
              const parts = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16) / 255)
                .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
              return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
            };
            const ratio = (one, other) => {
              const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
              return (high + 0.05) / (low + 0.05);
            };
            const found = {};
            for (const text of ['--text', '--dim', '--bad', '--good', '--system', '--description', '--question',
                                '--answer', '--prefix', '--delimiter', '--template'])
              for (const back of ['--back', '--panel']) found[text + ' on ' + back] = ratio(text, back);
            for (const back of ['--removed', '--added', '--removed-part', '--added-part', '--chip', '--chip-2',
                                '--chosen'])
              found['--text on ' + back] = ratio('--text', back);
            return found;
        }""",
        theme,
    )
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}


def test_on_a_phone_there_is_one_column_and_nothing_is_wider_than_the_screen(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(report.as_uri())
    page.wait_for_selector("#detail[data-item]")
    assert not page.is_visible("#search"), "filters are folded"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    before, after = (page.locator(f".diff .{kind}").first.bounding_box() for kind in ("removed", "added"))
    assert before["y"] + before["height"] <= after["y"], "before stands above after"
    assert page.locator(".diff .same td + td").first.is_hidden(), "an unchanged line is shown once"
    page.close()


TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}
{%- else %}{{ m.content if m.role != 'system' }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_template_shows_its_conversations_by_name_and_what_they_find(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    shutil.copyfile(archetype_folder("bytelevel-qwen") / "tokenizer.json", tmp_path / "tokenizer.json")
    run(tmp_path, "--snapshot-update", "--promptfmt-html=report.html")
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#detail[data-item]")
    assert "PF433 the system text is lost" in page.inner_text("#detail")
    assert {"conversation system", "conversation turns"} <= {*page.locator("#detail h3").all_text_contents()}
    assert page.locator(".prompt .question").first.inner_text().replace("·", " ").startswith("Which")
    assert page.locator(".prompt .answer.learnt").count() >= 1
    assert page.locator(".prompt .template.learnt", has_text="<|im_end|>").count() >= 1
    page.check("#tokens")
    page.wait_for_selector(".prompt .token")
    page.close()
