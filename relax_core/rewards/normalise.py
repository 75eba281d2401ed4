r"""One way to write an answer: `normalise` maps the many spellings of LaTeX, Unicode and plain text to one text.

It changes the writing, never the value, and normalise(normalise(x)) == normalise(x): the rules are repeated until none
applies, and each of them removes signs or replaces them by ones that no rule changes back. What two texts mean is
compared in `equality`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

MAX_ANSWER = 1_000  # characters; nobody writes a longer final answer, and longer ones are refused unread

# What most answers are, and what no rule would change: 12, -3.5, 3/4, \frac{3}{4}.
_SIMPLE = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+|/[0-9]+)?|\\frac\{-?[0-9]+\}\{[0-9]+\})")

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−–‐‑‒—﹣－", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
        **dict.fromkeys("×✕✖", "\\times "),
        **dict.fromkeys("·⋅∙•", "\\cdot "),
        **dict.fromkeys("∕⁄／", "/"),
        **dict.fromkeys("°º˚", "^{\\circ}"),
        **dict.fromkeys("∪⋃", "\\cup "),
        "÷": "/",
        "∗": "*",
        "＊": "*",
        "π": "\\pi ",
        "𝜋": "\\pi ",
        "∞": "\\infty ",
        "±": "\\pm ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "≠": "\\ne ",
        "≈": "\\approx ",
        "∩": "\\cap ",
        "∈": "\\in ",
        "θ": "\\theta ",
        "％": "%",
        "﹪": "%",
        "¢": " cents",
        "，": ",",
        "、": ",",
        "。": ".",
        "．": ".",
        "【": "[",
        "】": "]",
        "′": "'",
    }
)
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n", strict=True))
_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SUBSCRIPT = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_ROOT_SIGN = re.compile(r"([√∛∜])\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z])|(?=[\\{]))")
_ROOT_INDEX = {"√": "", "∛": "[3]", "∜": "[4]"}

# A backslash with what it commands: a word, or one sign.
_CONTROL = re.compile(r"\\(operatorname\*|[A-Za-z]+|.)", re.DOTALL)
_FONTS = "mathrm mathbf mathit mathsf textbf textit textrm textsf texttt mbox emph operatorname operatorname*"
_UNSEEN = (
    "left right middle big bigl bigr bigm Big Bigl Bigr Bigm bigg biggl biggr biggm Bigg Biggl Biggr Biggm"
    " displaystyle textstyle scriptstyle limits nolimits mathstrut strut rm bf it boldmath boxed fbox"
)
_CONTROLS = {
    **dict.fromkeys(_UNSEEN.split(), ""),
    **dict.fromkeys([*"()[],;: >\n\t", "quad", "qquad", "thinspace", "enspace"], " "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
    **dict.fromkeys(("leq", "leqslant"), "\\le"),
    **dict.fromkeys(("geq", "geqslant"), "\\ge"),
    **dict.fromkeys(("ast", "star"), "*"),
    **dict.fromkeys(("%", "percent"), "%"),
    "neq": "\\ne",
    "lbrace": "\\{",
    "rbrace": "\\}",
    "lbrack": "[",
    "rbrack": "]",
    "div": "/",
    "degree": "^{\\circ}",
}
_FONT_NAMES = frozenset(_FONTS.split())

_NO_DELIMITER = re.compile(r"\\(?:left|right)\s*\.")
_DEGREE = re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})")
_TIMES_TEN = re.compile(r"(?<=\d) ?[xX] ?(?=10\^)")
_BOLD = re.compile(r"\*\*(.+)\*\*")
_BRACED_COMMA = re.compile(r"\{\s*,\s*\}")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?: \d{3})+)(?![\d/]| *[/\d])")
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f~]+")
_DOLLAR = re.compile(r"(?<!\\)\$")
_COMMAND = re.compile(r"\\(?:(?:frac|binom)(?![A-Za-z])|sqrt(?![A-Za-z])(?: ?\[[^][]*\])?)")
_NAME = re.compile(r"\\[A-Za-z]+")
_GAP = re.compile(r" ?([{}()\[\]^_=+*/\-;<>|]) ?")
_DIGITS = re.compile(r"\d+(?:,\d+)+(?:\.\d+)?")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_COMMA = re.compile(r" ?, ?")
_BRACKET = re.compile(r"\\[{}]|\\.|[()\[\]]")
_END = re.compile(r"(?:[\s.,;:]|\\\\)+$")


def normalise(answer: str) -> str:
    """The canonical writing of a final answer. Texts longer than MAX_ANSWER come back as they are, trimmed."""
    text = answer.strip()
    if _SIMPLE.fullmatch(text) or len(text) > MAX_ANSWER:
        return text
    return _settled(text)


@lru_cache(maxsize=8192)
def _settled(text: str) -> str:
    """The rules until none applies. Golds and common answers recur, hence the cache."""
    before = None
    while text != before:
        before, text = text, _once(text)
    return text


def _once(text: str) -> str:
    if not text.isascii():
        text = _ascii(text)
    if "\\" in text:
        text = _CONTROL.sub(_control, _NO_DELIMITER.sub(" ", text))
        text = _DEGREE.sub(r"^{\\circ}", text)
    text = _BLANK.sub(" ", text)
    text = _dollars(text)
    if "10^" in text:
        text = _TIMES_TEN.sub(r"\\times ", text)  # 1.5x10^3
    if text.startswith("**") and (bold := _BOLD.fullmatch(text)):
        text = bold[1]
    if "," in text:
        text = _BRACED_COMMA.sub(",", text)  # 1{,}000
    if " " in text:
        text = _SPACED_THOUSANDS.sub(lambda found: found[0].replace(" ", ""), text)
    text = _GAP.sub(r"\1", _brace_arguments(text))
    return _END.sub("", _commas(text)).strip()


def _control(found: re.Match[str]) -> str:
    r"""What stands for a command: \dfrac is \frac, fonts are \text, spaces are a space, delimiters and sizes nothing."""
    name = found[1]
    if name == "!":  # a negative space; a letter behind it must not become part of a command before it
        return " " if found.string[found.end() : found.end() + 1].isalpha() else ""
    if name in _FONT_NAMES:
        return "\\text" if found.string.startswith("{", found.end()) else found[0]
    return _CONTROLS.get(name, found[0])


def _ascii(text: str) -> str:
    """Unicode signs as LaTeX or ASCII; digits of every script as 0 to 9."""
    text = text.translate(_SIGNS)
    text = _VULGAR.sub(_vulgar, text)
    text = _SUPERSCRIPT.sub(lambda found: "^{" + "".join(_SUPERSCRIPTS[sign] for sign in found[0]) + "}", text)
    text = _SUBSCRIPT.sub(lambda found: "_{" + "".join(_SUBSCRIPTS[sign] for sign in found[0]) + "}", text)
    text = _ROOT_SIGN.sub(_root, text)
    text = unicodedata.normalize("NFKC", text)
    return "".join(str(unicodedata.digit(sign)) if sign.isdecimal() else sign for sign in text)


def _vulgar(found: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", found[0]).partition("⁄")
    return f"\\frac{{{top}}}{{{bottom}}}" if bottom and top else found[0]


def _root(found: re.Match[str]) -> str:
    content = found[2] if found[2] is not None else found[3]
    return f"\\sqrt{_ROOT_INDEX[found[1]]}" + ("" if content is None else "{" + content + "}")


def _dollars(text: str) -> str:
    """Math-mode dollars go; one single dollar before a number is a currency sign."""
    found = [match.start() for match in _DOLLAR.finditer(text)]
    if len(found) == 1 and text[found[0] + 1 : found[0] + 2].isdigit():
        return text[: found[0]] + "\\" + text[found[0] :]
    return _DOLLAR.sub("", text) if found else text


def group_end(text: str, at: int) -> int:
    """The position after the brace that closes the one at `at`; -1 if it stays open."""
    depth = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            at += 2
            continue
        depth += (sign == "{") - (sign == "}")
        at += 1
        if depth == 0:
            return at
    return -1


def _argument(text: str, at: int) -> tuple[str, int] | None:
    r"""The TeX argument at `at`, in braces, and the position after it: a group, a command such as \pi, or one letter or
    digit.
    """
    if text[at : at + 1] == " ":
        at += 1
    if text[at : at + 1] == "{":
        end = group_end(text, at)
        return (text[at:end], end) if end > 0 else None
    if (name := _NAME.match(text, at)) and name[0] not in ("\\frac", "\\sqrt", "\\binom", "\\text"):
        return "{" + name[0] + "}", name.end()
    sign = text[at : at + 1]
    return ("{" + sign + "}", at + 1) if sign.isascii() and sign.isalnum() else None


def _brace_arguments(text: str) -> str:
    r"""Braces around every argument of \frac34, \frac3{4}, \frac{3}4, \sqrt7, \sqrt[3]5: one sign each, as TeX reads
    them.
    """
    at = 0
    while command := _COMMAND.search(text, at):
        at = command.end()
        for _ in range(1 if command[0].startswith("\\sqrt") else 2):
            argument = _argument(text, at)
            if argument is None:
                break
            text = text[:at] + argument[0] + text[argument[1] :]
            at += len(argument[0])
        at = command.end()
    return text


def _commas(text: str) -> str:
    """Thousands lose their commas, every other comma becomes a separator ", "."""
    if "," not in text:
        return text
    tight = _tight_spans(text)

    def number(found: re.Match[str]) -> str:
        inside = any(start < found.start() < end for start, end in tight)
        if _THOUSANDS.fullmatch(found[0]) and not inside:
            return found[0].replace(",", "")
        return found[0].replace(",", ", ")

    return _COMMA.sub(", ", _DIGITS.sub(number, text))


def _tight_spans(text: str) -> list[tuple[int, int]]:
    """The brackets without any ", ": there every comma separates, so that (1,200) is a point and (1,200, 3) is not."""
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    for found in _BRACKET.finditer(text):
        if found[0] in ("(", "[", "\\{"):
            opened.append(found.end())
        elif found[0] in (")", "]", "\\}") and opened:
            start = opened.pop()
            if ", " not in text[start : found.start()]:
                spans.append((start - 1, found.start()))
    return spans
