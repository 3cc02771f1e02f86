/** Outputs that moved: links of older workflows follow them by name. */

/**
 * Where outputs of these stored names stand today; null where they already do, or are not all ours.
 * @param {string[]} stored
 * @param {string[]} names today's, in order
 * @returns {number[] | null}
 */
export function movedTo(stored, names) {
  const places = stored.map((name) => names.indexOf(name));
  const known = !places.includes(-1) && new Set(places).size === places.length;
  return known && places.some((place, at) => place !== at) ? places : null;
}

/** Bring the outputs of a stored node, and the links that leave them, to today's places. */
export function followOutputs(nodeType, names) {
  const { configure } = nodeType.prototype;
  nodeType.prototype.configure = function (stored, ...rest) {
    const places = movedTo(stored?.outputs?.map(({ name }) => name) ?? [], names);
    if (places) move(this, stored, places);
    return configure.call(this, stored, ...rest);
  };
}

function move(node, stored, places) {
  const outputs = node.outputs.map(({ name, type }) => ({ name, type, links: null }));
  stored.outputs.forEach((output, at) => {
    outputs[places[at]] = output;
    for (const id of output.links ?? []) {
      const link = node.graph?.getLink?.(id) ?? node.graph?.links?.[id];
      if (link) link.origin_slot = places[at];
    }
  });
  stored.outputs = outputs;
}
