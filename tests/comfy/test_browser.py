"""The stack nodes on the screen: a real front-end, in both of its renderers, on every ComfyUI there is."""

import time
from collections.abc import Iterator

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from lora_alloy_testing.browser import CHROMIUM, RENDERERS, FrontEnd, chromium  # noqa: E402
from lora_alloy_testing.comfy_server import ComfyServer  # noqa: E402
from lora_alloy_testing.optimizer_layouts import MERGE_SETTINGS, OPTIMIZER, TODAY  # noqa: E402
from lora_alloy_testing.stack_layouts import FIELDS, LAYOUTS, NAMES, current  # noqa: E402

pytestmark = [
    pytest.mark.browser,
    pytest.mark.comfy,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

LORAS = ("ink.safetensors", "style/oil.safetensors", "sdxl/oil.safetensors", "people/anna.safetensors")
SWITCHES = ["settings_visibility", "input_mode", "lora_count"]
SIMPLE = ("enabled", "lora_name", "strength", "preserve")
ADVANCED = (
    "enabled",
    "lora_name",
    "model_strength",
    "clip_strength",
    "conflict_mode",
    "key_filter",
    "preserve",
)


# What the pack ComfyUI-Lora-Manager adds to a server, as far as our scripts ask for it.
LORA_MANAGER = {
    "/api/object_info": lambda _, known: {
        **known,
        "Lora Stacker (LoraManager)": known["PreviewAny"] | MANAGED,
    },
    "/api/lm/loras/base-models": lambda *_: {"base_models": [{"name": "SDXL 1.0"}, {"name": "Flux.1 D"}]},
    "/api/lm/loras/list": lambda path, _: {
        "items": [{"file_path": "/models/loras/sdxl/oil.safetensors", "base_model": "SDXL 1.0"}]
        if "page=2" in path
        else [{"file_path": "D:\\loras\\ink.safetensors", "base_model": "Pony"}],
        "total_pages": 2,
    },
}
MANAGED = {"name": "Lora Stacker (LoraManager)", "display_name": "Lora Stacker"}


def slots(count: int, fields: tuple[str, ...]) -> list[str]:
    return [*SWITCHES, *(f"{field}_{number}" for number in range(1, count + 1) for field in fields)]


@pytest.fixture(scope="module")
def loras(comfy_server: ComfyServer) -> None:
    for name in LORAS:
        path = comfy_server.loras_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module", params=RENDERERS)
def opened(
    request: pytest.FixtureRequest, browser: "playwright.Browser", comfy_server: ComfyServer, loras: None
) -> Iterator[FrontEnd]:
    with FrontEnd(browser, comfy_server, request.param) as front_end:
        assert front_end.faults == []
        yield front_end


@pytest.fixture
def front_end(opened: FrontEnd) -> Iterator[FrontEnd]:
    opened.clear()
    opened.faults.clear()
    yield opened
    assert opened.faults == []


def test_the_screen_shows_what_view_input_and_count_ask_for(front_end: FrontEnd):
    stack = front_end.add("LoRAStackDynamic")
    assert front_end.shown(stack) == slots(3, SIMPLE)
    front_end.press(stack, "lora_count")
    assert front_end.shown(stack) == slots(4, SIMPLE)
    front_end.choose(stack, "settings_visibility", "advanced")
    assert front_end.shown(stack) == slots(4, ADVANCED)
    front_end.choose(stack, "input_mode", "text")
    typed = tuple("lora_name_text" if field == "lora_name" else field for field in ADVANCED)
    assert front_end.shown(stack) == slots(4, typed)
    front_end.set(stack, lora_count=1, settings_visibility="simple", input_mode="dropdown")
    assert front_end.shown(stack) == slots(1, SIMPLE)


def test_the_node_is_as_high_as_what_it_shows(front_end: FrontEnd):
    stack = front_end.add("LoRAStackDynamic")
    height = (
        "(id) => { const n = app.graph.getNodeById(id); return [n.size[1], n.computeSize()[1], n.size[0]]; }"
    )
    before = front_end.script(height, stack)
    front_end.set(stack, lora_count=10)
    after = front_end.script(height, stack)
    front_end.set(stack, lora_count=3)
    assert before[0] == before[1] and after[0] == after[1] > 2 * before[0]
    assert front_end.script(height, stack) == before
    assert after[2] == before[2]


def test_two_nodes_keep_their_own_view(front_end: FrontEnd):
    first, second = front_end.add("LoRAStackDynamic"), front_end.add("LoRAStackDynamic", x=600)
    front_end.set(first, settings_visibility="advanced", lora_count=1)
    front_end.set(second, lora_count=2)
    assert front_end.shown(first) == slots(1, ADVANCED)
    assert front_end.shown(second) == slots(2, SIMPLE)


def test_nothing_moves_when_a_workflow_is_saved_and_loaded(front_end: FrontEnd):
    single, stack = front_end.add("LoRAStack", x=700), front_end.add("LoRAStackDynamic")
    front_end.choose(stack, "lora_name_1", "ink.safetensors")
    front_end.choose(stack, "lora_name_2", "style/oil.safetensors")
    front_end.press(stack, "lora_count")
    front_end.press(stack, "strength_2")
    front_end.press(stack, "preserve_2")
    front_end.press(stack, "enabled_3")
    front_end.press(single, "preserve")
    front_end.set(stack, clip_strength_4=0.3, key_filter_9="audio_only", lora_name_text_10="typed")
    front_end.script(
        """([from, to]) => {
            const [a, b] = [app.graph.getNodeById(from), app.graph.getNodeById(to)];
            a.connect(0, b, b.findInputSlot("lora_stack"));
        }""",
        [single, stack],
    )
    saved, values, shown = front_end.save(), front_end.values(stack), front_end.shown(stack)
    assert list(values) == list(NAMES)
    chosen = {
        "lora_count": 4,
        "lora_name_1": "ink.safetensors",
        "lora_name_2": "style/oil.safetensors",
        "strength_2": 1.05,
        "preserve_1": False,
        "preserve_2": True,
        "enabled_3": False,
    }
    assert {name: values[name] for name in chosen} == chosen
    front_end.load(saved)
    again = front_end.save()
    assert again["nodes"] == saved["nodes"] and again["links"] == saved["links"]
    assert front_end.values(stack) == values and front_end.shown(stack) == shown
    assert front_end.values(single)["preserve"] is True


@pytest.mark.parametrize("length", LAYOUTS)
def test_a_stored_workflow_of_any_age_puts_each_value_where_it_belongs(front_end: FrontEnd, length: int):
    old, expected = LAYOUTS[length]
    front_end.load(workflow("LoRAStackDynamic", old))
    assert front_end.values(1) == dict(zip(NAMES, expected, strict=True))
    fields = tuple("lora_name_text" if f == "lora_name" and expected[1] == "text" else f for f in ADVANCED)
    assert front_end.shown(1) == slots(4, fields)
    assert front_end.save()["nodes"][0]["widgets_values"] == expected


def test_a_current_workflow_is_not_altered(front_end: FrontEnd):
    values = current("text", FIELDS)
    front_end.load(workflow("LoRAStackDynamic", values))
    assert front_end.save()["nodes"][0]["widgets_values"] == values


def test_a_stored_single_stack_gains_what_it_lacked(front_end: FrontEnd):
    front_end.load(workflow("LoRAStack", ["style/oil.safetensors", 0.7, "low_conflict", "shared_only"]))
    assert list(front_end.values(1).values()) == [
        "style/oil.safetensors",
        0.7,
        "low_conflict",
        "shared_only",
        False,
    ]


def test_an_optimizer_of_before_tuner_data_keeps_its_links_and_the_save_node_its_values(front_end: FrontEnd):
    """Their `lora_data` was the fourth output; the save node then asked for no folder."""
    front_end.load(first_save_workflow())
    saved = front_end.save()
    (link,) = saved["links"]
    assert link[1:5] == [1, 4, 2, 0]
    names = [output["name"] for output in saved["nodes"][0]["outputs"]]
    assert names == ["model", "clip", "analysis_report", "tuner_data", "lora_data"]
    values = front_end.values(2)
    assert (values["filename"], values["save_rank"], values["bake_strength"]) == ("old name", 16, False)
    assert values["save_folder"]
    front_end.load(saved)
    again = front_end.save()
    assert again["links"] == saved["links"] and again["nodes"] == saved["nodes"]


@pytest.mark.parametrize("name", ["4", "16", "20, the source last", "20, the source before the smoothing"])
def test_a_stored_legacy_optimizer_of_any_age_keeps_its_values_and_its_links(front_end: FrontEnd, name: str):
    old, expected = OPTIMIZER[name]
    stored = workflow("LoRAOptimizer", old)
    stored["nodes"][0]["outputs"] = [  # type: ignore[index]
        {"name": name, "type": kind, "links": []}
        for name, kind in (("model", "MODEL"), ("clip", "CLIP"), ("analysis_report", "STRING"))
    ]
    front_end.load(stored)
    assert front_end.values(1) == dict(zip(TODAY, expected, strict=True))
    again = front_end.save()["nodes"][0]
    assert again["widgets_values"] == expected
    names = ["model", "clip", "analysis_report", "tuner_data", "lora_data"]
    assert [output["name"] for output in again["outputs"]] == names


def test_stored_merge_settings_gain_what_they_lacked(front_end: FrontEnd):
    for old, expected in MERGE_SETTINGS.values():
        front_end.load(workflow("LoRAMergeSettings", old))
        assert list(front_end.values(1).values()) == expected


def test_the_widgets_show_the_tuned_settings_that_were_followed(front_end: FrontEnd):
    node = front_end.add("LoRAOptimizer")
    told = (
        '{"merge_refinement": "refine", "strategy_set": "basic", "merge_mode": "ties", "dare_dampening": 0.6}'
    )
    front_end.script(
        "([id, told]) => app.graph.getNodeById(id).onExecuted({ applied_settings: [told] })", [node, told]
    )
    front_end.frame()
    followed = {"merge_refinement": "refine", "strategy_set": "basic", "dare_dampening": 0.6}
    assert front_end.values(node) == TODAY | followed


def test_the_save_node_shows_its_proof_and_stores_it_nowhere(front_end: FrontEnd):
    node = front_end.add("SaveMergedLoRA")
    before = front_end.save()["nodes"][0]["widgets_values"]
    for text in ("the first proof", "the second proof"):
        front_end.script(
            "([id, text]) => app.graph.getNodeById(id).onExecuted({ text: [text] })", [node, text]
        )
        front_end.frame()
        assert front_end.shown(node)[-1] == "proof" and front_end.values(node)["proof"] == text
    saved = front_end.save()
    assert saved["nodes"][0]["widgets_values"] == before
    front_end.load(saved)
    assert front_end.shown(node)[-1] == "description"


def test_the_context_menu_removes_and_moves_all_nine_values(front_end: FrontEnd):
    stack = front_end.add("LoRAStackDynamic")
    for number in (1, 2, 3):
        front_end.set(
            stack,
            **{
                f"enabled_{number}": number != 2,
                f"lora_name_{number}": LORAS[number],
                f"lora_name_text_{number}": f"text {number}",
                f"strength_{number}": number / 10,
                f"model_strength_{number}": number / 5,
                f"clip_strength_{number}": number / 4,
                f"conflict_mode_{number}": "low_conflict",
                f"key_filter_{number}": "no_audio",
                f"preserve_{number}": number == 2,
            },
        )
    before = front_end.values(stack)
    front_end.choose_from_context_menu(stack, "strength_3", "Move up LoRA #3")
    moved = front_end.values(stack)
    for field in FIELDS:
        assert moved[f"{field}_2"] == before[f"{field}_3"] and moved[f"{field}_3"] == before[f"{field}_2"]
    front_end.choose_from_context_menu(stack, "enabled_1", "Remove LoRA #1")
    left = front_end.values(stack)
    assert left["lora_count"] == 2
    fresh = front_end.values(front_end.add("LoRAStackDynamic", x=700))
    for field in FIELDS:
        assert left[f"{field}_1"] == before[f"{field}_3"]
        assert left[f"{field}_2"] == before[f"{field}_2"]
        assert left[f"{field}_3"] == fresh[f"{field}_3"]


def test_removing_a_lora_is_one_step_for_undo(front_end: FrontEnd):
    stack = front_end.add("LoRAStackDynamic")
    front_end.choose(stack, "lora_name_2", "ink.safetensors")
    front_end.press(stack, "preserve_2")
    before, shown = front_end.values(stack), front_end.shown(stack)
    front_end.choose_from_context_menu(stack, "strength_2", "Remove LoRA #2")
    assert front_end.values(stack)["lora_name_2"] == "None"
    front_end.undo()
    assert front_end.values(stack) == before and front_end.shown(stack) == shown


def test_names_carry_over_between_menu_and_text(front_end: FrontEnd):
    stack = front_end.add("LoRAStackDynamic")
    front_end.set(stack, lora_name_1="people/anna.safetensors", lora_name_2="sdxl/oil.safetensors")
    front_end.choose(stack, "input_mode", "text")
    values = front_end.values(stack)
    assert [values[f"lora_name_text_{n}"] for n in (1, 2, 3)] == ["anna", "sdxl/oil.safetensors", "None"]
    front_end.set(
        stack, lora_name_text_1="INK", lora_name_text_2="style/oil", lora_name_text_3="nothing like it"
    )
    front_end.choose(stack, "input_mode", "dropdown")
    values = front_end.values(stack)
    assert [values[f"lora_name_{n}"] for n in (1, 2, 3)] == [
        "ink.safetensors",
        "style/oil.safetensors",
        "None",
    ]


def test_the_base_model_filter_is_hidden_without_the_pack_that_knows_base_models(front_end: FrontEnd):
    assert "base_model_filter" not in front_end.shown(front_end.add("LoRAStackDynamic"))


def test_with_that_pack_the_filter_shortens_the_menus_and_no_choice_is_lost(
    browser: "playwright.Browser", comfy_server: ComfyServer, loras: None
):
    with FrontEnd(browser, comfy_server, "canvas", LORA_MANAGER) as front_end:
        stack = front_end.add("LoRAStackDynamic")
        front_end.page.wait_for_function(
            "(id) => !app.graph.getNodeById(id).widgets.at(-1).hidden", arg=stack, timeout=10_000
        )
        front_end.set(stack, lora_name_1="people/anna.safetensors")
        front_end.choose(stack, "base_model_filter", "SDXL 1.0")
        menu = (
            "(id) => app.graph.getNodeById(id).widgets.find((w) => w.name === 'lora_name_1').options.values"
        )
        assert front_end.script(menu, stack) == ["None", "sdxl/oil.safetensors"]
        assert front_end.values(stack)["lora_name_1"] == "people/anna.safetensors"
        front_end.load(front_end.save())
        assert front_end.values(stack)["base_model_filter"] == "SDXL 1.0"
        assert front_end.script(menu, stack) == ["None", "sdxl/oil.safetensors"]
        front_end.choose(stack, "base_model_filter", "All")
        assert front_end.script(menu, stack) == ["None", *sorted(LORAS)]
        assert front_end.faults == []


def test_the_graph_runs_from_the_screen(front_end: FrontEnd, comfy_server: ComfyServer):
    stack, preview = front_end.add("LoRAStackDynamic"), front_end.add("PreviewAny", x=700)
    front_end.choose(stack, "lora_name_1", "anna.safetensors")
    front_end.press(stack, "preserve_1")
    code = "([a, b]) => app.graph.getNodeById(a).connect(0, app.graph.getNodeById(b), 0)"
    front_end.script(code, [stack, preview])
    prompt = front_end.queue()
    deadline = time.monotonic() + 30
    while not (history := comfy_server.request(f"/history/{prompt}")) and time.monotonic() < deadline:
        time.sleep(0.1)
    shown = history[prompt]["outputs"][str(preview)]["text"]
    assert "people/anna.safetensors" in shown[0] and "true" in shown[0].lower()


def test_the_help_pages_are_served(comfy_server: ComfyServer, browser: "playwright.Browser"):
    page = browser.new_page()
    for node in ("LoRAStack", "LoRAStackDynamic"):
        answer = page.request.get(
            f"http://{comfy_server.address}/extensions/comfyui-lora-alloy/docs/{node}.md"
        )
        assert answer.ok and answer.text().startswith("# LoRA Stack")
    page.close()


def workflow(node_type: str, values: list[object]) -> dict[str, object]:
    """A file with one node, as an older front-end wrote it."""
    node = {
        "id": 1,
        "type": node_type,
        "pos": [150, 150],
        "size": [400, 700],
        "flags": {},
        "order": 0,
        "mode": 0,
        "inputs": [{"name": "lora_stack", "type": "LORA_STACK", "link": None}],
        "outputs": [{"name": "lora_stack", "type": "LORA_STACK", "links": []}],
        "properties": {},
        "widgets_values": values,
    }
    head = {"last_node_id": 1, "last_link_id": 0, "groups": [], "config": {}, "extra": {}, "version": 0.4}
    return {**head, "nodes": [node], "links": []}


def first_save_workflow() -> dict[str, object]:
    """An optimizer and a save node, linked, of the version that first had both."""
    made = workflow("LoRAOptimizerSimple", [1.0, 1.0])
    optimizer = made["nodes"][0]  # type: ignore[index]
    types = {"model": "MODEL", "clip": "CLIP", "analysis_report": "STRING", "lora_data": "LORA_DATA"}
    optimizer["outputs"] = [{"name": name, "type": kind, "links": []} for name, kind in types.items()]
    optimizer["outputs"][3]["links"] = [1]
    optimizer["inputs"] = []
    save = {**optimizer, "id": 2, "type": "SaveMergedLoRA", "pos": [700, 150]}
    save["widgets_values"] = ["old name", 16, False]
    save["inputs"] = [{"name": "lora_data", "type": "LORA_DATA", "link": 1}]
    save["outputs"] = [{"name": "file_path", "type": "STRING", "links": []}]
    links = [[1, 1, 3, 2, 0, "LORA_DATA"]]
    return {**made, "nodes": [optimizer, save], "links": links, "last_node_id": 2, "last_link_id": 1}
