r"""The final answer of a reply: the text inside its last box.

A box is `\boxed{...}` or `\fbox{...}`, with nested braces, or `\boxed 8` without any. The last one that is complete
(its brace is closed) and not empty is the answer; boxes are never joined. "Last" is the one whose command stands last,
so of a box inside a box the inner one is read. `\{` and `\}` are signs to print and open or close nothing. One pass: 1
MB of hostile text takes a fraction of a second.
"""

from __future__ import annotations

import re

# A doubled backslash before the command (a reply that was escaped once too often) still opens a box.
_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)(?![A-Za-z]))|\\[^\\]|\\\\(?!boxed|fbox)|[{}]", re.DOTALL)
_OPEN = re.compile(r"\s*\{")
# Without braces: a number, or one command with its arguments, or one letter that plainly ends there.
_BARE = re.compile(
    r"\s*("
    r"[-+−]?(?:\d+(?:[.,/]\d+)*|\.\d+)(?:\\?%)?"
    r"|-?\\(?!boxed|fbox|[a-z]*box)[a-zA-Z]+(?:\{[^{}]*\}|\[[^][]*\]|\d)*"
    r"|[A-Za-z](?=\$|\\\)|\s*$)"
    r")"
)


def _bare(text: str, at: int) -> str | None:
    """What a box command that ends at `at` frames when no brace follows; None if nothing is recognised."""
    found = _BARE.match(text, at)
    return found.group(1) if found else None


def _scan(text: str) -> str | None:
    """The last box by one pass over all braces."""
    best_start = -1
    best: str | None = None
    stack: list[int] = []  # for every open brace: where its content starts if it belongs to a box, else -1
    pending = -1  # where the brace of a box command is expected
    for token in _TOKEN.finditer(text):
        if token["box"]:
            brace = _OPEN.match(text, token.end())
            if brace:
                pending = brace.end() - 1
            elif (bare := _bare(text, token.end())) is not None:
                best_start, best = token.end(), bare
        elif token[0] == "{":
            stack.append(token.end() if token.start() == pending else -1)
        elif token[0] == "}" and stack:
            start = stack.pop()
            # Only a box that stands after the best so far is looked at, which keeps nested boxes linear.
            if start > best_start and (content := text[start : token.start()].strip()):
                best_start, best = start, content
    return best


def last_boxed(text: str) -> str | None:
    r"""The trimmed content of the last complete, non-empty `\boxed` or `\fbox` of `text`; None if there is none."""
    at = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if at < 0 and "\\boxed" not in text and "\\fbox" not in text:
        return None
    if at >= 0:  # the common reply: the last box holds no braces and nothing that looks like a box follows
        start = text.index("{", at) + 1
        end = text.find("}", start)
        inside = text[start:end]
        if end > 0 and "{" not in inside and "\\" not in inside and inside.strip() and "box" not in text[end:]:
            return inside.strip()
    return _scan(text)
