"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere. On standard error."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relax_core import cleanup

if TYPE_CHECKING:
    from rich.live import Live

_WINDOW = 10  # steps that the estimate of the time left looks back on


class Progress:
    """The progress of one run in this process."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=_WINDOW + 1)
        self._live: Live | None = None
        self._accuracy = ""

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self._ends.append(time.monotonic())
        parts = [
            f"step {step}/{steps}",
            f"reward {metrics['rollout/raw_reward']:.3f}" if "rollout/raw_reward" in metrics else "",
            f"length {metrics['rollout/response_len/mean']:.1f}" if "rollout/response_len/mean" in metrics else "",
            f"grad {metrics['train/grad_norm']:.3f}" if "train/grad_norm" in metrics else "",
            "NO UPDATE" if metrics.get("train/skipped_step") else "",
            self._accuracy,
            self._left(steps - step),
        ]
        self._show("  ".join(p for p in parts if p))

    def evaluation(self, step: int, summary: Mapping[str, Any]) -> None:
        """An evaluation is done."""
        accuracy = summary["greedy_accuracy"]
        if accuracy["value"] is None:
            self.say(f"evaluation after {step} updates: no prompt has an answer that can be verified")
            return
        self._accuracy = f"accuracy {accuracy['value']:.1%}"
        self.say(
            f"evaluation after {step} updates: greedy accuracy {accuracy['value']:.1%} "
            f"(95 % interval {accuracy['low']:.1%} to {accuracy['high']:.1%}, {accuracy['n']} prompts)"
        )

    def stop(self) -> None:
        """Take the live line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _left(self, steps: int) -> str:
        if len(self._ends) < 2:
            return ""
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return f"{each:.2f} s/step  {_minutes(each * steps)} left"

    def _show(self, line: str) -> None:
        if not sys.stderr.isatty():
            print(line, file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=8)
            self._live.start()
            cleanup.call_at_end(self.stop)
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


shown = Progress()
