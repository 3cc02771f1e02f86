"""What a file is that is no tensor file, by its first bytes, and what to do about it."""

from difflib import get_close_matches
from pathlib import Path

from .errors import FileError

PICKLED = (".pt", ".pth", ".ckpt", ".bin")


def gone(path: Path) -> str:
    """What is wrong with a name that no file has, and what to do."""
    if path.is_symlink():
        return f"is a link to `{path.readlink()}`, which does not exist; get the file, or name another."
    return f"does not exist; {_advice(path)}"


def _advice(path: Path) -> str:
    try:
        suffixes = (".safetensors", *PICKLED)
        there = sorted(each.name for each in path.parent.iterdir() if each.suffix.lower() in suffixes)
    except OSError:
        there = []
    whole = f"{path.name}.safetensors"
    near = [whole] if whole in there else get_close_matches(path.name, there, n=1)
    return f"did you mean `{near[0]}`?" if near else "check the name and the folder."


def is_safetensors(head: bytes, size_bytes: int) -> bool:
    """Whether a file that is called otherwise begins with the header of a safetensors file."""
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size_bytes - 8


def refuse_text(path: Path, head: bytes, size_bytes: int) -> None:
    """Stop at what is empty, a text, or a model of another kind.

    Raises:
        FileError: it is one of these.
    """
    if size_bytes == 0:
        raise FileError(f"`{path}` is empty; the download or the save did not finish. Get it again.")
    text = head.lstrip()[:64].lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise FileError(
            f"`{path}` is a web page, not a LoRA: the site answered the download with one, often a login"
            " page. Download it again."
        )
    if text.startswith(b"version https://git-lfs"):
        raise FileError(
            f"`{path}` is a Git-LFS pointer, not the file itself; run `git lfs pull` in its repository."
        )
    if head.startswith(b"GGUF"):
        raise FileError(f"`{path}` is a GGUF model, not a LoRA; name a `.safetensors` LoRA.")
    # A header's length has zeros in its upper bytes, and pickles and archives have signs of their own.
    if size_bytes >= 10 and not head.startswith(b"PK") and all(_is_text(byte) for byte in head[:64]):
        shown = " ".join(head[:64].decode("ascii").split())
        raise FileError(
            f"`{path}` is text, not a LoRA; it begins with `{shown}`. That may be what the site answered instead of the"
            " file, for want of a login. Download it again."
        )


def _is_text(byte: int) -> bool:
    return 32 <= byte < 127 or byte in b"\t\r\n"


def refuse_other_kinds(path: Path, head: bytes, size_bytes: int) -> None:
    """Stop at what no safetensors file begins with.

    Raises:
        FileError: it is an archive, a pickle, or cut off.
    """
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise FileError(
            f"`{path}` is a zip archive. If it is an old PyTorch file, rename it to end in `.pt`; otherwise"
            " unpack it."
        )
    if head.startswith((b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!")):
        raise FileError(f"`{path}` is a compressed archive; unpack it and name the file inside.")
    if head.startswith(b"\x80") and len(head) > 1 and head[1] in (2, 3, 4, 5) and head[2:3] != b"\x00":
        raise FileError(
            f"`{path}` is a Python pickle under another name, and may hold code; it is not opened."
        )
    if not any(head):
        raise FileError(f"`{path}` begins with zeros; the download or the copy did not finish. Get it again.")
    if size_bytes < 10:
        raise FileError(f"`{path}` has {size_bytes} bytes; no tensor file is that short. Get it again.")
