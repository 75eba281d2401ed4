r"""The character-level tokenizer of the model `tiny`.

One token is one character (printable ASCII and the newline), with one exception: `\boxed{` is a token of its own. Every
prompt asks for it and every answer needs it; spelled out it would be seven of the few tokens that a response may have.
A character outside the vocabulary becomes <unk>. There is no chat template and no start token: a prompt is its text.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
BOXED = "\\boxed{"
VOCABULARY = (PAD, EOS, UNK, BOXED, "\n", *(chr(c) for c in range(0x20, 0x7F)))


def build(model_max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer; `save_pretrained` makes it loadable with AutoTokenizer."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=model_max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
