/** Names of LoRA files: what a menu shows of them, and how a typed name and a menu entry translate. */

const ENDING = /\.(safetensors|sft|pt|ckpt|bin|pth)$/i;

const labels = new WeakMap();

/** The file name without its folder; with it where another entry of the menu has the same file name. */
export function labelOf(value, values) {
  const name = String(value ?? "");
  if (!Array.isArray(values)) return baseOf(name);
  if (!labels.has(values)) labels.set(values, countBases(values));
  return labels.get(values).get(baseOf(name)) > 1 ? name : baseOf(name);
}

/** Let the menu of a widget show file names only; the values keep their folders. */
export function showFileNames(widget) {
  widget.options.getOptionLabel = (value) => labelOf(value, widget.options.values);
}

/** What to type for a menu entry: its bare name where that finds it again, all of it otherwise. */
export function textOf(value, values) {
  if (value == null) return "None";
  const stem = stemOf(value);
  return value === "None" || values.filter((other) => sameStem(other, stem)).length > 1 ? value : stem;
}

/** The menu entry that a typed name means, or undefined. */
export function optionOf(text, values) {
  const wanted = slashed(text).trim();
  if (wanted === "") return "None";
  return (
    values.find((value) => slashed(value) === wanted) ??
    values.find((value) => slashed(value).replace(ENDING, "") === wanted) ??
    values.find((value) => slashed(value).replace(ENDING, "").endsWith(`/${wanted.replace(ENDING, "")}`)) ??
    values.find((value) => sameStem(value, stemOf(wanted)))
  );
}

/** A path with `/`, whatever system it was made on. */
export function slashed(name) {
  return String(name ?? "").replaceAll("\\", "/");
}

function baseOf(name) {
  return slashed(name).split("/").at(-1);
}

function stemOf(name) {
  return baseOf(name).replace(ENDING, "");
}

function sameStem(value, stem) {
  return stemOf(value).toLowerCase() === stem.toLowerCase();
}

function countBases(values) {
  const counts = new Map();
  for (const value of values) counts.set(baseOf(value), (counts.get(baseOf(value)) ?? 0) + 1);
  return counts;
}
