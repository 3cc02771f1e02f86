import inspect
import logging
import os

import pytest

from lora_alloy.core.errors import StackError
from lora_alloy.core.log import log
from lora_alloy.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from lora_alloy.nodes.lora_stack import LoRAStack
from lora_alloy.nodes.lora_stack_dynamic import SLOT_DEFAULTS, LoRAStackDynamic
from lora_alloy_testing.stack_layouts import FIELDS


def widgets_of(node):
    """Name → spec of what a workflow stores by position: required inputs first, sockets left out."""
    inputs = node.INPUT_TYPES()
    every = {**inputs.get("required", {}), **inputs.get("optional", {})}
    return {
        name: spec for name, spec in every.items() if isinstance(spec[0], list) or spec[0] != "LORA_STACK"
    }


def test_the_dynamic_stack_has_its_94_widgets_in_the_stored_order(install):
    install("ink.safetensors")
    expected = ["settings_visibility", "input_mode", "lora_count"]
    expected += [f"{name}_{number}" for number in range(1, 11) for name in FIELDS]
    expected += ["base_model_filter"]
    assert list(widgets_of(LoRAStackDynamic)) == expected
    assert len(expected) == 94 and expected.index("preserve_1") == 11 and expected.index("enabled_2") == 12


def test_the_stack_has_its_five_widgets_in_the_stored_order(install):
    install("ink.safetensors")
    expected = ["lora_name", "strength", "conflict_mode", "key_filter", "preserve"]
    assert list(widgets_of(LoRAStack)) == expected


def test_a_script_that_leaves_an_input_out_gets_the_value_of_its_widget(install):
    install("ink.safetensors")
    for name, spec in widgets_of(LoRAStackDynamic).items():
        default = spec[1]["default"]
        if name in ("settings_visibility", "input_mode", "lora_count"):
            assert inspect.signature(LoRAStackDynamic.build_stack).parameters[name].default == default
        elif name != "base_model_filter":
            assert SLOT_DEFAULTS[name.rpartition("_")[0]] == default, name
    for name, spec in widgets_of(LoRAStack).items():
        if name != "lora_name":
            assert inspect.signature(LoRAStack.add_to_stack).parameters[name].default == spec[1]["default"]


def test_the_tables_name_the_same_nodes():
    assert list(NODE_CLASS_MAPPINGS) == list(NODE_DISPLAY_NAME_MAPPINGS)
    for node in NODE_CLASS_MAPPINGS.values():
        assert callable(getattr(node, node.FUNCTION))


def test_every_widget_explains_itself(install):
    install("ink.safetensors")
    for node in (LoRAStack, LoRAStackDynamic):
        assert all(spec[1]["tooltip"] for spec in widgets_of(node).values())


def test_the_stack_node_appends_to_a_copy(install):
    install("ink.safetensors", "oil.safetensors")
    marker = {"_merge_formula": "1+2"}
    before = [("oil.safetensors", 1.0, 0.5), marker]
    (stack,) = LoRAStack().add_to_stack("ink", 0.5, lora_stack=before)
    assert stack == [("oil.safetensors", 1.0, 0.5), marker, ("ink.safetensors", 0.5, 0.5)]
    assert stack[1] is marker and len(before) == 2


def test_the_stack_node_passes_its_filters_and_preserve_on(install):
    install("ink.safetensors")
    (stack,) = LoRAStack().add_to_stack("ink.safetensors", -1.0, "low_conflict", "no_audio", preserve=True)
    assert stack == [("ink.safetensors", -1.0, -1.0, "low_conflict", "no_audio", True)]


def test_the_stack_node_without_a_lora_hands_the_stack_on(install):
    install("ink.safetensors")
    assert LoRAStack().add_to_stack("None", lora_stack=[("x", 1, 1)]) == ([("x", 1, 1)],)


def test_the_dynamic_stack_puts_its_own_first(install):
    install("ink.safetensors", "oil.safetensors")
    (stack,) = LoRAStackDynamic().build_stack(
        lora_name_1="ink.safetensors",
        strength_1=0.5,
        lora_name_3="oil.safetensors",
        lora_stack=[("x", 1, 1)],
    )
    assert stack == [("ink.safetensors", 0.5, 0.5), ("oil.safetensors", 1.0, 1.0), ("x", 1, 1)]


def test_slots_that_are_disabled_empty_or_beyond_the_count_take_no_part(install):
    install("ink.safetensors")
    (stack,) = LoRAStackDynamic().build_stack(
        lora_count=2,
        lora_name_1="ink.safetensors",
        enabled_1=False,
        lora_name_2=" ",
        lora_name_3="ink.safetensors",
    )
    assert stack == []


def test_hidden_filters_and_strengths_do_not_act_in_the_simple_view(install):
    install("ink.safetensors")
    hidden = {"model_strength_1": 2.0, "clip_strength_1": 3.0, "conflict_mode_1": "low_conflict"}
    (stack,) = LoRAStackDynamic().build_stack(lora_name_1="ink", **hidden)
    assert stack == [("ink.safetensors", 1.0, 1.0)]
    (stack,) = LoRAStackDynamic().build_stack("advanced", lora_name_1="ink", strength_1=9.0, **hidden)
    assert stack == [("ink.safetensors", 2.0, 3.0, "low_conflict", "all", False)]


