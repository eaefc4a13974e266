"""Package records: the paragraphs of a control file, and what their fields say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# What the names of sections abbreviate; the names themselves come from the records.
SPELLED_OUT = frozenset({
    "administration", "communication", "communications", "development", "documentation", "go",
    "libraries", "library", "mathematics", "miscellaneous", "network", "networking",
    "utilities", "utility",
})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*")
_WORD = re.compile(r"[a-z][a-z0-9+#]+")
_HOST = re.compile(r"https?://(?:[^/@]*@)?(?:www\.)?([^/:?#\s]+)", re.IGNORECASE)
_ADDRESS = re.compile(r"<([^>]+)>")


def parse_records(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a control file as field: value, without further checks.

    Folded lines stay separate lines of the value. Comments and lines that are neither a
    field nor the continuation of one are skipped.
    """
    record: dict[str, str] = {}
    field = None
    for line in lines:
        line = line.rstrip()
        if not line:
            if record:
                yield record
            record, field = {}, None
        elif line[0] in " \t":
            if field is not None:
                record[field] += "\n" + line.strip()
        elif not line.startswith("#"):
            name, colon, value = line.partition(":")
            field = name if colon and " " not in name else None
            if field is not None:
                record[field] = value.strip()
    if record:
        yield record


def named_packages(record: dict[str, str], fields: Iterable[str]) -> list[str]:
    """The names in dependency fields, each once, in order: `a (>= 1) | b:any, c` → a, b, c."""
    names: dict[str, None] = {}
    for field in fields:
        for part in re.split(r"[,|]", record.get(field, "")):
            match = _NAME.match(part.strip())
            if match:
                names[match[0]] = None
    return list(names)


def section(record: dict[str, str]) -> str:
    """The section without its area: `contrib/net` is `net`."""
    return record["Section"].rsplit("/", 1)[-1].strip().lower()


def source_name(record: dict[str, str]) -> str:
    words = record.get("Source", "").split()
    return words[0] if words else record["Package"]


def tags(record: dict[str, str]) -> list[str]:
    """The debtags of a record; placeholders such as `culture::TODO` are left out."""
    given = (tag.strip() for tag in record.get("Tag", "").split(","))
    return sorted({tag for tag in given if "::" in tag and not tag.lower().endswith("::todo")})


def maintainer(record: dict[str, str]) -> list[str]:
    """The address of the maintainer, or the name where there is no address."""
    text = record.get("Maintainer", "").strip()
    match = _ADDRESS.search(text)
    return [(match[1] if match else text).strip().lower()] if text else []


def site(record: dict[str, str]) -> list[str]:
    match = _HOST.match(record.get("Homepage", ""))
    return [match[1].lower()] if match else []


def words(record: dict[str, str], forbidden: frozenset[str] = frozenset()) -> list[str]:
    """The words of the synopsis without those of the package's own name, sorted."""
    text = record.get("Description") or record.get("Description-en") or ""
    own = _name_words(record["Package"]) | _name_words(source_name(record))
    stems = {word.rstrip("0123456789") for word in _WORD.findall(text.split("\n")[0].lower())}
    return sorted(word for word in stems
                  if len(word) > 1 and word not in own and word not in forbidden)


def _name_words(name: str) -> set[str]:
    """Words that a name is made of: `libfoo-bar2-dev` → foo, bar, dev, libfoo, foobar, …"""
    parts = [part.rstrip("0123456789") for part in re.split(r"[^a-z0-9+#]+", name.lower())]
    joined = "".join(parts)
    return {form for part in [*parts, joined] for form in (part, part.removeprefix("lib"))}


def section_words(sections: Iterable[str]) -> frozenset[str]:
    """Section names, their parts, and these with and without a plural s."""
    parts = {part for name in sections for part in [name, *re.split(r"[^a-z0-9]+", name)]}
    stems = {part.removesuffix("s") for part in parts if len(part) > 1}
    return SPELLED_OUT | stems | {stem + "s" for stem in stems} | parts
