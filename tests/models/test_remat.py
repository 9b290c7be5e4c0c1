"""A policy says of each named value whether it is kept, moved to host memory or computed again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.decoder_config import DecoderConfig
from models.remat import SAVEABLE, SELECTIVE, Remat

SHAPE = {"vocab_size": 8, "embed_dim": 8, "heads": 2, "kv_heads": 1, "mlp_dim": 8}
OFFLOAD = "save:attention;offload:mlp_up,mlp_gate"


def test_named_policies():
    assert Remat.parse("none") is None
    assert Remat.parse("full") == Remat()
    assert Remat.parse("selective") == Remat(save=SELECTIVE)


@given(st.permutations(SAVEABLE), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_choice_of_names_is_read_as_written(names, saved, offloaded, swap):
    save, offload = tuple(names[:saved]), tuple(names[saved : saved + offloaded])
    clauses = [f"save:{','.join(save)}", f"offload:{','.join(offload)}"]
    parsed = Remat.parse(";".join(reversed(clauses) if swap else clauses))
    assert parsed == Remat(save=save, offload=offload)
    assert parsed.kept == save + offload
    assert Remat.parse(clauses[1]) == Remat(offload=offload)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("sometimes", "'none', 'selective', 'full'"),
        ("save:", "Unknown or twice: ''"),
        ("save:query,kye", "Unknown or twice: 'kye'"),
        ("save:query;offload:query", "Unknown or twice: 'query'"),
        ("save:query;save:key", "allowed are"),
        ("offload:mlp_up;", "allowed are"),
        ("discard:query", "allowed are"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_names(policy, said):
    with pytest.raises(ValueError, match="mlp_gate") as caught:
        DecoderConfig(**SHAPE, layers=2, remat=policy)
    assert said in str(caught.value)
    assert repr(policy) in str(caught.value)


@pytest.mark.parametrize("how", [{"layers": 2}, {"layers": 9, "scan_layers": False}])
def test_offloading_unrolled_layers_is_refused(how):
    with pytest.raises(ValueError, match="scan_layers=True"):
        DecoderConfig(**SHAPE, **how, remat=OFFLOAD)


@pytest.mark.parametrize("how", [{"layers": 9}, {"layers": 2, "scan_layers": True}])
def test_offloading_scanned_layers_is_allowed(how):
    choices = DecoderConfig(**SHAPE, **how, remat=OFFLOAD).remat_choices
    assert choices.offload == ("mlp_up", "mlp_gate")