@pytest.mark.parametrize("view", ["simple", "advanced"])
def test_preserve_acts_in_both_views(install, view):
    install("ink.safetensors")
    (stack,) = LoRAStackDynamic().build_stack(view, lora_name_1="ink", preserve_1=True)
    assert stack == [("ink.safetensors", 1.0, 1.0, "all", "all", True)]


def test_text_mode_reads_the_typed_name(install):
    install("style/ink.safetensors", "oil.safetensors")
    (stack,) = LoRAStackDynamic().build_stack(
        input_mode="text", lora_name_1="oil.safetensors", lora_name_text_1="ink"
    )
    assert stack == [("style/ink.safetensors", 1.0, 1.0)]


def test_everything_wrong_is_in_one_message(install):
    install("ink.safetensors")
    with pytest.raises(StackError) as caught:
        LoRAStackDynamic().build_stack(
            lora_name_1="inc",
            lora_name_2="ink",
            strength_2=float("nan"),
            lora_name_3="ink",
            strength_3=11,
        )
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "slot 1: no LoRA called 'inc'" in lines[0] and "'ink.safetensors'" in lines[0]
    assert "`strength_2`" in lines[1] and "finite" in lines[1]
    assert "`strength_3`" in lines[2] and "between -10 and 10" in lines[2]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"lora_count": 11}, "between 1 and 10"),
        ({"lora_count": 0}, "between 1 and 10"),
        ({"settings_visibility": "expert"}, "known: simple, advanced"),
        ({"input_mode": "menu"}, "known: dropdown, text"),
        ({"lora_stack": "ink"}, "not a list"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_would_do(install, inputs, said):
    install("ink.safetensors")
    with pytest.raises(StackError, match=said):
        LoRAStackDynamic().build_stack(**inputs)


def test_a_wrong_value_on_the_stack_node_is_refused(install):
    install("ink.safetensors")
    with pytest.raises(StackError, match="no LoRA called 'gone'"):
        LoRAStack().add_to_stack("gone")
    with pytest.raises(StackError, match="known: all, low_conflict"):
        LoRAStack().add_to_stack("ink", conflict_mode="some")
    with pytest.raises(StackError, match="between -10 and 10"):
        LoRAStack().add_to_stack("ink", 10.5)


def test_validation_never_blocks_a_prompt():
    assert LoRAStackDynamic.VALIDATE_INPUTS(lora_name_1="gone", base_model_filter="Flux.1 D") is True
    assert LoRAStack.VALIDATE_INPUTS(lora_name="gone") is True


@pytest.mark.parametrize(
    "changed",
    [
        lambda: LoRAStack.IS_CHANGED(lora_name="ink.safetensors", strength=1.0),
        lambda: LoRAStackDynamic.IS_CHANGED(lora_count=1, lora_name_1="ink.safetensors"),
        lambda: LoRAStackDynamic.IS_CHANGED("text", lora_name_text_2="ink"),
    ],
)
def test_a_replaced_file_is_noticed_and_a_touched_one_is_not(install, changed):
    file = install("ink.safetensors") / "ink.safetensors"
    before = changed()
    os.utime(file, ns=(1, 1))
    assert changed() == before
    stat = file.stat()
    file.with_suffix(".tmp").write_bytes(b"x" * stat.st_size)
    os.utime(file.with_suffix(".tmp"), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    file.with_suffix(".tmp").replace(file)
    assert changed() != before


def test_a_file_out_of_use_does_not_count_as_a_change(install):
    root = install("ink.safetensors", "oil.safetensors")
    inputs = {"lora_name_1": "ink.safetensors", "lora_name_2": "oil.safetensors", "enabled_2": False}
    before = LoRAStackDynamic.IS_CHANGED(**inputs)
    (root / "oil.safetensors").write_bytes(b"other")
    assert LoRAStackDynamic.IS_CHANGED(**inputs) == before


def test_a_name_that_is_wired_in_makes_every_installed_file_count(install):
    root = install("ink.safetensors")
    before = LoRAStack.IS_CHANGED(lora_name=None)
    assert LoRAStack.IS_CHANGED(lora_name=None) == before
    (root / "ink.safetensors").write_bytes(b"another size")
    assert LoRAStack.IS_CHANGED(lora_name=None) != before


def test_a_missing_file_is_no_error_when_asking_for_changes(install):
    install("ink.safetensors")
    assert LoRAStack.IS_CHANGED(lora_name="gone") == LoRAStack.IS_CHANGED(lora_name="gone")


def test_log_lines_carry_our_name_once(caplog):
    with caplog.at_level(logging.WARNING, "lora_alloy"):
        log.warning("%d targets", 3)
    assert caplog.messages == ["[LoRA Alloy] 3 targets"]
