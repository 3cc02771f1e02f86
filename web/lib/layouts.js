/** Stored widget values of any age: which layout they are of, and how they become today's. */

/**
 * Widget values in today's order and words.
 *
 * A workflow stores widget values by position. A layout is recognised by its length and the types of its values.
 * @param {unknown[]} values as stored
 * @param {string[][]} layouts there were, each with its fields in order
 * @param {Record<string, unknown>} defaults of today's fields, in order
 * @param {(field: string, value: unknown) => unknown} renamed what a stored value is called today
 * @param {(field: string, value: unknown) => boolean} strange whether a value of another type was once allowed
 * @returns {unknown[]} `values` itself where today's widgets can take them as they are, or where we know them not
 */
export function migrated(values, layouts, defaults, renamed = (_, value) => value, strange = () => false) {
  const fields = layouts.find((layout) => fits(values, layout, defaults, strange));
  if (!fields) return values;
  const stored = new Map(fields.map((field, at) => [field, renamed(field, values[at])]));
  return settled(values, Object.keys(defaults).map((field) => stored.get(field) ?? defaults[field]));
}

/** Whether each value has the type of its field's default; null, and any value of a field without one, fits. */
export function fits(values, fields, defaults, strange = () => false) {
  const isOne = (value, field) =>
    value == null || !(field in defaults) || typeof value === typeof defaults[field] || strange(field, value);
  return values.length === fields.length && values.every((value, at) => isOne(value, fields[at]));
}

/** What was made of stored values; these themselves where it is the same. */
export function settled(values, made) {
  return values.length === made.length && values.every((value, at) => value === made[at]) ? values : made;
}
