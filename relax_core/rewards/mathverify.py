"""math-verify on one pair of answers. Heavy to import and impossible to interrupt: only grading workers import this
(see `worker`).
"""

from __future__ import annotations

import logging

from math_verify import LatexExtractionConfig, parse, verify

CORRECT, INCORRECT, ERROR, UNVERIFIABLE = "correct", "incorrect", "error", "unverifiable"


def judge(gold: str, answer: str) -> str:
    """The name of the status of two normalised answers.

    math-verify is not symmetric, so both orders count, tried in an order that does not depend on which text is the
    gold. Its own time-outs are off: they need signals in the main thread, and the pool's limit holds anyway.
    """
    sides = {text: _parse(text) for text in sorted({gold, answer})}
    if not sides[gold]:
        return UNVERIFIABLE
    if not sides[answer]:
        return ERROR
    first, second = (sides[text] for text in sorted((gold, answer)))
    return CORRECT if _verify(first, second) or _verify(second, first) else INCORRECT


def _parse(text: str) -> list[object]:
    found: list[object] = parse(
        f"${text}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return found


def _verify(gold: list[object], answer: list[object]) -> bool:
    return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))


def _warm_up() -> None:
    """Pay for the tables of the parser once, before any worker is forked."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time-outs are off
    _verify(_parse("\\sin x+\\frac{1}{2}"), _parse("\\sin(x)+0.5"))


_warm_up()
