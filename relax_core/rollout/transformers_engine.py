"""The rollout engine that runs in process: the model class of transformers, with a loop of our own around its layers.

How a batch runs. Requests are put into one order (by prompt length, prompt, row, index), so that what comes out depends
on the set of requests and not on the order in which they were given, and cut into chunks of at most `max_batch`. In a
chunk each distinct prompt goes through the model once (prompts are aligned at their right end; what is left of a
shorter one is masked) and its keys and values are copied to the samples of its group. Then all rows draw one token per
step. A row that has ended leaves the batch at once.

Which tokens end a sample. Every end-of-sequence id of the model's generation configuration, and nothing else. The drawn
end token is part of the sample: it has a log-prob, it counts in max_tokens, and it is trained on. Any other special
token that the model draws (padding, begin of sequence, unknown, a chat marker) is a token as any other: it stays in
`ids`, never ends a sample and is trained on, since the model did choose it and its probability must be able to fall.
So the loss mask of a sample is one per id; it never comes from looking for token values. Text for rewards is
`prompts.decode`, which leaves all special tokens out.

Statuses. completed: the last id is an end token. truncated: max_tokens, or the context of the model
(max_position_embeddings, prompt included), is full. aborted: `abort` named its row; ids hold what was drawn before.
failed: the logits of a row were not finite, or its prompt fills the context; the others of the batch are not touched.

Weights in flight. `update_weights` takes effect between two steps of a running batch. The keys and values of the batch
are then computed again with the new weights, so the log-prob of each token is what its version gives to prompt and
reply up to it, and not a mixture.

Random numbers come from `seeds` alone; torch's generators are not used.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relax_core.errors import RunError, UserError
from relax_core.rollout import attention, hf_model, sampling, seeds
from relax_core.rollout.kv_cache import KeyValueCache
from relax_core.rollout.turns import Turns
from relax_core.rollout.types import Request, Sample, Status

_log = logging.getLogger(__name__)

ATTENTION = attention.NAME
# Bounds the memory of the scores and masks of long prompts.
_PREFILL_TOKENS = 16384
# The cache grows by doubling the room for drawn tokens: a limit of many thousand tokens is rarely reached.
_FIRST_ROOM = 64


class TransformersEngine:
    """Implements relax_core.rollout.engine.Engine.

    threads: for torch on the CPU; set for the whole process whenever the engine computes. max_batch: rows at a time.
    `failures` counts the failed samples since the engine was made, by reason. One thread may drive `generate` while
    another swaps weights, pauses or aborts.
    """

    def __init__(
        self, *, threads: int, device: str = "cpu", dtype: torch.dtype = torch.float32, max_batch: int = 256
    ) -> None:
        if threads < 1 or max_batch < 1:
            raise UserError(f"threads is {threads} and max_batch {max_batch}; both must be at least 1.")
        self.threads = threads
        self.max_batch = max_batch
        self.failures: Counter[str] = Counter()
        self._device = torch.device(device)
        self._dtype = dtype
        self._turns = Turns()
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._policy: _Policy | None = None

    @property
    def version(self) -> int:
        """The policy version (number of updates) of the weights."""
        return self._loaded().version

    @property
    def stop_ids(self) -> frozenset[int]:
        """The end-of-sequence ids of the loaded model."""
        return self._loaded().stop_ids

    def weights(self) -> dict[str, Tensor]:
        """The weights by Hugging Face name; a tied output layer is the embedding and has no name of its own."""
        return dict(self._loaded().model.named_parameters())

    def load(self, folder: Path, version: int) -> None:
        """Take the model of a Hugging Face folder as policy version `version`.

        Raises: ModelError for a folder that cannot be used; RunError while a generation runs.
        """
        model = hf_model.load(folder, self._dtype, self._device, ATTENTION)
        stops = hf_model.stop_ids(folder, model.config)
        with self._turns.visit():
            if len(self._calls):
                raise RunError(
                    "A model cannot be loaded while a generation is not at its end. "
                    "Finish it, close it, or use update_weights."
                )
            self._policy = _Policy(model, stops, version)

    def generate(self, requests: Sequence[Request]) -> Iterator[Sample]:
        """Draw a sample for each request; they come as they finish, each exactly once.

        The work is done while the result is iterated. A paused engine makes the iteration wait for `resume`.

        Raises: UserError at once for requests that cannot be (sampling out of range, an empty prompt, a token outside
        of the vocabulary, the same row and index twice); RunError before `load`.
        """
        policy = self._loaded()
        _check_requests(requests, policy.vocabulary)
        ordered = sorted(requests, key=lambda r: (len(r.prompt_ids), r.prompt_ids, r.row, r.index))
        call = _Call()
        with self._turns.noticed():
            self._calls.add(call)
        return self._run(policy, call, ordered)

    def update_weights(self, version: int, weights: Mapping[str, Tensor] | Path) -> None:
        """Swap in the weights of policy version `version`: by Hugging Face name, or from a folder of the same model.

        The next token of a running generation is drawn with them.

        Raises: ModelError for weights that do not fit; nothing has changed then.
        """
        policy = self._loaded()
        tensors = hf_model.read_weights(weights) if isinstance(weights, Path) else weights
        with self._turns.visit():
            hf_model.replace_weights(policy.model, tensors)
            policy.version = version
            self._drop_caches()

    def pause(self) -> None:
        """Hold generation: on return no step is running and none begins before `resume`.

        The memory of the key-value caches is given back; they are computed again after `resume`.
        """
        with self._turns.visit():
            self._turns.hold()
            self._drop_caches()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._turns.release()

    def abort(self, rows: Sequence[str]) -> None:
        """End the samples of these rows in every call of `generate` that is not at its end, also the rows that have
        not begun and while the engine is paused. Calls made later are not affected.
        """
        with self._turns.noticed():
            for call in self._calls:
                call.aborted.update(rows)

    def health(self) -> bool:
        """Whether there is a model to draw from. In process there is no server that could be gone."""
        return self._policy is not None

    def _loaded(self) -> _Policy:
        if self._policy is None:
            raise RunError("The engine has no model yet. Call load(folder, version) first.")
        return self._policy

    def _drop_caches(self) -> None:
        for call in self._calls:
            if call.batch is not None:
                call.batch.cache = None

    def _run(self, policy: _Policy, call: _Call, requests: list[Request]) -> Iterator[Sample]:
        try:
            for start in range(0, len(requests), self.max_batch):
                rows = [_Row(request, policy.room(request)) for request in requests[start : start + self.max_batch]]
                for row in rows:
                    if row.limit < 1:
                        row.fail("the prompt fills the context of the model")
                call.batch = _Batch(policy, [row for row in rows if not row.status])
                yield from self._samples(row for row in rows if row.status)
                while call.batch.rows:
                    yield from self._samples(self._advance(call, call.batch))
        finally:
            with self._turns.noticed():
                self._calls.discard(call)

    def _advance(self, call: _Call, batch: _Batch) -> list[_Row]:
        """One turn of a batch: the rows that ended in it, because they were aborted or by the tokens drawn."""
        with self._turns.step(unless=lambda: not batch.names.isdisjoint(call.aborted)) as taken:
            if taken:
                if torch.get_num_threads() != self.threads:
                    torch.set_num_threads(self.threads)
                batch.step()
                return batch.leave()
        # Without the turn only the lock keeps a visitor, who may drop the cache, away from the batch.
        with self._turns.noticed():
            batch.abort(call.aborted)
            return batch.leave()

    def _samples(self, rows: Iterable[_Row]) -> Iterator[Sample]:
        for row in rows:
            sample = row.sample()
            if sample.status is Status.FAILED:
                self.failures[row.reason] += 1
                _log.warning(
                    "Sample %d of row %s failed at token %d: %s.", sample.index, sample.row, len(sample.ids), row.reason
                )
            yield sample


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Call:
    """One call of generate: the rows that somebody ended, and the chunk that runs now."""

    aborted: set[str] = field(default_factory=set)
    batch: _Batch | None = None


@dataclass(eq=False, slots=True)
class _Row:
    """A sample in the making. limit: most tokens it may draw; status: None while it runs."""

    request: Request
    limit: int
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    status: Status | None = None
    reason: str = ""

    def fail(self, reason: str) -> None:
        self.status, self.reason = Status.FAILED, reason

    def sample(self) -> Sample:
        assert self.status is not None
        request = self.request
        return Sample(
            row=request.row,
            group=request.group,
            index=request.index,
            seed=request.seed,
            ids=tuple(self.ids),
            log_probs=tuple(self.log_probs),
            status=self.status,
            versions=tuple(self.versions),
        )


class _Policy:
    """A loaded model and what of it the loop needs."""

    def __init__(self, model: Any, stops: frozenset[int], version: int) -> None:
        self.model = model
        self.stop_ids = stops
        self.version = version
        self.vocabulary: int = model.config.vocab_size
        self.context: int = model.config.max_position_embeddings
        self.device: torch.device = model.device
        self._rope = (torch.empty(0), torch.empty(0))

    def room(self, request: Request) -> int:
        """The most tokens that a sample of this request may have."""
        return min(request.sampling.max_tokens, self.context - len(request.prompt_ids))

    def empty_cache(self, rows: int, capacity: int) -> KeyValueCache:
        config = self.model.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, capacity, head_size)
        return KeyValueCache.empty(shape, self.model.dtype, self.device)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: KeyValueCache) -> Tensor:
        """Logits of the last token: the model's own modules, without the preparations that its forward repeats.

        tokens, positions: [B, n] int64; mask: [B, 1, n, length + n], added to the scores. Returns [B, V].
        """
        decoder = self.model.model
        cos, sin = self._rotary(cache.length + tokens.shape[1])
        embedded = (torch.nn.functional.embedding(positions, cos), torch.nn.functional.embedding(positions, sin))
        hidden = decoder.embed_tokens(tokens)
        for layer in decoder.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=embedded, cache=cache, use_cache=True)
        cache.advance(tokens.shape[1])
        logits: Tensor = self.model.lm_head(decoder.norm(hidden[:, -1]))
        return logits

    def _rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the positions below `length` and some more: two of [positions, head size]."""
        if len(self._rope[0]) < length:
            positions = torch.arange(2 * length, device=self.device).unsqueeze(0)
            like = torch.empty(0, dtype=self.model.dtype, device=self.device)
            cos, sin = self.model.model.rotary_emb(like, positions)
            self._rope = (cos[0], sin[0])
        return self._rope


