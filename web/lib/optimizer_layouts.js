/**
 * Widget values of LoRA Optimizer (Legacy) and of LoRA Merge Settings as workflows of any age store them, and how
 * they become today's.
 *
 * A workflow stores widget values by position. A layout is recognised by its length and the types of its values;
 * today's arrays come back as they are, unknown ones too.
 */

const OPTIMIZER_DEFAULTS = {
  output_strength: 1,
  clip_strength_multiplier: 1,
  auto_strength: "enabled",
  auto_strength_floor: -1,
  free_vram_between_passes: "disabled",
  vram_budget: 0,
  optimization_mode: "per_prefix",
  cache_patches: "enabled",
  patch_compression: "smart",
  svd_device: "gpu",
  normalize_keys: "enabled",
  sparsification: "disabled",
  sparsification_density: 0.7,
  dare_dampening: 0,
  merge_refinement: "none",
  strategy_set: "full",
  architecture_preset: "auto",
  settings_source: "manual",
  decision_smoothing: 0.25,
  smooth_slerp_gate: false,
  hold_structural: true,
};

const TODAY = Object.keys(OPTIMIZER_DEFAULTS);
const OLDEST = ["output_strength", "clip_strength_multiplier", "auto_strength", "free_vram_between_passes"];
const NINE = [
  ...OLDEST,
  "optimization_mode",
  "cache_patches",
  "patch_compression",
  "svd_device",
  "normalize_keys",
];
const ELEVEN = [...NINE, "sparsification", "sparsification_density"];
const FIFTEEN = [...ELEVEN, "dare_dampening", "merge_refinement", "strategy_set", "architecture_preset"];
const EIGHTEEN = TODAY.slice(0, 18);

/** The layouts there were, each with its fields in order. */
const OPTIMIZER_LAYOUTS = [
  ...[4, 5, 6, 7, 8, 9].map((length) => NINE.slice(0, length)),
  ELEVEN,
  [...ELEVEN, "merge_refinement"],
  ...[13, 14, 15].map((length) => FIFTEEN.slice(0, length)),
  [...FIFTEEN.slice(0, 4), "vram_budget", ...FIFTEEN.slice(4)],
  EIGHTEEN,
  [...EIGHTEEN.slice(0, 17), "decision_smoothing", "smooth_slerp_gate", "settings_source"],
  TODAY.slice(0, 20),
  TODAY,
];

/** What values of earlier versions are called today, by widget. */
const RENAMED = {
  optimization_mode: { weighted_sum_only: "additive" },
  patch_compression: { non_ties: "smart", all: "aggressive", auto: "smart" },
  merge_refinement: { standard: "none", enhanced: "refine", maximum: "full" },
  strategy_set: { "v1.2": "full", classic: "basic" },
};

const SETTINGS_DEFAULTS = {
  normalize_keys: "enabled",
  architecture_preset: "auto",
  auto_strength_floor: -1,
  decision_smoothing: 0.25,
  smooth_slerp_gate: false,
  vram_budget: 0,
  cache_patches: "enabled",
  auto_strength_floor_mode: "auto",
  star_eta: 100,
  tame_layers: 0,
  tame_threshold: 0.3,
};

const SETTINGS_FIELDS = Object.keys(SETTINGS_DEFAULTS);

/**
 * Widget values of `LoRAOptimizer`, in today's order and words.
 * @param {unknown[]} values as stored
 * @returns {unknown[]} `values` itself where today's widgets can take them as they are, or where we know them not
 */
export function migrateOptimizer(values) {
  const fields = OPTIMIZER_LAYOUTS.find((layout) => fits(values, layout, OPTIMIZER_DEFAULTS));
  if (!fields) return values;
  const stored = new Map(fields.map((field, at) => [field, renamed(field, values[at])]));
  return settled(values, TODAY.map((field) => stored.get(field) ?? OPTIMIZER_DEFAULTS[field]));
}

/**
 * Widget values of `LoRAMergeSettings`, in today's order.
 *
 * Before the floor had a mode it was automatic below 0, and else it was followed.
 * @param {unknown[]} values as stored
 * @returns {unknown[]} `values` itself where today's widgets can take them as they are, or where we know them not
 */
export function migrateMergeSettings(values) {
  const fields = SETTINGS_FIELDS.slice(0, values.length);
  if (![7, 8, 11].includes(values.length) || !fits(values, fields, SETTINGS_DEFAULTS)) return values;
  const stored = new Map(fields.map((field, at) => [field, values[at]]));
  if (values.length === 7 && stored.get("auto_strength_floor") >= 0) {
    stored.set("auto_strength_floor_mode", "manual");
  }
  return settled(values, SETTINGS_FIELDS.map((field) => stored.get(field) ?? SETTINGS_DEFAULTS[field]));
}

/**
 * The widgets that a configuration sets, with their values in today's words.
 * @param {unknown} text JSON of a tuned configuration, as the node shows it
 * @returns {Record<string, unknown>} by widget; nothing where it is no configuration
 */
export function appliedSettings(text) {
  const config = parsed(text);
  const entries = Object.entries(config)
    .filter(([field, value]) => field in OPTIMIZER_DEFAULTS && typeof value === typeof OPTIMIZER_DEFAULTS[field])
    .map(([field, value]) => [field, renamed(field, value)]);
  return Object.fromEntries(entries);
}

function parsed(text) {
  try {
    const config = JSON.parse(text);
    return config !== null && typeof config === "object" && !Array.isArray(config) ? config : {};
  } catch {
    return {};
  }
}

/** Whether each value has the type of its field's default; null stands for any. */
function fits(values, fields, defaults) {
  const isOne = (value, field) =>
    value == null || typeof value === typeof defaults[field] || (field === "patch_compression" && typeof value === "number");
  return values.length === fields.length && values.every((value, at) => isOne(value, fields[at]));
}

function renamed(field, value) {
  if (field === "patch_compression" && typeof value === "number") return "smart"; // once a rank
  return RENAMED[field]?.[value] ?? value;
}

function settled(values, made) {
  return values.length === made.length && values.every((value, at) => value === made[at]) ? values : made;
}
