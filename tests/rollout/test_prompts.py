from __future__ import annotations

import pytest
from rollout_models import make_tokenizer

from relax_core.errors import DataError, UserError
from relax_core.rollout.prompts import decode, render

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}n{% endif %}{% endif %}"
)
USER, ASSISTANT, BOS, EOS, ONE, TWO = 4, 5, 1, 2, 7, 8


def test_a_chat_template_frames_the_prompt_up_to_the_reply() -> None:
    assert render(make_tokenizer(chat_template=TEMPLATE), "12") == [USER, ONE, TWO, ASSISTANT]


def test_template_arguments_reach_the_template() -> None:
    tokenizer = make_tokenizer(chat_template=TEMPLATE)
    with_switch = render(tokenizer, "12", {"enable_thinking": False})
    assert with_switch == [USER, ONE, TWO, ASSISTANT, *tokenizer.encode("n")]
    assert render(tokenizer, "12", {"enable_thinking": True}) == render(tokenizer, "12")


@pytest.mark.parametrize("name", ["return_dict", "tokenize", "add_generation_prompt"])
def test_arguments_that_are_not_the_templates_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=name):
        render(make_tokenizer(chat_template=TEMPLATE), "12", {name: False})


def test_arguments_without_a_template_are_refused() -> None:
    with pytest.raises(UserError, match=r"enable_thinking.*no chat template"):
        render(make_tokenizer(), "12", {"enable_thinking": False})


@pytest.mark.parametrize("eos", [False, True])
def test_plain_text_is_encoded_without_an_end(eos: bool) -> None:
    assert render(make_tokenizer(eos=eos), "12") == [ONE, TWO]
    assert render(make_tokenizer(bos=True, eos=eos), "12") == [BOS, ONE, TWO]


@pytest.mark.parametrize("template", [None, "<s>{{ messages[0].content }}"])
def test_the_begin_token_never_stands_twice(template: str | None) -> None:
    tokenizer = make_tokenizer(bos=True, chat_template=template)
    assert render(tokenizer, "<s>12") == render(tokenizer, "12") == [BOS, ONE, TWO]


def test_a_template_that_writes_the_begin_token_for_a_tokenizer_that_adds_it() -> None:
    tokenizer = make_tokenizer(bos=True, chat_template="<s>" + TEMPLATE)
    assert render(tokenizer, "12") == [BOS, USER, ONE, TWO, ASSISTANT]


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(DataError, match="no token"):
        render(make_tokenizer(), "")


def test_render_returns_plain_integers() -> None:
    for tokenizer in (make_tokenizer(), make_tokenizer(chat_template=TEMPLATE)):
        ids = render(tokenizer, "12")
        assert type(ids) is list and all(type(i) is int for i in ids)


def test_decode_leaves_special_tokens_out_and_spaces_in() -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("1 + 2 = 3 ?")
    assert decode(tokenizer, ids) == "1 + 2 = 3 ?"
    assert decode(tokenizer, [0, *ids[:1], 0, BOS, *ids[1:], EOS]) == "1 + 2 = 3 ?"
    assert decode(tokenizer, ()) == ""
