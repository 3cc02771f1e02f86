/** LoRA Stack (Dynamic): shows the slots in use, moves them about, and reads workflows of any age. */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { fetchBaseModels, filterByModel, isCompanion } from "./lib/base_models.js";
import { labelOf, optionOf, showFileNames, textOf } from "./lib/lora_names.js";
import { addMenuTheOldWay, asOneStep, menuOf } from "./lib/menu.js";
import { migrateDynamicStack, SLOT_COUNT } from "./lib/stack_layouts.js";
import { getSlot, isVisible, moveSlotUp, readView, removeSlot, slotOf } from "./lib/stack_slots.js";
import { findWidget, fitHeight, migrateOnLoad, setHidden, watchValue } from "./lib/widgets.js";

const NODE = "LoRAStackDynamic";
const SWITCHES = ["settings_visibility", "input_mode", "lora_count"];
const NUMBERS = Array.from({ length: SLOT_COUNT }, (_, index) => index + 1);

/** Per node: the whole menu of LoRAs, how names are entered, an empty slot, whether a workflow is being read. */
const states = new WeakMap();

let companionInstalled = false;
let baseModels = null;
let asking = null;
let pressed = null; // what the pointer was last pressed on: a widget's row in the Vue renderer, or the canvas

app.registerExtension({
  name: "LoRAAlloy.LoRAStackDynamic",

  setup() {
    window.addEventListener("pointerdown", (event) => (pressed = event.target), { capture: true, passive: true });
  },

  beforeRegisterNodeDef(nodeType, nodeData) {
    companionInstalled ||= isCompanion(nodeData.name);
    if (nodeData.name !== NODE) return;
    migrateOnLoad(nodeType, migrateDynamicStack);
    const { configure } = nodeType.prototype;
    nodeType.prototype.configure = function (...args) {
      const state = states.get(this);
      if (state) state.loading = true;
      try {
        return configure.apply(this, args);
      } finally {
        if (state) afterLoading(this, state);
      }
    };
    addMenuTheOldWay(app, nodeType, menuItems);
  },

  nodeCreated(node) {
    if (node.comfyClass === NODE) setUp(node);
  },

  ...menuOf(NODE, menuItems),

  refreshComboInNodes(definitions) {
    const { required, optional } = definitions?.[NODE]?.input ?? {};
    const values = { ...required, ...optional }.lora_name_1?.[0];
    for (const node of stackNodes()) {
      const state = states.get(node);
      if (Array.isArray(values)) state.menu = values;
      offerBaseModels(node, state);
    }
  },
});

function setUp(node) {
  const menu = findWidget(node, "lora_name_1")?.options.values ?? [];
  const state = { menu, input: readView(node).input, empty: getSlot(node, 1), loading: false };
  states.set(node, state);
  for (const number of NUMBERS) {
    const widget = findWidget(node, `lora_name_${number}`);
    if (widget) showFileNames(widget);
  }
  for (const name of SWITCHES) {
    const widget = findWidget(node, name);
    if (widget) watchValue(widget, () => update(node, state));
  }
  const filter = findWidget(node, "base_model_filter");
  if (filter) watchValue(filter, () => offerBaseModels(node, state));
  if (showSlots(node)) fitHeight(node);
  if (companionInstalled) askCompanion();
}

/** Our nodes in the workflow, subgraphs included. */
function* stackNodes(graph = app.rootGraph ?? app.graph) {
  for (const node of graph?.nodes ?? []) {
    if (states.has(node)) yield node;
    else if (node.subgraph) yield* stackNodes(node.subgraph);
  }
}

function update(node, state) {
  if (state.loading) return;
  const { input } = readView(node);
  if (input !== state.input) {
    state.input = input;
    translateNames(node, state);
  }
  if (showSlots(node)) fitHeight(node);
}

function afterLoading(node, state) {
  state.loading = false;
  state.input = readView(node).input;
  showSlots(node); // the stored size stays
  offerBaseModels(node, state);
}

/** Show the widgets that the view asks for. Returns whether that changed any. */
function showSlots(node) {
  const view = readView(node);
  const changes = node.widgets.map((widget) =>
    setHidden(widget, !isVisible(widget.name, view, baseModels !== null)),
  );
  return changes.includes(true);
}

/** Carry the names over when the way of entering them changes; a name that fits no entry changes nothing. */
function translateNames(node, state) {
  for (const number of NUMBERS) {
    const option = findWidget(node, `lora_name_${number}`);
    const text = findWidget(node, `lora_name_text_${number}`);
    if (state.input === "text") text.value = textOf(option.value, state.menu);
    else option.value = optionOf(text.value, state.menu) ?? option.value;
  }
}

function askCompanion() {
  asking ??= fetchBaseModels((route) => api.fetchApi(route)).then((found) => {
    baseModels = found;
    if (!found) return;
    for (const node of stackNodes()) {
      offerBaseModels(node, states.get(node));
      if (showSlots(node)) fitHeight(node);
    }
  });
}

function offerBaseModels(node, state) {
  const filter = findWidget(node, "base_model_filter");
  if (!baseModels || !filter || state.loading) return;
  filter.options.values = ["All", ...baseModels.names];
  const values = filterByModel(state.menu, filter.value, baseModels.files);
  for (const number of NUMBERS) {
    const widget = findWidget(node, `lora_name_${number}`);
    if (widget) widget.options.values = values;
  }
}

/** For the slot at the pointer, or, where that cannot be told, for each slot in a submenu. */
function menuItems(node) {
  const used = NUMBERS.filter((number) => number <= readView(node).count);
  const here = slotAtPointer(node);
  if (used.includes(here)) {
    return [null, removal(node, here, "Remove LoRA "), ...(here > 1 ? [moveUp(node, here, "Move up LoRA ")] : [])];
  }
  const movable = used.slice(1);
  return [
    null,
    submenu("Remove LoRA", used.map((number) => removal(node, number, ""))),
    ...(movable.length > 0 ? [submenu("Move up LoRA", movable.map((number) => moveUp(node, number, "")))] : []),
  ];
}

function submenu(content, options) {
  return { content, has_submenu: true, submenu: { options } };
}

function removal(node, number, verb) {
  const callback = () => changed(node, () => removeSlot(node, number, states.get(node).empty));
  return { content: `${verb}${describe(node, number)}`, callback };
}

function moveUp(node, number, verb) {
  const callback = () => changed(node, () => moveSlotUp(node, number));
  return { content: `${verb}${describe(node, number)}`, callback };
}

function changed(node, change) {
  asOneStep(app, change);
  node.setDirtyCanvas?.(true, true);
}

function describe(node, number) {
  const { lora_name: option, lora_name_text: text } = getSlot(node, number);
  return `#${number}: ${readView(node).input === "text" ? text : labelOf(option, states.get(node).menu)}`;
}

/** The number of the slot that was clicked last, if that was the last click at all; 0 otherwise. */
function slotAtPointer(node) {
  const row = pressed?.closest?.("[data-widget-name]");
  if (row) return slotOf(row.dataset.widgetName)?.number ?? 0;
  if (pressed !== app.canvas?.canvas || !node.getWidgetOnPos) return 0;
  const widget = node.getWidgetOnPos(...app.canvas.graph_mouse, true);
  return (widget && slotOf(widget.name)?.number) || 0;
}
