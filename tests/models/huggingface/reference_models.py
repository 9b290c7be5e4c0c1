"""Builds the models of reference_cases.py with transformers, and writes what they compute.

Run with torch and transformers on the path: ``reference_models.py FOLDER``. FOLDER has
``given/config.json`` and ``written/config.json`` for each case, and gets ``model/`` (config.json
and weights as transformers saves them), ``gradients/`` (of the mean loss over all texts, under the
names of the weights) and ``reference.npz``: tokens, logits of each text alone and of right-padded
rows, and the latter with the same weights in a model of written/. What is in ``exported/`` is
loaded and saved to ``again/``; ``loading.json`` says what did not fit.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

PIECES = "pieces.json"


def main(folder: pathlib.Path) -> None:
    """Writes all cases."""
    torch.set_num_threads(1)
    lengths = json.loads((folder / PIECES).read_text())
    for number, case in enumerate(sorted(path.parent for path in folder.glob("*/given"))):
        torch.manual_seed(number)
        write(case, lengths=lengths)
        load_and_save(case)


def write(case: pathlib.Path, *, lengths: list[int]) -> None:
    """Writes one case."""
    model, again = (
        transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(case / name), attn_implementation="eager"
        ).eval()
        for name in ("given", "written")
    )
    randomize(model, gemma="gemma" in model.config.model_type)
    model.save_pretrained(case / "model")
    again.load_state_dict(model.state_dict())
    # Token 0 pads: torch gives its embedding no gradient.
    tokens = [torch.randint(1, model.config.vocab_size, (length,)) for length in lengths]
    logits = [model(input_ids=each[None]).logits[0] for each in tokens]
    loss = sum(
        torch.nn.functional.cross_entropy(x[:-1], each[1:], reduction="sum")
        for x, each in zip(logits, tokens, strict=True)
    )
    (loss / sum(length - 1 for length in lengths)).backward()
    arrays = {f"tokens_{n}": each for n, each in enumerate(tokens)}
    arrays |= {f"logits_{n}": each.detach() for n, each in enumerate(logits)}
    rows = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    mask = (torch.arange(rows.shape[1]) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        arrays["padded"] = model(input_ids=rows, attention_mask=mask).logits
        arrays["written"] = again(input_ids=rows, attention_mask=mask).logits
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.save_pretrained(case / "gradients")
    np.savez(case / "reference.npz", **{name: each.numpy() for name, each in arrays.items()})


def load_and_save(case: pathlib.Path) -> None:
    """Loads a folder that we wrote, as users do, and saves it."""
    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        case / "exported", dtype="auto", output_loading_info=True
    )
    model.save_pretrained(case / "again")
    said = {key: sorted(map(str, found)) for key, found in said.items() if found}
    (case / "loading.json").write_text(json.dumps(said))


def randomize(model: torch.nn.Module, *, gemma: bool) -> None:
    """Draws weights so large that scores spread, and moves norms and biases from where they are."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim == 1:
                parameter.add_(0.3 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5 if gemma else noise)
            else:
                gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
                parameter.copy_(gain * noise / parameter.shape[-1] ** 0.5)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
