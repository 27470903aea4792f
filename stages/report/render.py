"""Turns view models into pages: one file each, with styles and script inside and nothing fetched.

Everything from artifacts is escaped by the templates. A content security policy in the page allows
the page's own script, by its digest, and no other, and forbids any network use.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tightfit.stages.report import formatting
from tightfit.stages.report.chain_page import ChainPage
from tightfit.stages.report.fit_page import FitPage
from tightfit.stages.report.index_page import RunIndex
from tightfit.stages.report.model_page import ModelPage
from tightfit.stages.report.pipeline_page import PipelinePage

TEMPLATES = Path(__file__).resolve().parents[2] / "reports"
"""Templates, styles and script of the pages."""


def render_model(page: ModelPage) -> str:
    """The HTML of a model's page."""
    return _render("model.html", page=page)


def render_pipeline(page: PipelinePage) -> str:
    """The HTML of a pipeline's page."""
    return _render("pipeline.html", page=page)


def render_chain(page: ChainPage) -> str:
    """The HTML of a chain's page."""
    return _render("chain.html", page=page)


def render_fit(page: FitPage) -> str:
    """The HTML of how a model fits on cards."""
    return _render("fit.html", page=page)


def render_index(index: RunIndex) -> str:
    """The HTML of a run's index."""
    return _render("index.html", index=index)


_FILTERS: dict[str, Callable[..., str]] = {
    "size": formatting.format_bytes,
    "exact": formatting.format_exact_bytes,
    "duration": formatting.format_duration,
    "ratio": formatting.format_ratio,
    "percent": formatting.format_percent,
    "count": formatting.format_count,
    "listing": formatting.format_list,
    "operator": formatting.short_op_name,
}
"""The filters of templates."""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    environment.filters["short"] = lambda number: f"{number:.3f}".rstrip("0").rstrip(".")
    return environment


def _render(template: str, **values: Any) -> str:
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _environment().get_template(template)
    return page.render(
        script=Markup(script),
        style=Markup(style),
        script_digest=f"sha256-{digest}",
        **values,
    )
