"""Pages of results on disk as tests look at them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from tightfit.stages.report.index_page import build_run_index
from tightfit.stages.report.load import load_model_results, load_run_results
from tightfit.stages.report.model_page import build_model_page
from tightfit.stages.report.render import render_index, render_model


class Page(HTMLParser):
    """Tags with their attributes, ids, and the text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.text += data

    def all(self, tag: str, css_class: str = "") -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.tags
            if name == tag
            and (not css_class or css_class in (attributes.get("class") or "").split())
        ]


def page_of(folder: Path) -> tuple[str, Page]:
    html = render_model(build_model_page(load_model_results(folder)))
    return html, Page(html)


def index_of(folder: Path) -> tuple[str, Page]:
    html = render_index(build_run_index(load_run_results(folder)))
    return html, Page(html)


def write_error(folder: Path, message: str, stage: str = "stage") -> None:
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / f"{stage}.txt").write_text(message)
