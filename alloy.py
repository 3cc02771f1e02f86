"""Run LoRA Alloy from a clone: makes a private environment beside this file when one is needed, then runs.

Only the standard library, and a grammar that older Pythons can read, so that they can say they are too old.
"""

import sys

if sys.version_info < (3, 10):
    sys.exit(
        f"LoRA Alloy needs Python 3.10 or newer, and this is {sys.version_info[0]}.{sys.version_info[1]} "
        f"({sys.executable}). Run alloy.py with a newer one."
    )

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parent
HOME = Path(os.environ.get("LORA_ALLOY_VENV") or ROOT / ".venv").absolute()
STATE = HOME / "lora-alloy.json"
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"

# Package -> the oldest version that will do: pyproject.toml's dependencies and extras; a test compares them.
GROUPS = {
    "run": {"torch": "2.4", "safetensors": "0.4.5", "numpy": "1.26"},
    "dev": {"pytest": "8.3", "pytest-xdist": "3.6"},
    "lint": {"ruff": "0.12", "pyright": "1.1.400"},
    "peers": {
        "peft": "0.13",
        "diffusers": "0.32",
        "transformers": "4.46",
        "accelerate": "1.0",
        "lycoris-lora": "4.1",
    },
    "browser": {"playwright": "1.50"},
    "workers": {"distributed": "2024.8"},
}
LARGE_BYTES = 1_000_000_000
OLDEST_PIP = "23.2"  # the first that reads sizes and dependencies without downloading everything

USAGE = """\
python alloy.py demo             make three small LoRAs, merge them, prove the result, say where it is
python alloy.py test [ARGS]      run the tests; ARGS are pytest's, paths count from this folder
python alloy.py setup [GROUP...] only set up .venv; groups: dev (default), lint, peers, browser, workers
python alloy.py COMMAND ...      inspect, analyze, merge, tune, resize, convert, verify, methods, memory;
                                 `python alloy.py merge --help` explains one

--yes, or LORA_ALLOY_YES=1       do not ask before a large download; LORA_ALLOY_YES=0: never start one
LORA_ALLOY_TORCH=...             which torch to install: a version, a wheel's path, or arguments for pip
LORA_ALLOY_VENV=...              the environment's folder, instead of .venv beside this file
"""


class SetupError(Exception):
    """The launcher cannot go on; its text says why, and what to do."""


def main(words: list[str]) -> int:
    """Run one command and return its exit code."""
    yes = consent(words)
    words = [word for word in words if word != "--yes"]
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0
    command, rest = words[0], words[1:]
    groups = {"test": ["dev"], "setup": rest or ["dev"]}.get(command, [])
    try:
        if command != "setup" and not is_ready(groups) and not is_inside() and serves(groups):
            if command in ("demo", "test"):
                say(f"using {sys.executable}, which has torch {version_of('torch')}")
            return run(command, rest)
        if not is_ready(groups):
            set_up(groups, yes)
        if command == "setup":
            return 0
        return run(command, rest) if is_inside() else hand_over([venv_python(), __file__, *words])
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def consent(words: list[str]) -> bool | None:
    """Whether a large download was allowed or forbidden beforehand; `None` if nothing was said."""
    given = os.environ.get("LORA_ALLOY_YES", "").lower()
    if "--yes" in words or given in ("1", "yes", "true"):
        return True
    return False if given in ("0", "no", "false") else None


def say(text: str) -> None:
    """Tell the user something, on stderr: stdout belongs to the command."""
    sys.stderr.write(f"alloy: {text}\n")
    sys.stderr.flush()


def version_of(name: str) -> str:
    """The version of a package that this interpreter finds, or an empty string."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_at_least(version: str, minimum: str) -> bool:
    """Compare release numbers; suffixes such as `+cpu` or `rc1` do not count."""
    found, least = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (version, minimum))
    return found >= least


def has_torch() -> bool:
    """Whether this interpreter brings a torch that will do, and nobody asked for another one."""
    if os.environ.get("LORA_ALLOY_TORCH") or not is_at_least(version_of("torch"), GROUPS["run"]["torch"]):
        return False
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        say(f"the torch of {sys.executable} does not load ({error}), so it is left alone")
        return False
    return True


def needs(groups: list[str]) -> dict[str, str]:
    """The packages of these groups, with their oldest versions."""
    return {name: least for group in ["run", *groups] for name, least in GROUPS[group].items()}


def serves(groups: list[str]) -> bool:
    """Whether this interpreter has, as it is, all that a command with these groups needs."""
    return all(is_at_least(version_of(name), least) for name, least in needs(groups).items()) and has_torch()


def is_inside() -> bool:
    """Whether this interpreter is the environment's own."""
    return Path(sys.prefix).resolve() == HOME.resolve()


