"""Folders of small tokenizers with chat templates, as Hugging Face models have them."""

import functools
import io
import json
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

TEXTS = [
    "the cat sat on the mat",
    "a naïve café — 日本語",
    "def f(x):\n    return x\n",
    "user\nassistant\nsystem\n\n",
    "  two  spaces",
] * 40

CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}
    {{- head + (message['content'] | trim) + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
BRACKETS = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{% elif message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Writes the last answer otherwise than those before it."""

CONVERSATIONS = [
    [("user", "the cat?"), ("assistant", "sat on the mat")],
    [("system", "  two  spaces "), ("user", "a café\n"), ("assistant", "日本語 — naïve\n\n")],
    [("user", "x"), ("assistant", "y"), ("user", " return x"), ("assistant", "def f(x):\n  x")],
    [("user", ""), ("assistant", ""), ("user", "the mat")],
]


def messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    """Returns a conversation in the usual form."""
    return [{"role": role, "content": content} for role, content in turns]


def write_byte_level(
    folder: Path,
    *,
    special: list[str],
    bos: str | None,
    eos: str,
    template: str,
    begins: bool = True,
    **config: object,
) -> Path:
    """Writes a byte-level tokenizer.json with special tokens, and what says how it is used.

    ``begins`` says whether texts begin with ``bos``.
    """
    built = tokenizers.Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    built.train_from_iterator(TEXTS, trainer)
    built.add_special_tokens(special)
    built.add_tokens(["<think>", "</think>"])
    if begins and bos:
        starts = {"single": f"{bos} $A", "pair": f"{bos} $A {bos} $B"}
        number = built.token_to_id(bos)
        built.post_processor = processors.TemplateProcessing(
            **starts, special_tokens=[(bos, number)]
        )
    folder.mkdir(parents=True)
    built.save(str(folder / "tokenizer.json"))
    ends = {"bos_token": bos, "eos_token": eos, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**ends, **config}))
    (folder / "chat_template.jinja").write_text(template)
    return folder


@functools.cache
def sentencepiece_model() -> bytes:
    """Returns a trained SentencePiece model with byte fallback."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=written,
        vocab_size=400,
        hard_vocab_limit=False,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<turn>"],
        minloglevel=2,
    )
    return written.getvalue()


def write_sentencepiece(folder: Path, *, template: str = BRACKETS) -> Path:
    """Writes a folder that holds a SentencePiece model and no tokenizer.json."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "legacy": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": template,
        "additional_special_tokens": ["<turn>"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_all(root: Path) -> dict[str, Path]:
    """Writes one folder of each kind."""
    turns = ["<|im_start|>", "<|im_end|>"]
    headers = ["<|begin|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    return {
        "chatml": write_byte_level(
            root / "chatml", special=turns, bos=None, eos="<|im_end|>", template=CHATML
        ),
        "headers": write_byte_level(
            root / "headers", special=headers, bos="<|begin|>", eos="<|eot_id|>", template=HEADERS
        ),
        "brackets": write_sentencepiece(root / "brackets"),
    }