class _Batch:
    """Rows that draw a token at a time, all of them at the same number of tokens.

    Row i of every tensor belongs to rows[i]. The cache is None before the first step and when the weights have changed:
    the next step then begins with the whole of prompt and reply.
    """

    def __init__(self, policy: _Policy, rows: list[_Row]) -> None:
        self.policy = policy
        self.rows = rows
        self.names = {row.request.row for row in rows}
        self.cache: KeyValueCache | None = None
        self._seeds = np.array([row.request.seed for row in rows], dtype=np.uint64)
        self._knobs = sampling.Knobs.of([row.request.sampling for row in rows], policy.device)
        self._tokens = torch.empty(0, dtype=torch.int64)  # [B, 1], drawn last and not yet in the cache
        self._pads = torch.empty(0, dtype=torch.int64)  # [B], slots before the prompt
        self._mask: Tensor | None = None  # [B, 1, 1, capacity]; None where no row is padded

    @torch.inference_mode()
    def step(self) -> None:
        """Draw a token for each row, and set the status of those that end by it."""
        logits = self._begin() if self.cache is None else self._go_on(self.cache)
        position = len(self.rows[0].ids)
        uniforms = torch.from_numpy(seeds.uniforms(self._seeds, position)).to(self.policy.device)
        drawn = sampling.draw(logits, uniforms, self._knobs)
        self._tokens = drawn.ids.unsqueeze(1)
        stops, version = self.policy.stop_ids, self.policy.version
        for row, token, log_prob, finite in zip(
            self.rows, drawn.ids.tolist(), drawn.log_probs.tolist(), drawn.finite.tolist(), strict=True
        ):
            if not finite:
                row.fail("its logits are not finite")
                continue
            row.ids.append(token)
            row.log_probs.append(log_prob)
            row.versions.append(version)
            if token in stops:
                row.status = Status.COMPLETED
            elif position + 1 == row.limit:
                row.status = Status.TRUNCATED

    def abort(self, names: set[str]) -> None:
        """End the rows of these names."""
        for row in self.rows:
            if row.request.row in names:
                row.status = Status.ABORTED
        self.names -= names

    @torch.inference_mode()
    def leave(self) -> list[_Row]:
        """Take the rows that have ended out of the batch. The last rows that stay fill the gaps."""
        ended = [row for row in self.rows if row.status]
        if not ended:
            return ended
        staying = len(self.rows) - len(ended)
        gaps = (i for i, row in enumerate(self.rows[:staying]) if row.status)
        moves = dict(zip(gaps, (i for i in range(staying, len(self.rows)) if not self.rows[i].status), strict=True))
        order = [moves.get(i, i) for i in range(staying)]
        self.rows = [self.rows[i] for i in order]
        if self.rows:
            self._take(order)
        else:
            self.cache = None
        return ended

    def _take(self, order: list[int]) -> None:
        rows = torch.tensor(order, device=self.policy.device)
        self._seeds = self._seeds[order]
        self._knobs = self._knobs.take(rows)
        if self.cache is not None:
            self.cache.keep(rows)
            self._tokens = self._tokens.index_select(0, rows)
            self._pads = self._pads.index_select(0, rows)
            self._mask = None if self._mask is None else self._mask.index_select(0, rows)

    def _begin(self) -> Tensor:
        """Logits after everything a row has so far; each distinct sequence is computed once."""
        distinct: dict[tuple[int, ...], int] = {}
        places = [distinct.setdefault((*row.request.prompt_ids, *row.ids), len(distinct)) for row in self.rows]
        where = torch.tensor(places, device=self.policy.device)
        logits, cache, pads = self._prefill(list(distinct))
        self._pads = pads[where]
        self.cache = cache.spread(where, self._capacity(cache.length, _FIRST_ROOM))
        self._mask = self._padding(self.cache.capacity)
        return logits[where]

    def _prefill(self, sequences: list[tuple[int, ...]]) -> tuple[Tensor, KeyValueCache, Tensor]:
        """Last logits [U, V], cache of U rows and number of padded slots [U] of sequences aligned at their right end."""
        device = self.policy.device
        width = max(map(len, sequences))
        # A sequence is padded with its own first token, so that nothing of the vocabulary enters that it does not hold.
        tokens = torch.tensor([(s[0],) * (width - len(s)) + s for s in sequences], device=device)
        pads = torch.tensor([width - len(s) for s in sequences], device=device)
        slots = torch.arange(width, device=device)
        positions = (slots - pads.unsqueeze(1)).clamp(min=0)
        whole = self.policy.empty_cache(len(sequences), width)
        logits = []
        size = max(1, _PREFILL_TOKENS // width)
        for part in (slice(i, i + size) for i in range(0, len(sequences), size)):
            visible = (slots <= slots.unsqueeze(1)) & (slots >= pads[part, None, None])
            # A padded slot sees itself: a softmax over nothing would be NaN, and NaN times a weight of 0 is NaN.
            visible = visible | torch.eye(width, dtype=torch.bool, device=device)
            mask = torch.zeros(visible.shape, dtype=whole.store.dtype, device=device).masked_fill(~visible, -torch.inf)
            cache = KeyValueCache(whole.store[:, :, part])
            logits.append(self.policy.forward(tokens[part], positions[part], mask.unsqueeze(1), cache))
        whole.advance(width)
        return torch.cat(logits), whole, pads

    def _go_on(self, cache: KeyValueCache) -> Tensor:
        """Logits after the token that was drawn last."""
        if cache.length == cache.capacity:
            drawn = len(self.rows[0].ids)
            here = torch.arange(len(self.rows), device=self.policy.device)
            self.cache = cache = cache.spread(here, self._capacity(cache.length, drawn))
            self._mask = self._padding(cache.capacity)
        mask = None if self._mask is None else self._mask[..., : cache.length + 1]
        return self.policy.forward(self._tokens, (cache.length - self._pads).unsqueeze(1), mask, cache)

    def _capacity(self, length: int, room: int) -> int:
        """Slots of a cache for `room` more tokens, or for as many as the longest row may still draw."""
        drawn = len(self.rows[0].ids)
        return length + max(1, min(room, max(row.limit for row in self.rows) - drawn))

    def _padding(self, capacity: int) -> Tensor | None:
        if not bool(self._pads.any()):
            return None
        padded = torch.arange(capacity, device=self.policy.device) < self._pads.unsqueeze(1)
        mask = torch.zeros(padded.shape, dtype=self.policy.model.dtype, device=self.policy.device)
        return mask.masked_fill(padded, -torch.inf)[:, None, None, :]


def _check_requests(requests: Sequence[Request], vocabulary: int) -> None:
    seen: set[tuple[str, int]] = set()
    for request in requests:
        name = f"Sample {request.index} of row {request.row}"
        if (request.row, request.index) in seen:
            raise UserError(f"{name} is asked for twice in one call. Give each sample of a row its own index.")
        seen.add((request.row, request.index))
        if not request.prompt_ids:
            raise UserError(f"{name} has an empty prompt. A prompt needs at least one token.")
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocabulary:
            raise UserError(
                f"{name} has token ids from {min(request.prompt_ids)} to {max(request.prompt_ids)} in its prompt; the "
                f"model's vocabulary ends at {vocabulary - 1}. Encode prompts with the tokenizer of this model."
            )
        if not 0 <= request.seed < 2**64:
            raise UserError(f"{name} has seed {request.seed}; a seed is from 0 to 2^64 - 1, as sample_seed makes it.")
    for parameters in {request.sampling for request in requests}:
        sampling.check(parameters)
