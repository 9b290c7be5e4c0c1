"""What transformers makes of conversations. Run with it on the path: ``reference_chats.py FOLDER``.

FOLDER/question.json maps names to a folder, conversations and texts; answer.json gets the tokens of
each, and the masks of what the assistant wrote where the template marks it.
"""

import json
import pathlib
import sys

import transformers


def main(folder: pathlib.Path) -> None:
    """Answers all questions."""
    question = json.loads((folder / "question.json").read_text())
    answer = {name: answered(**asked) for name, asked in question.items()}
    (folder / "answer.json").write_text(json.dumps(answer))


def answered(folder: str, conversations: list, texts: list[str]) -> dict[str, list]:
    """Answers for one tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    marked = "generation %}" in (tokenizer.chat_template or "")
    made = [
        tokenizer.apply_chat_template(
            one, tokenize=True, return_dict=True, return_assistant_tokens_mask=marked
        )
        for one in conversations
    ]
    return {
        "tokens": [one["input_ids"] for one in made],
        "masks": [one["assistant_masks"] for one in made] if marked else [],
        "starts": tokenizer("the cat")["input_ids"][0],
        "texts": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts],
    }


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
