/** Entries of a node's context menu, in front-ends old and new. */

/**
 * The part of an extension that adds to the context menu of a type of node.
 * @param {string} name of the type
 * @param {(node: object) => object[]} items of a node's menu; null is a line between two
 */
export function menuOf(name, items) {
  return { getNodeMenuItems: (node) => (node.comfyClass === name ? items(node) : []) };
}

/** The same for front-ends that do not ask extensions; `app` is ComfyUI's. */
export function addMenuTheOldWay(app, nodeType, items) {
  if (app.collectNodeMenuItems) return;
  const { getExtraMenuOptions } = nodeType.prototype;
  nodeType.prototype.getExtraMenuOptions = function (canvas, options) {
    const result = getExtraMenuOptions?.call(this, canvas, options);
    options.push(...items(this));
    return result;
  };
}

/** Change the graph in one step for undo; `app` is ComfyUI's. */
export function asOneStep(app, change) {
  app.canvas?.emitBeforeChange?.();
  change();
  app.canvas?.emitAfterChange?.();
}
