/** The slots of the dynamic stack: what is shown of them, and moving what they hold. */

import { SLOT_FIELDS } from "./stack_layouts.js";
import { findWidget } from "./widgets.js";

const BY_VIEW = {
  strength: "simple",
  model_strength: "advanced",
  clip_strength: "advanced",
  conflict_mode: "advanced",
  key_filter: "advanced",
};

const BY_INPUT = { lora_name: "dropdown", lora_name_text: "text" };

/** What decides visibility, read off the node's own widgets. */
export function readView(node) {
  return {
    visibility: findWidget(node, "settings_visibility")?.value,
    input: findWidget(node, "input_mode")?.value,
    count: Number(findWidget(node, "lora_count")?.value),
  };
}

/** The number of the slot that a widget belongs to, and which of its fields it is; or null. */
export function slotOf(widgetName) {
  const parts = /^(.+)_(\d+)$/.exec(widgetName);
  return parts && SLOT_FIELDS.includes(parts[1]) ? { field: parts[1], number: Number(parts[2]) } : null;
}

/** Whether a widget is visible in a view; `hasFilter` says whether there are base models to choose from. */
export function isVisible(widgetName, view, hasFilter) {
  if (widgetName === "base_model_filter") return hasFilter && view.input === "dropdown";
  const slot = slotOf(widgetName);
  if (!slot) return true;
  return (
    slot.number <= view.count &&
    (BY_VIEW[slot.field] ?? view.visibility) === view.visibility &&
    (BY_INPUT[slot.field] ?? view.input) === view.input
  );
}

/** Empty slot `number`: what later shown slots hold moves up by one, and there is one slot less. */
export function removeSlot(node, number, defaults) {
  const count = findWidget(node, "lora_count");
  for (let slot = number; slot < count.value; slot += 1) setSlot(node, slot, getSlot(node, slot + 1));
  setSlot(node, count.value, defaults);
  if (count.value > 1) count.value -= 1;
}

/** Exchange what slot `number` and the one above it hold. */
export function moveSlotUp(node, number) {
  const above = getSlot(node, number - 1);
  setSlot(node, number - 1, getSlot(node, number));
  setSlot(node, number, above);
}

/** What slot `number` holds, by field. */
export function getSlot(node, number) {
  return Object.fromEntries(SLOT_FIELDS.map((field) => [field, findWidget(node, `${field}_${number}`)?.value]));
}

function setSlot(node, number, values) {
  for (const field of SLOT_FIELDS) {
    const widget = findWidget(node, `${field}_${number}`);
    if (widget) widget.value = values[field];
  }
}
