"""A small language for HTML pages: what `tag` did not build is escaped, so names from files are safe."""

from html import escape
from string import Template

from .style import STYLE

VOID = frozenset(("br", "meta"))

_PAGE = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="$generator">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
"""
)


class Html(str):
    """Text that is HTML already, made by `tag`."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | None) -> Html:
    """An element; children that are not `Html` are escaped, and so are attributes.

    Args:
        name: of the element.
        children: its content, in order.
        attributes: a trailing underscore is dropped, so that `class_` can be said; None leaves one out.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value, quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """Children one after another, escaped where they are not `Html`."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def page(title: str, generator: str, *body: Html) -> str:
    """A whole page that needs no other file, runs no script, and loads nothing."""
    return _PAGE.substitute(
        title=escape(title), generator=escape(generator), style=STYLE, body="\n".join(body)
    )
