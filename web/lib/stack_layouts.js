/**
 * Widget values of the two stack nodes as workflows of any age store them, and how they become today's.
 *
 * A workflow stores widget values by position. A layout is recognised by its length and the types of its
 * values; today's arrays come back as they are, unknown ones too.
 */

export const SLOT_COUNT = 10;

const SLOT_DEFAULTS = {
  enabled: true,
  lora_name: "None",
  lora_name_text: "None",
  strength: 1,
  model_strength: 1,
  clip_strength: 1,
  conflict_mode: "all",
  key_filter: "all",
  preserve: false,
};

export const SLOT_FIELDS = Object.keys(SLOT_DEFAULTS);

const HEAD_DEFAULTS = { settings_visibility: "simple", input_mode: "dropdown", lora_count: 3 };
const TAIL_DEFAULTS = { base_model_filter: "All" };

const OLD_HEAD = ["settings_visibility", "lora_count"];
const HEAD = ["settings_visibility", "input_mode", "lora_count"];
const TAIL = ["base_model_filter"];
const FOUR = ["lora_name", "strength", "model_strength", "clip_strength"];
const FIVE = [...FOUR, "conflict_mode"];
const SIX = ["lora_name", "lora_name_text", "strength", "model_strength", "clip_strength", "conflict_mode"];
const SEVEN = [...SIX, "key_filter"];
const EIGHT = ["enabled", ...SEVEN];
const NINE = [...EIGHT, "preserve"];

/** The layouts of the dynamic stack, today's first; `beyond` names a field that follows the tail, once per slot. */
const DYNAMIC_LAYOUTS = [
  { head: HEAD, slot: NINE, tail: TAIL },
  { head: HEAD, slot: EIGHT, tail: TAIL, beyond: "preserve" },
  { head: HEAD, slot: NINE, tail: TAIL, beyond: "h3_layout" },
  { head: HEAD, slot: EIGHT, tail: TAIL },
  { head: HEAD, slot: SEVEN, tail: TAIL },
  { head: [...HEAD, "key_filter"], slot: SIX, tail: TAIL },
  { head: HEAD, slot: SIX, tail: TAIL },
  { head: HEAD, slot: SIX, tail: [] },
  { head: OLD_HEAD, slot: FIVE, tail: TAIL },
  { head: OLD_HEAD, slot: FIVE, tail: [] },
  { head: OLD_HEAD, slot: FOUR, tail: [] },
];

const STACK_DEFAULTS = {
  lora_name: null,
  strength: 1,
  conflict_mode: "all",
  key_filter: "all",
  preserve: false,
};

/** The layouts of the single stack: each one lengthened the one before. */
const STACK_FIELDS = [...Object.keys(STACK_DEFAULTS), "h3_layout"];

const EXAMPLES = {
  ...HEAD_DEFAULTS,
  ...SLOT_DEFAULTS,
  ...TAIL_DEFAULTS,
  h3_layout: "auto",
};

/**
 * Widget values of `LoRAStackDynamic`, in today's order.
 * @param {unknown[]} values as stored
 * @returns {unknown[]} `values` itself where it is of today's layout, or of none that we know
 */
export function migrateDynamicStack(values) {
  const layout = DYNAMIC_LAYOUTS.find((candidate) => fits(values, fieldsOf(candidate)));
  if (!layout || layout === DYNAMIC_LAYOUTS[0]) return values;
  const stored = new Map(fieldsOf(layout).map((field, position) => [field, values[position]]));
  return fieldsOf(DYNAMIC_LAYOUTS[0]).map((field) => stored.get(field) ?? inherited(field, stored));
}

/**
 * Widget values of `LoRAStack`, in today's order.
 * @param {unknown[]} values as stored
 * @returns {unknown[]} `values` itself where it is of today's layout, or of none that we know
 */
export function migrateStack(values) {
  const fields = STACK_FIELDS.slice(0, values.length);
  const known = Object.values(STACK_DEFAULTS);
  if (values.length < 2 || values.length === known.length || !fits(values, fields)) return values;
  return [...values, ...known.slice(values.length)].slice(0, known.length);
}

function fieldsOf({ head, slot, tail, beyond }) {
  const numbers = Array.from({ length: SLOT_COUNT }, (_, index) => index + 1);
  return [
    ...head,
    ...numbers.flatMap((number) => slot.map((field) => `${field}_${number}`)),
    ...tail,
    ...(beyond ? numbers.map((number) => `${beyond}_${number}`) : []),
  ];
}

/** Whether each value has the type that its field asks for; null stands for any. */
function fits(values, fields) {
  return (
    values.length === fields.length &&
    values.every((value, index) => value == null || typeof value === typeof EXAMPLES[base(fields[index])])
  );
}

function inherited(field, stored) {
  // Between releases one key filter stood for the whole stack.
  return stored.get(base(field)) ?? { ...HEAD_DEFAULTS, ...SLOT_DEFAULTS, ...TAIL_DEFAULTS }[base(field)];
}

function base(field) {
  return field.replace(/_\d+$/, "");
}
