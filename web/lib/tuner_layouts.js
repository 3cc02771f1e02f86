/** Widget values of the AutoTuner's nodes as workflows of any age store them, and how they become today's. */

import { migrated } from "./layouts.js";

const TUNER_DEFAULTS = {
  output_strength: 1,
  clip_strength_multiplier: 1,
  top_n: 3,
  normalize_keys: "enabled",
  scoring_svd: "disabled",
  scoring_device: "gpu",
  architecture_preset: "auto",
  auto_strength_floor: -1,
  community_cache: "disabled",
  cache_patches: "enabled",
  diff_cache_mode: "auto",
  diff_cache_ram_pct: 0.5,
  vram_budget: 0,
  scoring_speed: "turbo",
  scoring_formula: "own_foreign",
  output_mode: "merge",
  decision_smoothing: 0.25,
  smooth_slerp_gate: false,
  memory_mode: "auto",
  selection: 1,
};

const TODAY = Object.keys(TUNER_DEFAULTS);
const SEVEN = TODAY.slice(0, 7);
const EIGHT = [...SEVEN, "community_cache"]; // it was a switch that recorded; see `RENAMED`
const THIRTEEN = [...EIGHT, ...TODAY.slice(9, 14)];
const TUNER_LAYOUTS = [
  ...[4, 6].map((length) => SEVEN.slice(0, length)),
  SEVEN,
  EIGHT,
  [...EIGHT, "vram_budget"],
  [...EIGHT, "diff_cache_mode", "vram_budget"],
  [...EIGHT, "diff_cache_mode", "diff_cache_ram_pct", "vram_budget"],
  THIRTEEN.slice(0, 12),
  THIRTEEN,
  [...TODAY.slice(0, 14), "output_mode"],
  ...[18, 19, 20].map((length) => TODAY.slice(0, length)),
  [...TODAY, "record_dataset"],
];

const SETTINGS_DEFAULTS = {
  top_n: 3,
  scoring_svd: "disabled",
  scoring_device: "gpu",
  scoring_speed: "turbo",
  scoring_formula: "own_foreign",
  diff_cache_mode: "auto",
  diff_cache_ram_pct: 0.5,
  community_cache: "disabled",
  memory_mode: "auto",
  selection: 1,
};

const SETTINGS_FIELDS = Object.keys(SETTINGS_DEFAULTS);
const SETTINGS_LAYOUTS = [
  ...[8, 9, 10].map((length) => SETTINGS_FIELDS.slice(0, length)),
  [...SETTINGS_FIELDS, "record_dataset"],
];

/**
 * What values of earlier versions, and of other packs, are called today.
 *
 * `v2` is what every workflow stored without being asked, so it becomes today's default; `v1` was somebody's choice.
 * Nothing that an older file holds turns into an upload.
 */
const RENAMED = {
  scoring_svd: { enabled: "merge_quality" },
  scoring_formula: { v2: "own_foreign", v1: "v1 (legacy)" },
  community_cache: { enabled: "disabled", download_only: "disabled", upload_only: "disabled" },
};

const SELECTOR_DEFAULTS = {
  selection: 1,
  output_strength: 1,
  clip_strength_multiplier: 1,
  auto_strength_floor: -1,
  decision_smoothing: 0.25,
  vram_budget: 0,
};

const SELECTOR_FIELDS = Object.keys(SELECTOR_DEFAULTS);
const SELECTOR_LAYOUTS = [
  SELECTOR_FIELDS.slice(0, 3),
  [...SELECTOR_FIELDS.slice(0, 3), "vram_budget"],
  SELECTOR_FIELDS,
];

const renamed = (field, value) => RENAMED[field]?.[value] ?? value;

/** Widget values of `LoRAAutoTuner`, in today's order and words. */
export function migrateTuner(values) {
  return migrated(values, TUNER_LAYOUTS, TUNER_DEFAULTS, renamed);
}

/** Widget values of `LoRAAutoTunerSettings`, in today's order and words. */
export function migrateTunerSettings(values) {
  return migrated(values, SETTINGS_LAYOUTS, SETTINGS_DEFAULTS, renamed);
}

/** Widget values of `LoRAMergeSelector`, in today's order. */
export function migrateSelector(values) {
  return migrated(values, SELECTOR_LAYOUTS, SELECTOR_DEFAULTS);
}

/**
 * Widget values of `SaveTunerData`, in today's order.
 * @param {unknown[]} values as stored
 * @param {string} folder the one that stands first in the node's menu
 */
export function migrateSaveTuner(values, folder) {
  const defaults = { save_folder: folder, filename: "tuner_data", overwrite: true, prompt: "", description: "" };
  const fields = Object.keys(defaults);
  return migrated(values, [["filename"], fields.slice(0, 3), fields], defaults);
}