def venv_python() -> str:
    """The path of the environment's interpreter."""
    return str(HOME / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def key() -> str:
    """A hash of what decides the environment's contents; when it changes, we install again."""
    files = [(ROOT / name).read_bytes() for name in ("constraints.txt", "pyproject.toml")]
    return hashlib.sha256(b"\n".join(files).replace(b"\r\n", b"\n")).hexdigest()


def read_state() -> dict:
    """What the environment was made of; empty if it was never finished."""
    try:
        return dict(json.loads(STATE.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def can_keep(state: dict) -> bool:
    """Whether the environment can stay, if need be with something added."""
    return (
        "key" in state
        and state["python"] == MINOR
        and os.environ.get("LORA_ALLOY_TORCH") in (None, "", state["spec"])
        and all(Path(folder).is_dir() for folder in state["borrowed"])
        and Path(venv_python()).exists()
    )


def is_ready(groups: list[str]) -> bool:
    """Whether the environment serves these groups as it stands."""
    state = read_state()
    return can_keep(state) and state["key"] == key() and set(groups) <= set(state["groups"])


def set_up(groups: list[str], yes: bool | None) -> None:
    """Make the environment, or bring it up to date, and note what it holds."""
    for group in groups:
        if group not in GROUPS:
            raise SetupError(f"there is no group {group!r}. Known: {', '.join(list(GROUPS)[1:])}.")
    state = read_state()
    spec = os.environ.get("LORA_ALLOY_TORCH") or state.get("spec", "")
    borrowed: list[str] = state.get("borrowed", [])
    groups = sorted({*groups, *state.get("groups", [])})
    if not can_keep(state) and not is_inside():
        borrowed = package_folders() if not spec and has_torch() else []
        create()
        if borrowed:
            say(f"using the torch {version_of('torch')} of {sys.executable}")
            lend(borrowed)
    install(groups, spec, borrowed, yes)
    note = {"key": key(), "python": MINOR, "groups": groups, "spec": spec, "borrowed": borrowed}
    STATE.write_text(json.dumps(note), encoding="utf-8")


def package_folders() -> list[str]:
    """The folders from which this interpreter imports packages, in its order, torch's own among them."""
    folders = {Path(str(found.locate_file(""))).absolute() for found in importlib.metadata.distributions()}
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        folders.add(Path(torch.origin).parent.parent)
    in_order = dict.fromkeys([*(Path(entry).absolute() for entry in sys.path), *sorted(folders)])
    return [str(folder) for folder in in_order if folder in folders - {ROOT}]


def create() -> None:
    """Make the environment anew, empty."""
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise SetupError(
            f"{sys.executable} has no `venv` and `ensurepip` to make an environment with. Debian and Ubuntu "
            "have them in the package python3-venv; or run alloy.py with another Python."
        )
    try:
        if HOME.exists() and any(HOME.iterdir()) and not STATE.exists():
            raise SetupError(
                f"{HOME} was not made by alloy.py, which therefore leaves it alone. Rename it, or name "
                "another folder in LORA_ALLOY_VENV."
            )
        if HOME.exists():
            shutil.rmtree(HOME)
        HOME.mkdir(parents=True)
        STATE.write_text("{}", encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{HOME} cannot be made: {error}.") from error
    say(f"making {HOME} with Python {MINOR}")
    if subprocess.call([sys.executable, "-m", "venv", str(HOME)], stdout=sys.stderr) != 0:
        raise SetupError(f"{HOME} could not be made; the reason is above.")
    if not is_at_least(importlib.import_module("ensurepip").version(), OLDEST_PIP):
        pip(["--upgrade", "pip", "--constraint", str(ROOT / "constraints.txt")])


def lend(folders: list[str]) -> None:
    """Let the environment import from these folders what it does not have itself."""
    purelib = Path(ask_venv("import sysconfig; print(sysconfig.get_path('purelib'))"))
    line = f"import sys; sys.path.extend({ascii(folders)})\n"
    (purelib / "borrowed.pth").write_text(line, encoding="ascii")  # Pythons differ in how they read others


def ask_venv(code: str) -> str:
    """What the environment's interpreter prints for `code`."""
    command = [venv_python(), "-X", "utf8", "-c", code]
    found = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    if found.returncode != 0:
        raise SetupError(f"{HOME} does not work; the reason is above. Remove that folder and try again.")
    return found.stdout.strip()


def install(groups: list[str], spec: str, borrowed: list[str], yes: bool | None) -> None:
    """Install what the groups need and nobody lends, at the tested versions, and torch as `spec` says."""
    if spec:
        pip_install(torch_arguments(spec), yes)
    lines = constraints(leave_out=set())
    if spec or borrowed:
        torch = ask_venv("import importlib.metadata as m; print(m.version('torch'))")
        there = {found.metadata["Name"] for found in importlib.metadata.distributions(path=borrowed)}
        lines = constraints(leave_out={"torch", *there}) + f"torch=={torch}\n"
    pins = HOME / "constraints.txt"
    pins.write_text(lines, encoding="utf-8")
    wanted = [f"{name}>={least}" for name, least in needs(groups).items()]
    pip_install([*wanted, "--constraint", str(pins)], yes)
    ask_venv("import torch, safetensors, numpy")


def constraints(leave_out: set[str]) -> str:
    """The text of constraints.txt without the lines of some packages."""
    skip = {normal(name) for name in leave_out}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return "".join(f"{line}\n" for line in lines if normal(re.split(r"[=;\s]", line)[0]) not in skip)


def normal(name: str) -> str:
    """A package's name, spelt as comparisons want it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def torch_arguments(spec: str) -> list[str]:
    """What pip is asked for when the user put `spec` into LORA_ALLOY_TORCH."""
    if Path(spec).exists():
        return [str(Path(spec).absolute())]
    if re.match(r"\d[\w.+!]*$", spec):
        return [f"torch=={spec}"]
    words = shlex.split(spec, posix=os.name != "nt")
    if any(re.match(r"torch(?![\w-])", word) or word.endswith(".whl") for word in words):
        return words
    return [*re.findall(r"^torch==\S+", constraints(leave_out=set()), re.MULTILINE), *words]


def pip(arguments: list[str]) -> None:
    """Let the environment's pip install something."""
    # Compiling all of torch takes longer than everything else here, and Python compiles what it imports.
    quietly = ["--no-compile", "--disable-pip-version-check"]
    command = [venv_python(), "-m", "pip", "install", *quietly, *arguments]
    if not sys.stderr.isatty():
        command.append("--quiet")
    if subprocess.call(command, stdout=sys.stderr) != 0:
        raise SetupError(
            "pip could not install that; its reason is above. With a Python that already has torch there is "
            "less to install, and LORA_ALLOY_TORCH chooses another torch: docs/install.md has examples."
        )


def pip_install(arguments: list[str], yes: bool | None) -> None:
    """Find out what pip would install, say it, and do it if nobody minds."""
    say("asking pip what is missing; this may take a minute")
    report = HOME / "report.json"
    pip(["--quiet", "--dry-run", "--report", str(report), *arguments])
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    report.unlink()
    if not found:
        return
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size_bytes, [wheel["download_info"]["url"] for wheel in found]))
    names = [f"{wheel['metadata']['name']} {wheel['metadata']['version']}" for wheel in found]
    unknown = f", and {sizes.count(0)} of unknown size" if 0 in sizes else ""
    say(f"{HOME} gets {', '.join(names)}; {megabytes(sum(sizes))} to download{unknown}")
    is_gpu = any(re.match(r"nvidia|cuda|.*rocm", name.lower()) for name in names)
    if is_gpu or sum(sizes) > LARGE_BYTES:
        agree(sum(sizes), is_gpu, yes)
    pip(arguments)


def size_bytes(url: str) -> int:
    """The size of what is at `url`; 0 if it does not tell."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError, HTTPException):
        return 0


def megabytes(count: int) -> str:
    """A number of bytes, for people."""
    return f"{count / 1e9:.1f} GB" if count >= LARGE_BYTES else f"{count / 1e6:.0f} MB"


def agree(download_bytes: int, is_gpu: bool, yes: bool | None) -> None:
    """Explain a large download, and ask if somebody is there to answer.

    Without a terminal it goes on, having said so, unless LORA_ALLOY_YES=0: an unattended set-up must end.

    Raises:
        SetupError: the answer is no, or the disk has no room.
    """
    why = ", because torch comes in its GPU build" if is_gpu else ""
    say(
        f"This is a large download, {megabytes(download_bytes)}, and up to three times that on disk{why}. "
        "LoRA Alloy needs no GPU. For less, set LORA_ALLOY_TORCH to a CPU build, for example to '--index-url "
        "ADDRESS' with the address that PyTorch's installation page gives for CPU; or run alloy.py with a "
        f"Python that has torch {GROUPS['run']['torch']} or newer, such as ComfyUI's. See docs/install.md."
    )
    free = shutil.disk_usage(HOME).free
    if free < 3 * download_bytes:
        raise SetupError(f"only {megabytes(free)} are free on the disk of {HOME}. Nothing was installed.")
    if yes is None and sys.stdin and sys.stdin.isatty() and sys.stderr.isatty():
        say("Download it? Type y for yes, or only Enter for no.")
        yes = sys.stdin.readline().strip().lower() in ("y", "yes")
    if yes is False:
        raise SetupError("nothing of it was installed.")


def run(command: str, rest: list[str]) -> int:
    """Run a command in this interpreter, from the files beside this one."""
    # Python put this folder first, where our `nodes` would hide ComfyUI's.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
    if command == "test":
        os.chdir(ROOT)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        return int(importlib.import_module("pytest").main(rest or ["-n", "auto"]))
    spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert spec and spec.loader
    sys.modules["lora_alloy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["lora_alloy"])
    return importlib.import_module("lora_alloy.cli").main([command, *rest])


def hand_over(command: list[str]) -> int:
    """Become `command`; where a process cannot, wait for it and leave Ctrl-C to it."""
    if os.name != "nt":
        os.execv(command[0], command)
    child = subprocess.Popen(command)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
