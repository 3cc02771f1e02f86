"""A headless Chromium on a ComfyUI server's own front-end, in either of its node renderers.

    with chromium() as browser, FrontEnd(browser, server, "vue") as front_end:
        stack = front_end.add("LoRAStackDynamic")
        front_end.press(stack, "lora_count")        # its right end: one more
        front_end.shown(stack)                      # the widgets on the screen, from top to bottom
        front_end.faults                            # what our scripts put on the console

Playwright drives it; the browser is the one that is installed.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Route, sync_playwright

from .comfy_client import ComfyClient

__all__ = ["CHROMIUM", "RENDERERS", "FrontEnd", "chromium"]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RENDERERS = ("canvas", "vue")

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
_OUR_SCRIPTS = "/extensions/comfyui-lora-alloy/"
_READY = "!!(window.app?.graph?.nodes.length && window.LiteGraph?.registered_node_types.LoRAStackDynamic)"
_SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Minimap.Visible": False, "Comfy.Workflow.Persist": False}
_SECONDS = 1000


@contextmanager
def chromium() -> Iterator[Browser]:
    """The installed browser, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield browser
        browser.close()


class FrontEnd:
    """One page with an empty graph. Nodes are meant by their id.

    Args:
        browser: from `chromium`.
        server: whose front-end is opened.
        renderer: one of `RENDERERS`.
        answers: by the beginning of a route, what to answer in place of the server; given the request's path
            with its query, and what the server answers to it, decoded, or None where it has no such route.
    """

    def __init__(
        self,
        browser: Browser,
        server: ComfyClient,
        renderer: str,
        answers: Mapping[str, Callable[[str, Any], Any]] | None = None,
    ) -> None:
        self.renderer = renderer
        self.faults: list[str] = []
        self._server = server
        self.page: Page = browser.new_page(viewport={"width": 1400, "height": 1000})
        self.page.route("**/*", self._stay_here)
        self._answers = answers or {}
        self.page.on("console", self._hear)
        self.page.on("pageerror", self._catch)

    def __enter__(self) -> "FrontEnd":
        self._server.request("/settings", {**_SETTINGS, "Comfy.VueNodes.Enabled": self.renderer == "vue"})
        self.page.goto(f"http://{self._server.address}/", wait_until="domcontentloaded")
        self.page.wait_for_function(_READY, timeout=120 * _SECONDS)
        assert self.script("() => LiteGraph.vueNodesMode") is (self.renderer == "vue")
        self.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.page.close()

    def _stay_here(self, route: Route) -> None:
        here = f"http://{self._server.address}"
        url = route.request.url
        for beginning, answer in self._answers.items():
            if url.startswith(here + beginning):
                real = route.fetch()
                route.fulfill(json=answer(url.removeprefix(here), real.json() if real.ok else None))
                return
        local = url.startswith((f"{here}/", "data:", "blob:"))
        route.continue_() if local else route.abort()

    def _hear(self, message: ConsoleMessage) -> None:
        place = message.location["url"]
        if message.type in ("error", "warning") and _OUR_SCRIPTS in f"{place} {message.text}":
            self.faults.append(f"{message.type}: {message.text} ({place})")

    def _catch(self, error: Error) -> None:
        self.faults.append(f"uncaught: {error}\n{error.stack}")

    def script(self, function: str, argument: object = None) -> Any:
        """Run a JavaScript function in the page and return what it returns."""
        return self.page.evaluate(function, argument)

    def frame(self) -> None:
        """Let two frames be drawn."""
        self.script("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def clear(self) -> None:
        """Empty the graph, and stand at its origin."""
        self.script("() => { app.graph.clear(); app.canvas.ds.scale = 1; app.canvas.ds.offset = [0, 0]; }")
        self.frame()

    def add(self, node_type: str, x: int = 120, y: int = 120) -> int:
        """Add a node to the graph; its id."""
        added = self.script(
            """([type, x, y]) => {
                const node = LiteGraph.createNode(type);
                node.pos = [x, y];
                app.graph.add(node);
                app.canvas.setDirty(true, true);
                return Number(node.id);
            }""",
            [node_type, x, y],
        )
        self.frame()
        return added

    def values(self, node: int) -> dict[str, Any]:
        """The value of every widget, hidden or not, by name."""
        code = "(id) => Object.fromEntries(app.graph.getNodeById(id).widgets.map((w) => [w.name, w.value]))"
        return self.script(code, node)

    def set(self, node: int, **values: object) -> None:
        """Set widgets as a script would."""
        code = """([id, values]) => {
            const { widgets } = app.graph.getNodeById(id);
            for (const [name, value] of Object.entries(values)) {
                widgets.find((w) => w.name === name).value = value;
            }
        }"""
        self.script(code, [node, values])
        self.frame()

    def shown(self, node: int) -> list[str]:
        """The names of the widgets that are on the screen, from top to bottom."""
        if self.renderer == "vue":
            code = """(id) => [...document.querySelectorAll(`[data-node-id="${id}"] [data-widget-name]`)]
                .filter((row) => row.getBoundingClientRect().height > 0)
                .map((row) => row.dataset.widgetName)"""
        else:
            code = """(id) => {
                const node = app.graph.getNodeById(id);
                return node.widgets.filter((w) => node.isWidgetVisible(w)).map((w) => w.name);
            }"""
        return self.script(code, node)

    def _place(self, node: int, widget: str) -> tuple[float, float, float]:
        """Left and right end of a widget's row on the screen, and its middle height."""
        if self.renderer == "vue":
            box = self.page.locator(f'[data-node-id="{node}"] [data-widget-name="{widget}"]').bounding_box()
            assert box, widget
            return box["x"] + 20, box["x"] + box["width"] - 12, box["y"] + box["height"] / 2
        return self.script(
            """([id, name]) => {
                const node = app.graph.getNodeById(id);
                const widget = node.widgets.find((w) => w.name === name);
                const middle = node.pos[1] + widget.last_y + 10;
                const [x, y] = app.canvas.ds.convertOffsetToCanvas([node.pos[0], middle]);
                const { left, top } = app.canvas.canvas.getBoundingClientRect();
                const scale = app.canvas.ds.scale;
                return [left + x + 40 * scale, left + x + (node.size[0] - 27) * scale, top + y];
            }""",
            [node, widget],
        )

    def press(self, node: int, widget: str) -> None:
        """Click the right end of a widget: a number grows, a switch turns."""
        _, right, height = self._place(node, widget)
        self.page.mouse.click(right, height)
        self.frame()

    def choose(self, node: int, widget: str, option: str) -> None:
        """Open a menu and click an option, by what it shows."""
        left, right, height = self._place(node, widget)
        self.page.mouse.click((left + right) / 2, height)
        if self.renderer == "vue":
            self.page.get_by_role("option", name=option, exact=True).first.click()
        else:
            self.page.locator(".litecontextmenu .litemenu-entry", has_text=option).first.click()
        self.frame()

    def choose_from_context_menu(self, node: int, widget: str, entry: str) -> None:
        """Right-click a widget and click the entry that begins so."""
        left, _, height = self._place(node, widget)
        self.page.mouse.click(left, height, button="right")
        menu = ".litecontextmenu .litemenu-entry" if self.renderer == "canvas" else '[role="menuitem"]'
        self.page.locator(menu, has_text=entry).first.click()
        self.frame()

    def save(self) -> dict[str, Any]:
        """The workflow, as it would be written to a file."""
        return self.script("() => JSON.parse(JSON.stringify(app.graph.serialize()))")

    def load(self, workflow: dict[str, Any]) -> None:
        """Open a workflow in place of the graph."""
        self.script("async (workflow) => { await app.loadGraphData(workflow); }", workflow)
        self.frame()

    def undo(self) -> None:
        """Take the last step back, as its keys do."""
        self.page.mouse.click(1300, 900)
        with self.page.expect_event("console", lambda message: message.text == "configured"):
            self.script(
                """() => {
                    const { onConfigure } = app.graph;
                    app.graph.onConfigure = function (...args) {
                        app.graph.onConfigure = onConfigure;
                        onConfigure?.apply(this, args);
                        setTimeout(() => console.log("configured"));
                    };
                }"""
            )
            self.page.keyboard.press("Control+z")
        self.frame()

    def queue(self) -> str:
        """Run the graph as its button would; the id of the prompt."""
        with self.page.expect_response(lambda answer: answer.url.endswith("/api/prompt")) as answer:
            self.script("async () => { await app.queuePrompt(0); }")
        return answer.value.json()["prompt_id"]
