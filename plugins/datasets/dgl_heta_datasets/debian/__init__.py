"""The Debian package archive as a heterogeneous graph: predict the section of a package.

A frozen snapshot is part of the package, so :func:`load` needs no network. It is built by
`scripts/build_debian_snapshot.py` from the records that `apt-cache dumpavail` prints.

Node types and forward relations; each has a reverse `rev-…`:

- package `depends` (with Pre-Depends), `recommends`, `suggests`, `enhances` and `conflicts`
  (with Breaks) package. Every alternative of `a | b` counts; versions and architecture
  qualifiers are ignored, names that are not in the archive too.
- package `provides` and `depends-virtual` virtual: a virtual package is a name in Provides
  that at least two packages provide or depend on. A dependency on a name that is a real
  package too is a `depends` edge only.
- package `built-from` source, `maintained-by` maintainer, `tagged` tag, and `homepage-at`
  site: the host of the homepage, where at least two packages have it.

Only packages have static features: 128 signed hash buckets of the words of the synopsis
(tf-idf, unit length) and eight standardised numbers (sizes, numbers of dependencies).
Labels are sections without their area (`non-free/net` is `net`). Packages of a section with
fewer than 100 packages or fewer than 20 sources keep their node with label -1, in no mask.
All packages of a source are in the same split, drawn from a hash of the name of the source.

What keeps the section out of the inputs:

- No name is stored or hashed, except those of the classes and tags. Node ids are in the
  order of a hash of the name, so neighbours in id say nothing either.
- From a synopsis the words of the package's own name, of its source and of all section
  names are taken out, also what these abbreviate (development, library, go), and the
  longer description is not read.
- Priority, Multi-Arch and fields that only one language has (Ghc-Package, Ruby-Versions)
  are not read.
- Tag facets that say what a section says are left out: role, devel, made-of,
  implemented-in, and every facet named like a section (game, mail, sound, …).
- A word, tag or site restates a section when at least 80 % of its packages are in one
  section (10 packages or more); it is left out. All labels decide this, those of the test
  split too, which can only make the task harder.

What remains is honest signal: a package that depends on the Perl interpreter, or that a
team for Haskell maintains, can be told by its edges; combinations of words tell much too.
"""

from dgl_heta_datasets.debian.snapshot import SNAPSHOT, load

__all__ = ["SNAPSHOT", "load"]
