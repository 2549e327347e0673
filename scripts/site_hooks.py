"""What the documentation site needs besides the files in docs/; mkdocs.yml names this file.

The documents at the root of the repository are pages of the site, too. And documents link to files as a reader of the
repository finds them: a link to a page becomes a link of the site, a link to any other file becomes its path in code.
A link to a file that is not there stays, so that the build complains.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
#: Documents at the root, by the page that they become.
ROOT_PAGES: Final = MappingProxyType(
    {
        "architecture.md": "ARCHITECTURE.md",
        "changelog.md": "CHANGELOG.md",
        "contributing.md": "CONTRIBUTING.md",
        "security.md": "SECURITY.md",
    }
)
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
#: What is code is no link.
_FENCE: Final = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the documents at the root."""
    from mkdocs.structure.files import File

    for page, document in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / document)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite a page's links."""
    name = page.file.src_uri
    return site_links(markdown, ROOT_PAGES.get(name, f"docs/{name}"))


def site_links(markdown: str, document: str) -> str:
    """The links of a document, a path in the repository, as the site needs them."""
    pieces = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_rewrite(markdown[end : fence.start()], document), fence[0]]
        end = fence.end()
    return "".join([*pieces, _rewrite(markdown[end:], document)])


def _rewrite(text: str, document: str) -> str:
    return _LINK.sub(lambda link: _site_link(link, document), text)


def _site_link(link: re.Match[str], document: str) -> str:
    words, target, anchor = link[1], link[2], link[3] or ""
    if ":" in target:
        return link[0]
    path = PurePosixPath(os.path.normpath(PurePosixPath(document).parent / target))
    pages = {of: page for page, of in ROOT_PAGES.items()}
    if str(path) in pages:
        return f"[{words}]({pages[str(path)]}{anchor})"
    if path.is_relative_to("docs"):
        return f"[{words}]({path.relative_to('docs')}{anchor})"
    if (ROOT / path).exists():
        return words if words.startswith("`") else f"`{path}`" if words == str(path) else f"{words} (`{path}`)"
    return link[0]
