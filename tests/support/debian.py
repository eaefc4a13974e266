"""A tiny archive of Debian packages."""

from __future__ import annotations

import numpy as np
from dgl_heta_datasets.debian.building import Rules, build
from dgl_heta_datasets.debian.records import (
    parse_records,
)

TINY = Rules(class_packages=3, class_sources=2, word_packages=1, judged_packages=1,
             restating_share=1.1)

ARCHIVE = """\
Package: alpha
Version: 1.0-1
Installed-Size: 120
Maintainer: First Person <First@example.org>
Architecture: amd64
Pre-Depends: beta
Depends: beta:any (>= 1.0) | gamma [amd64], mail-agent, nowhere (<< 2),
 delta
Provides: shell-thing (= 1)
Description: fast alpha viewer for pictures
 The longer text is about perl and is not read.
Homepage: https://www.example.org/alpha
Tag: role::program, use::viewing, culture::TODO,
 interface::commandline
Section: net
Size: 1000

# a comment between paragraphs

Package: beta
Source: alpha (1.0)
Maintainer: The same person <first@EXAMPLE.org>
Recommends: alpha
Suggests: alpha, alpha
Provides: mail-agent
Tag: use::viewing
Homepage: http://example.org
Description: viewer plugin
Section: contrib/net

Package: gamma
Source: gamma-source
Maintainer: Second Person
Provides: mail-agent, shell-thing
Conflicts: mail-agent, beta
Breaks: beta (<< 1), gamma
Description: pictures in a terminal
Section: net
Size: none

Package: delta
Description: a collection of things
Section: doc

Package: lonely
Maintainer: Second Person
Section: misc

Package: without-a-section
Maintainer: Second Person
"""


def tiny_arrays() -> dict[str, np.ndarray]:
    return build(parse_records(ARCHIVE.splitlines()), TINY, date="2026-01-02",
                 release="a tiny archive")
