"""Write the list of what is refused into docs/switching.md, from the table of the drop-in.

    python scripts/list_refusals.py           # write it
    python scripts/list_refusals.py --check   # exit 1 if the page has another one
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from dgl_heta.distdgl.refusals import TABLE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "switching.md"
BEGIN, END = "<!-- refusals: made by scripts/list_refusals.py -->", "<!-- end of refusals -->"


def table() -> str:
    """Return the list as a table in Markdown, in the order of the entries."""
    rows = [f"| {entry.what} | {entry.met} | {_sentence(entry.remedy)} |"
            for entry in TABLE.values()]
    return "\n".join(["| refused | met when | instead |", "|---|---|---|", *rows])


def _sentence(remedy: str) -> str:
    """Return a remedy for a cell, with … in place of the facts of one case."""
    return re.sub(r"\{\w+\}", "…", remedy).replace("|", "\\|") or "see below"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=(
        argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it differs")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if options.check:
        if wanted != text:
            raise SystemExit(f"{PAGE.name} has another list of refusals than the table; write it "
                             "by python scripts/list_refusals.py")
        return
    PAGE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
