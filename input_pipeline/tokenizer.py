"""Text to tokens and back. Imports NumPy and Hugging Face ``tokenizers`` (when one is used).

Promises: the same tokenizer digest gives the same tokens; text that spells a special token is
ordinary text; ``token_bytes`` counts the UTF-8 bytes that each token stands for, so that a loss
in nats per token becomes exact bits per byte.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from input_pipeline.data_config import Bytes, TokenizerConfig, TokenizerFile, TrainedBpe
from input_pipeline.manifest import digest_of

if TYPE_CHECKING:
    import tokenizers

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
_BYTES = 256


class Tokenizer(Protocol):
    """What every tokenizer offers.

    Attributes:
      vocab_size: tokens are in ``[0, vocab_size)``.
      bos: token put before every document.
      eos: token put after every document.
      digest: sha256 of all that decides the tokens.
      token_bytes: int32 [vocab_size], bytes that a token stands for; 0 for special tokens.
    """

    vocab_size: int
    bos: int
    eos: int
    digest: str
    token_bytes: np.ndarray

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Returns the tokens of each UTF-8 text, without special ones: int32 [length]."""

    def decode(self, tokens: np.ndarray) -> str:
        """Returns the text of tokens; special ones vanish, incomplete characters become U+FFFD."""

    def to_json(self) -> str:
        """Returns what `tokenizer_from_json` reads back."""


class ByteTokenizer:
    """Tokens 0 to 255 are bytes; 256, 257 and 258 are padding, start and end."""

    vocab_size = _BYTES + 3
    bos = _BYTES + 1
    eos = _BYTES + 2

    def __init__(self) -> None:
        self.digest = digest_of(["bytes", 1])
        self.token_bytes = np.array([1] * _BYTES + [0] * 3, dtype=np.int32)

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """See `Tokenizer.encode_batch`."""
        return [np.frombuffer(text, dtype=np.uint8).astype(np.int32) for text in texts]

    def decode(self, tokens: np.ndarray) -> str:
        """See `Tokenizer.decode`."""
        values = np.asarray(tokens)
        return values[values < _BYTES].astype(np.uint8).tobytes().decode(errors="replace")

    def to_json(self) -> str:
        """See `Tokenizer.to_json`."""
        return json.dumps({"kind": "bytes"})


class HuggingFaceTokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    def __init__(self, text: str, *, bos: str, eos: str, where: str) -> None:
        """Reads the content of a ``tokenizer.json``.

        Raises:
          ValueError: it cannot be read, or has no token ``bos`` or ``eos``.
        """
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise ValueError(f"{where}: not a tokenizer.json ({error}).") from error
        self._spec = json.loads(text)
        self._names = (bos, eos)
        # Otherwise text that contains "<|eos|>" would end a document.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        special = {
            t["content"]: t["id"] for t in self._spec.get("added_tokens") or [] if t["special"]
        }
        for name in (bos, eos):
            if name not in special:
                raise ValueError(
                    f"{where}: no special token {name!r}; it has {sorted(special)}. Set "
                    "TokenizerFile.bos and TokenizerFile.eos."
                )
        self.bos, self.eos = special[bos], special[eos]
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.digest = digest_of(["huggingface", self._spec, bos, eos])
        self.token_bytes = np.zeros(self.vocab_size, dtype=np.int32)
        count = _byte_counter(self._spec)
        for token, number in vocabulary.items():
            if token not in special:
                self.token_bytes[number] = count(token)

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """See `Tokenizer.encode_batch`."""
        encoded = self._tokenizer.encode_batch_fast(
            [text.decode() for text in texts], add_special_tokens=False
        )
        return [np.array(one.ids, dtype=np.int32) for one in encoded]

    def decode(self, tokens: np.ndarray) -> str:
        """See `Tokenizer.decode`."""
        return str(self._tokenizer.decode(np.asarray(tokens).tolist(), skip_special_tokens=True))

    def to_json(self) -> str:
        """See `Tokenizer.to_json`."""
        bos, eos = self._names
        return json.dumps({"kind": "huggingface", "bos": bos, "eos": eos, "spec": self._spec})


def _sentence_piece_bytes(token: str) -> int:
    """In a SentencePiece-like vocabulary "▁" is a space and <0x41> a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return 1
    return len(token.replace("▁", " ").encode())


def _byte_counter(spec: dict[str, Any]) -> Callable[[str], int]:
    """Returns token's name -> bytes; in a byte-level vocabulary a character stands for a byte."""
    stages = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
    return len if '"ByteLevel"' in stages else _sentence_piece_bytes


def tokenizer_from_json(text: str, *, where: str) -> Tokenizer:
    """Returns the tokenizer whose `Tokenizer.to_json` gave ``text``."""
    value = json.loads(text)
    if value["kind"] == "bytes":
        return ByteTokenizer()
    spec = json.dumps(value["spec"], ensure_ascii=False)
    return HuggingFaceTokenizer(spec, bos=value["bos"], eos=value["eos"], where=where)


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Returns a tokenizer that needs no training.

    Raises:
      ValueError: the file is missing or unfit.
    """
    match config:
        case Bytes():
            return ByteTokenizer()
        case TokenizerFile():
            path = Path(config.path)
            if not path.is_file():
                raise ValueError(
                    f"TokenizerFile.path={config.path!r}: no such file ({path.absolute()})."
                )
            text = path.read_text(encoding="utf-8")
            return HuggingFaceTokenizer(text, bos=config.bos, eos=config.eos, where=str(path))
    raise ValueError(f"{type(config).__name__} is not a tokenizer that can be loaded.")


def train_bpe(texts: Iterable[str], *, config: TrainedBpe) -> Tokenizer:
    """Trains a byte-level byte-pair encoding (Sennrich et al., 2016; bytes as in GPT-2).

    Raises:
      ValueError: ``vocab_size`` is smaller than the bytes and special tokens, or larger than the
        text supports.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    least = _BYTES + 3
    if config.vocab_size < least:
        raise ValueError(
            f"TrainedBpe.vocab_size={config.vocab_size}: 256 bytes and 3 special tokens need at "
            f"least {least}."
        )
    built: tokenizers.Tokenizer = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    built.train_from_iterator(texts, trainer)
    if built.get_vocab_size() != config.vocab_size:
        raise ValueError(
            f"TrainedBpe.vocab_size={config.vocab_size}, but the training text supports only "
            f"{built.get_vocab_size()} tokens. Lower it, or train on more text."
        )
    return HuggingFaceTokenizer(built.to_str(), bos=BOS, eos=EOS, where="trained BPE")
