"""Text that somebody else may log, print or send."""


def whole(text: str) -> str:
    """`text` with half characters spelled out: they come from cut-off names and from file names that are no
    UTF-8, and end whoever sends them on, such as ComfyUI's worker.
    """
    return text.encode("utf-8", "backslashreplace").decode()
