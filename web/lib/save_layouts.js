/** Widget values of Save Merged LoRA as workflows of any age store them, and how they become today's. */

const OLDEST = ["string", "number", "boolean"]; // filename, rank, bake: the folder was not yet asked for

/**
 * Widget values of `SaveMergedLoRA`, in today's order.
 * @param {unknown[]} values as stored
 * @param {string} folder the one that stands first in the node's menu
 * @returns {unknown[]} `values` itself where today's widgets can take them as they are, or where we know them not
 */
export function migrateSave(values, folder) {
  const isOldest = values.length === OLDEST.length && values.every((value, at) => typeof value === OLDEST[at]);
  return isOldest ? [folder, ...values] : values;
}
