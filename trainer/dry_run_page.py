"""``python -m trainer.dry_run_page`` writes the example of docs/dry_run.md."""

import sys

from trainer.config_parser import REPOSITORY
from trainer.dry_run import examine
from trainer.dry_run_report import show
from trainer.fleet import load_cluster

PAGE = REPOSITORY / "docs" / "dry_run.md"
FILE, CLUSTER = "configs/runs/llama3_8b_8.gin", "h100_8"
_BEGIN = "<!-- example: written by python -m trainer.dry_run_page -->\n"
_END = "<!-- end of example -->\n"


def written(text: str, *, example: str) -> str:
    """Returns the page's text with another example."""
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n```text output\n{example}\n```\n\n{_END}{tail}"


def example() -> str:
    """Returns what the page's command prints."""
    return show(examine((FILE,), (), cluster=load_cluster(CLUSTER)))


def main() -> int:
    """Writes the page."""
    PAGE.write_text(written(PAGE.read_text(), example=example()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
