"""What a person sees of how a model fits on cards: a table for the terminal, and a page with the
frontier of each card."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from tightfit.schemas.card_fit import WAYS, CardFit, ModelFit, WayFit
from tightfit.stages.report.axes import fit_scale, staircase_path
from tightfit.stages.report.formatting import format_bytes, format_ratio, trim_decimals
from tightfit.stages.report.tradeoff_plot import BudgetLine, PlanMark, Series, TradeoffPlot

TABLE_COLUMNS = 80
_INKS = {"plan": 1, "checkpoint": 3, "eager": 0, "offload": 2}
_HEADS = ("card", "way", "fits", "bytes of card", "slowdown", "largest batch")
_MAX_BUDGET_DISTANCE = 2.0
"""How far above the bytes of all ways the memory of a card is shown, relative to these."""


@dataclass(frozen=True)
class CardPanel:
    """A card: its ways as rows of text, what is certified, and its frontier."""

    name: str
    memory: str
    fits: bool
    status: str
    rows: list[list[str]]
    limits: list[str]
    flags: list[tuple[str, str]]
    plot: TradeoffPlot


@dataclass(frozen=True)
class FitPage:
    """Everything of the page."""

    name: str
    about: list[str]
    notes: list[str]
    heads: list[str]
    panels: list[CardPanel]


def build_fit_page(fit: ModelFit) -> FitPage:
    """The page of how a model fits on cards."""
    panels = [
        CardPanel(
            name=card.card,
            memory=format_bytes(card.memory),
            fits=any(way.fits for way in card.ways),
            status=_format_status(card),
            rows=[_way_cells(way) for way in card.ways],
            limits=_describe_limits(card),
            flags=[(each.tool, each.flags) for each in card.flags],
            plot=_build_plot(card),
        )
        for card in fit.cards
    ]
    about = [*_describe_model(fit), *_describe_breaks(fit)]
    return FitPage(fit.model, about, _list_notes(fit), list(_HEADS[1:]), panels)


def format_fit(fit: ModelFit) -> str:
    """How a model fits on cards, as text of at most `TABLE_COLUMNS` columns."""
    lines = [fit.model, *(f"  {line}" for line in _describe_model(fit))]
    for text in _describe_breaks(fit):
        lines += _wrap_text(text, 2)
    lines.append("")
    rows = [[card.card if not place else "", *_way_cells(way)]
            for card in fit.cards for place, way in enumerate(card.ways)]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    lines.append(_format_row(_HEADS, widths))
    for place, card in enumerate(fit.cards):
        lines += [_format_row(row, widths) for row in rows[len(WAYS) * place :][: len(WAYS)]]
        said = [*_describe_limits(card), *(f"{each.tool}: {each.flags}" for each in card.flags)]
        for text in said:
            lines += _wrap_text(text, widths[0] + 2)
        lines.append("")
    for note in _list_notes(fit):
        lines += _wrap_text(note, 0)
    return "\n".join(lines)


def _wrap_text(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        TABLE_COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _format_row(cells: list[str] | tuple[str, ...], widths: list[int]) -> str:
    names, numbers = cells[:3], cells[3:]
    left = [cell.ljust(width) for cell, width in zip(names, widths, strict=False)]
    right = [cell.rjust(width) for cell, width in zip(numbers, widths[3:], strict=True)]
    return "  ".join([*left, *right]).rstrip()


def _describe_model(fit: ModelFit) -> list[str]:
    tokens = "" if fit.tokens is None else f" x {fit.tokens:,} tokens"
    large = fit.parameters >= 10**8
    count = f"{fit.parameters / 1e9:,.2f} billion" if large else f"{fit.parameters:,}"
    return [
        f"{count} parameters, a batch of {fit.batch:,}{tokens}",
        f"parameters {format_bytes(fit.parameter_bytes)}, gradients "
        f"{format_bytes(fit.gradient_bytes)}, states of {fit.optimizer} "
        f"{format_bytes(fit.state_bytes)}",
    ]


def _describe_breaks(fit: ModelFit) -> list[str]:
    """Where the graph breaks, and what all figures rest on there."""
    if not fit.assumptions:
        return []
    places = "; ".join(f"{place}: {assumed}" for place, assumed in fit.assumptions.items())
    said = "The graph breaks where data decide what runs, and all figures, certified ones too, are"
    return [f"{said} of one path ({places})."]


def _format_status(card: CardFit) -> str:
    """Whether the step fits on a card, and how at best."""
    way = next((way for way in card.ways if way.fits), None)
    if way is None:
        return "does not fit"
    return "fits as it is" if way.way == "eager" else f"fits with {WAYS[way.way]}"


def _way_cells(way: WayFit) -> list[str]:
    slowdown = format_ratio(way.slowdown)
    if way.most_slowdown is not None:
        slowdown = f"{way.slowdown:.2f}-{format_ratio(way.most_slowdown)}"
    batch = "-" if way.largest_batch is None else f"{way.largest_batch:,}"
    return [WAYS[way.way], "yes" if way.fits else "no", format_bytes(way.bytes), slowdown, batch]


def _describe_limits(card: CardFit) -> list[str]:
    """What is proven of a card."""
    least, offload = format_bytes(card.least_bytes), format_bytes(card.least_offload_bytes)
    said = [f"Certified: no plan below {least}, with offload none below {offload}."]
    away, kept = card.way("offload"), [card.way(name).fits for name in ("eager", "checkpoint")]
    if not away.fits and away.bytes <= card.memory:
        said.append(f"Offload takes {format_bytes(away.host_bytes)} of the host, which has less.")
    if card.way("plan").fits and not any(kept):
        said.append("Only a plan keeps all on the card (tightfit.plan, budget=...).")
    if card.recomputed_layers and not card.way("eager").fits:
        said.append(f"Checkpoints of {card.recomputed_layers} layers are enough. Closest flags:")
    elif card.flags:
        said.append("Closest flags:" if any(kept) else "Closest flags, with offload:")
    return said


def _list_notes(fit: ModelFit) -> list[str]:
    notes = [
        "Bytes of the card are what PyTorch's allocator reserves for parameters, states and the "
        "step, with offload what is requested. Workspaces of libraries and CUDA's context come on "
        "top. Where a way does not fit, they are the least known for it.",
        "Slowdowns are predicted from peak figures of the card, relative to the step as it is. "
        "Offload keeps parameters and states in host memory; the first number is for transfers "
        "and updates that all overlap computation, the second for none that does.",
    ]
    if fit.layers:
        said = " and ".join(map(str, fit.traced_layers))
        notes.append(
            f"The graph of {fit.layers} equal layers was found from traces with {said} of them."
        )
    if any(way.largest_batch is not None for card in fit.cards for way in card.ways):
        notes.append(
            "Sizes at other batches lie on straight lines through those of two traces; a largest "
            "batch is of the way's plan of the fewest bytes, and fits as counted here."
        )
    return notes


def _build_plot(card: CardFit) -> TradeoffPlot:
    """The frontier of a card beside the other ways, with the memory of the card as the budget if it
    is not far above all of them."""
    points = sorted((point.bytes, point.slowdown) for point in card.frontier)
    marks = [(way.bytes, way.slowdown) for way in card.ways]
    places = [*points, *marks]
    sizes = [*(size for size, _ in places), card.least_bytes]
    shown = [card.memory] if card.memory <= _MAX_BUDGET_DISTANCE * max(sizes) else []
    x = fit_scale([*sizes, *shown], 0.04)
    y = fit_scale([1.0, *(height for _, height in places)], 0.06, flipped=True)
    series = []
    for way in sorted(card.ways, key=lambda way: way.way != "plan"):
        name, own = WAYS[way.way], points if way.way == "plan" else []
        mark = f"{name}\n{format_bytes(way.bytes)}, {_way_cells(way)[3]} the step as it is"
        series.append(
            Series(
                strategy=name,
                ink=_INKS[way.way],
                baseline=False,
                path=staircase_path([(x.at(size), y.at(time)) for size, time in own]),
                predicted=[
                    PlanMark(x.at(s), y.at(t), f"plan\n{format_bytes(s)}, {format_ratio(t)}")
                    for s, t in own
                ],
                measured=[PlanMark(x.at(way.bytes), y.at(way.slowdown), mark)],
            )
        )
    size = format_bytes(card.memory)
    return TradeoffPlot(
        series=series,
        budgets=[BudgetLine(x.at(each), card.card, f"{card.card}: {size}", 0) for each in shown],
        x_ticks=x.ticks(8, lambda bytes_: trim_decimals(format_bytes(bytes_))),
        y_ticks=y.ticks(8, format_ratio),
        floor=x.at(card.least_bytes),
        floor_tip=f"No plan without offload fits below {format_bytes(card.least_bytes)}",
        unit=y.at(1.0),
        label_rows=1,
        ran=False,
    )
