"""The shell of every page that this project writes: one file, no script, nothing fetched, escaped by construction.

`h` builds elements. A child that is an `Html` is markup; any other child is text and is escaped. So a prompt, a reply
or a path can only ever become text, and a page that forgets to escape cannot be written by accident.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Node = Html | str | int | float | None
_VOID = frozenset({"br", "hr", "meta", "wbr"})


def h(name: str, /, *children: Node, **attributes: str | None) -> Html:
    """An element. `cls` is the class; `_` in an attribute's name becomes `-`; None (child or attribute) is left out."""
    pairs = "".join(
        f' {"class" if key == "cls" else key.replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{pairs}>")
    return Html(f"<{name}{pairs}>{join(children)}</{name}>")


def join(children: Iterable[Node]) -> Html:
    """Children one after the other, escaped where they are text."""
    return Html("".join(c if isinstance(c, Html) else html.escape(str(c)) for c in children if c is not None))


def table(head: Sequence[str], rows: Iterable[Sequence[Node]], *, numeric: int = 0) -> Html:
    """A table that scrolls sideways by itself on a narrow screen; the last `numeric` columns are aligned as numbers."""
    first = len(head) - numeric

    def cells(name: str, row: Sequence[Node]) -> Html:
        return join(h(name, cell, cls="num" if i >= first else None) for i, cell in enumerate(row))

    body = join(h("tr", cells("td", row)) for row in rows)
    return h("div", h("table", h("thead", h("tr", cells("th", head))), h("tbody", body)), cls="scroll")


def facts(pairs: Iterable[tuple[str, Node]]) -> Html:
    """Names and what they are."""
    return h("dl", *(h("div", h("dt", name), h("dd", value)) for name, value in pairs))


def section(title: str, *children: Node, note: str | None = None) -> Html:
    return h("section", h("h2", title), h("p", note, cls="note") if note else None, *children)


def details(summary: Node, *children: Node, opened: bool = False) -> Html:
    return h("details", h("summary", summary), *children, **({"open": "open"} if opened else {}))


def breakable(name: str) -> Html:
    """A name such as rollout/rloo/no_signal_frac, which may break after its slashes and underscores."""
    return join(part for piece in re.split(r"(?<=[/_])", name) for part in (piece, h("wbr")))


def command(text: str) -> Html:
    """A line to copy: one tap or click selects all of it."""
    return h("pre", h("code", text), cls="command")


def short(digest: str) -> Html:
    """A digest in 12 signs, the whole of it in the tooltip."""
    return h("code", digest[:12], title=digest)


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits; a value that is not finite is called diverged, one that is not there an en dash."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "diverged"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 5 or magnitude < -4:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}".replace("-", "−")


def percent(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{100 * value:.1f} %".replace("-", "−")


def seconds(value: float) -> str:
    """A duration as a person says it."""
    if not math.isfinite(value):
        return number(value)
    if round(value, 3) < 1:
        return f"{1000 * value:.0f} ms"
    if round(value, 1) < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def page(title: str, *body: Node, kicker: str, lead: Node = None, foot: str) -> str:
    """The whole document. kicker: the small line above the title; lead: what stands under it; foot: the last line."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("meta", name="referrer", content="no-referrer"),
        # Even if a reply could smuggle markup past the escaping, a browser would run and fetch nothing of it.
        h(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        ),
        h("title", title),
        h("style", Html(STYLE)),
    )
    header = h("header", h("p", kicker, cls="kicker"), h("h1", title.replace(" %", "\u00a0%")), lead)
    document = h("html", head, h("body", header, h("main", *body), h("footer", foot)), lang="en")
    return f"<!doctype html>\n{document}\n"


STYLE = """
:root{color-scheme:light dark;
--bg:#faf9f6;--card:#fff;--ink:#1f2328;--soft:#5c636b;--line:#e3e0d8;--grid:#e9e6df;--code:#f3f1ec;
--after:#0f766e;--before:#9a8c78;--train:#c2762b;--band:#0f766e;--good:#137a4b;--bad:#b3362b;--warn:#9a6700;
--goodbg:#e2f3ea;--badbg:#fbe9e6;--warnbg:#fbf1d9}
@media(prefers-color-scheme:dark){:root{
--bg:#14171a;--card:#1c2024;--ink:#e8e6e1;--soft:#a0a6ad;--line:#2f353b;--grid:#2b3036;--code:#252a2f;
--after:#4fc3b5;--before:#a89b88;--train:#e3a262;--band:#4fc3b5;--good:#63c796;--bad:#f08a7e;--warn:#e2b95a;
--goodbg:#16352a;--badbg:#3d211f;--warnbg:#382d14}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:2.5rem 1.25rem 3rem;background:var(--bg);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
-webkit-text-size-adjust:100%}
.kicker{margin:0;color:var(--soft);font-size:.85rem;letter-spacing:.02em}
h1{margin:.3rem 0 .6rem;font-size:clamp(1.6rem,4.6vw,2.4rem);line-height:1.18;letter-spacing:-.015em;text-wrap:balance}
h2{margin:0 0 .2rem;font-size:1.2rem;letter-spacing:-.005em}
h3{margin:0 0 .4rem;font-size:.95rem}figure+h3,figure+div h3{margin-top:1.1rem}
p{margin:.4rem 0}
.lead{font-size:1.05rem;max-width:46rem}
.note{color:var(--soft);font-size:.9rem;margin:0 0 1rem;max-width:46rem}
section,.hero{margin:1.25rem 0;padding:1.4rem 1.5rem;background:var(--card);
border:1px solid var(--line);border-radius:14px}
.badge{display:inline-block;padding:.05rem .6rem;border-radius:99px;font-size:.8rem;font-weight:600;
background:var(--code);color:var(--soft);white-space:nowrap}
.badge.good{background:var(--goodbg);color:var(--good)}.badge.bad{background:var(--badbg);color:var(--bad)}
.badge.warn{background:var(--warnbg);color:var(--warn)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:1rem;margin:0 0 1rem}
.tile b{display:block;white-space:nowrap;font-size:1.9rem;line-height:1.2;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.tile span{display:block;color:var(--soft);font-size:.84rem}
.tile.after b{color:var(--after)}
figure{margin:0}figure svg{display:block;width:100%;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}svg text{font-family:inherit!important}
figcaption{color:var(--soft);font-size:.84rem}
.narrow{display:none}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(15.5rem,1fr));gap:1.4rem 1.6rem}
.grid figcaption{display:flex;justify-content:space-between;gap:.6rem;align-items:baseline;margin-bottom:.1rem}
.grid figcaption b{color:var(--ink);font-size:.88rem;overflow-wrap:anywhere}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;color:var(--soft);font-size:.84rem;margin:.2rem 0 .4rem}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:99px;margin-right:.4rem}
.legend .after,.bar .after{background:var(--after)}.legend .before,.bar .before{background:var(--before)}
.legend .train,.bar .train{background:var(--train)}
.legend .bad,.bar .bad{background:var(--bad)}.legend .none,.bar .none{background:var(--line)}
td .bar{margin:.2rem 0;min-width:7rem}
.scroll{overflow-x:auto;margin:.6rem 0;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:.4rem .9rem .4rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}tbody tr:last-child td{border-bottom:0}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td small{color:var(--soft);white-space:nowrap}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));gap:.8rem 1.5rem;margin:.6rem 0}
dl div{min-width:0}dt{color:var(--soft);font-size:.82rem}dd{margin:0;overflow-wrap:anywhere}
code,pre{font:.86em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
code{overflow-wrap:anywhere}pre code{font-size:1em}pre+h3{margin-top:1rem}
pre{margin:.4rem 0;padding:.7rem .9rem;background:var(--code);border-radius:9px;white-space:pre-wrap;
overflow-wrap:anywhere}
.command{user-select:all;-webkit-user-select:all}
.talk{border-top:1px solid var(--line);padding:1rem 0 .4rem}.talk:first-of-type{border-top:0;padding-top:.2rem}
.prompt{white-space:pre-wrap;overflow-wrap:anywhere;margin:0 0 .7rem;font-weight:600}
.prompt small{display:block;font-weight:400;color:var(--soft)}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:1rem}
.reply{border-left:3px solid var(--before);padding-left:.8rem;min-width:0}.reply.after{border-color:var(--after)}
.reply h3{display:flex;gap:.5rem;align-items:center;flex-wrap:wrap;color:var(--soft);font-weight:600}
.reply pre{margin:.3rem 0;max-height:22rem;overflow:auto}
.reply p{color:var(--soft);font-size:.84rem;margin:.2rem 0}
details{margin:.6rem 0}details .grid{margin-top:.8rem}summary{cursor:pointer;color:var(--after);font-weight:600;font-size:.92rem}
.bar{display:flex;height:1.1rem;border-radius:7px;overflow:hidden;margin:.6rem 0;gap:2px}
.bar span{display:block;min-width:1px}
footer{color:var(--soft);font-size:.82rem;margin-top:1.5rem}
@media(max-width:40rem){.wide{display:none}.narrow{display:block}
body{padding:1.5rem .8rem 2rem}section,.hero{padding:1.1rem 1rem;border-radius:12px}
.pair{grid-template-columns:1fr}.tile b{font-size:1.6rem}}
@media print{section,.hero{break-inside:avoid;border-color:#ccc}}
"""
