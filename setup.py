"""The long description: README.md, without what a page outside the tree could not show.

Everything else stands in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
# Pictures and links to files of the tree; of a link the text stays.
readme = re.sub(r"!\[[^\]]*\]\((?!https?://)[^)]*\)\n*", "", readme)
readme = re.sub(r"\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", readme)
setup(long_description=readme, long_description_content_type="text/markdown")
