"""Text to prompt ids and drawn ids back to text, through the tokenizer of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relax_core.errors import DataError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OURS = frozenset(
    {"conversation", "tokenize", "return_dict", "return_tensors", "add_generation_prompt", "padding", "truncation"}
)


def render(
    tokenizer: PreTrainedTokenizerBase, prompt_text: str, template_args: Mapping[str, Any] | None = None
) -> list[int]:
    """The ids of a prompt: one user message in the tokenizer's chat template, up to where the reply begins.

    A tokenizer without a template encodes the plain text, after the begin-of-sequence token if it is one that adds it;
    an end-of-sequence token is never added, and the begin-of-sequence token never stands twice.

    template_args: what the template itself reads, such as enable_thinking.

    Raises: UserError for arguments that the template cannot get (it decides what to return; or there is no template);
    DataError for a prompt without a token.
    """
    template_args = template_args or {}
    if tokenizer.chat_template is None:
        if template_args:
            raise UserError(
                f"Template arguments {sorted(template_args)} were given, but the tokenizer has no chat template to read "
                "them. Remove the arguments or use a model whose tokenizer has a template."
            )
        ids = _plain(tokenizer, prompt_text)
    else:
        ids = _templated(tokenizer, prompt_text, template_args)
    if not ids:
        raise DataError(f"The prompt {prompt_text!r} encodes to no token. A prompt needs at least one.")
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of a reply as a person reads it and a reward grades it: without special tokens, spaces as they are."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def _templated(tokenizer: PreTrainedTokenizerBase, prompt_text: str, template_args: Mapping[str, Any]) -> list[int]:
    if clash := sorted(_OURS & template_args.keys()):
        raise UserError(
            f"Template arguments {clash} are set by the rollout itself. Pass only what the chat template reads."
        )
    # transformers 5 returns a BatchEncoding unless told otherwise.
    return list(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt_text}],
            tokenize=True,
            return_dict=False,
            add_generation_prompt=True,
            **template_args,
        )
    )


def _plain(tokenizer: PreTrainedTokenizerBase, prompt_text: str) -> list[int]:
    body: list[int] = tokenizer.encode(prompt_text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    begins = bos is not None and tokenizer.encode("", add_special_tokens=True)[:1] == [bos]
    return [bos, *body] if begins else body
