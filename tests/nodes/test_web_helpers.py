"""What the front-end's helpers make of names and of another pack's answers."""

import pytest

from lora_alloy_testing.node_js import call, needs_node

pytestmark = needs_node

MENU = [
    "None",
    "ink.safetensors",
    "style/oil.safetensors",
    "sdxl\\oil.safetensors",
    "people/anna.fp16.safetensors",
]


def test_a_menu_shows_file_names_and_the_folder_only_where_two_are_alike(tmp_path):
    labels = call(tmp_path, "lora_names.js", "given.map((v) => m.labelOf(v, given))", MENU)
    assert labels == [
        "None",
        "ink.safetensors",
        "style/oil.safetensors",
        "sdxl\\oil.safetensors",
        "anna.fp16.safetensors",
    ]


def test_a_value_outside_the_menu_is_labelled_too(tmp_path):
    expression = '[m.labelOf("old/gone.pt", given), m.labelOf(null, given), m.labelOf("a/b", undefined)]'
    assert call(tmp_path, "lora_names.js", expression, MENU) == ["gone.pt", "", "b"]


def test_text_for_a_menu_entry_finds_that_entry_again(tmp_path):
    expression = "given.map((v) => [m.textOf(v, given), m.optionOf(m.textOf(v, given), given)])"
    pairs = call(tmp_path, "lora_names.js", expression, MENU)
    assert [option for _, option in pairs] == MENU
    assert [text for text, _ in pairs][1] == "ink"


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("ink", MENU[1]),
        (" INK ", MENU[1]),
        ("sdxl/oil", MENU[3]),
        ("style\\oil.safetensors", MENU[2]),
        ("C:\\loras\\anna.fp16.safetensors", MENU[4]),
        ("", "None"),
        ("nothing like it", None),
    ],
)
def test_typed_text_finds_its_menu_entry(tmp_path, text, option):
    expression = "m.optionOf(given[0], given[1]) ?? null"
    assert call(tmp_path, "lora_names.js", expression, [text, MENU]) == option


ANSWERS = {
    "/lm/loras/base-models?limit=100": {"base_models": [{"name": "SDXL 1.0"}, {"name": "Flux.1 D"}]},
    "/lm/loras/list?page=1&page_size=100&sort_by=name": {
        "items": [{"file_path": "D:\\loras\\ink.safetensors", "base_model": "Flux.1 D"}],
        "total_pages": 2,
    },
    "/lm/loras/list?page=2&page_size=100&sort_by=name": {
        "items": [{"file_path": "/loras/style/oil.safetensors", "base_model": "SDXL 1.0"}],
        "total_pages": 2,
    },
}
FETCH = "async (route) => ({ ok: route in given, status: 404, json: async () => given[route] })"


def test_base_models_are_read_page_by_page(tmp_path):
    found = call(tmp_path, "base_models.js", f"m.fetchBaseModels({FETCH})", ANSWERS)
    assert found == {
        "names": ["SDXL 1.0", "Flux.1 D"],
        "files": [
            {"path": "D:/loras/ink.safetensors", "model": "Flux.1 D"},
            {"path": "/loras/style/oil.safetensors", "model": "SDXL 1.0"},
        ],
    }


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/lm/loras/base-models?limit=100": {"base_models": []}},
        {"/lm/loras/base-models?limit=100": {"error": "busy"}},
        {"/lm/loras/base-models?limit=100": ANSWERS["/lm/loras/base-models?limit=100"]},
    ],
)
def test_without_a_full_answer_there_are_no_base_models(tmp_path, answers):
    assert call(tmp_path, "base_models.js", f"m.fetchBaseModels({FETCH})", answers) is None


def test_a_base_model_shortens_the_menu_and_an_unknown_one_does_not(tmp_path):
    files = [
        {"path": "/loras/style/oil.safetensors", "model": "SDXL 1.0"},
        {"path": "x/oil.safetensors", "model": "B"},
    ]
    expression = '["SDXL 1.0", "All", "Pony"].map((model) => m.filterByModel(given[0], model, given[1]))'
    assert call(tmp_path, "base_models.js", expression, [MENU, files]) == [
        ["None", "style/oil.safetensors"],
        MENU,
        MENU,
    ]
