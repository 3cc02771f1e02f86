/** Widgets of a node, in the canvas renderer and in the Vue one alike. */

/** A node's widget of this name, or undefined. */
export function findWidget(node, name) {
  return node.widgets?.find((widget) => widget.name === name);
}

// The canvas of older front-ends lays hidden widgets out too, and adds this much to the height of each.
const ROW_GAP = 4;
const noHeight = () => [0, -ROW_GAP];

const concealed = new WeakSet();

/**
 * Hide or show a widget; its value is saved and sent either way.
 * @returns {boolean} whether that changed anything
 */
export function setHidden(widget, hidden) {
  widget.hidden = hidden;
  if (widget.options) widget.options.hidden = hidden;
  if (hidden) widget.computeSize = noHeight;
  else if (widget.computeSize === noHeight) delete widget.computeSize; // back to that of its class
  if (concealed.has(widget) === hidden) return false;
  if (hidden) concealed.add(widget);
  else concealed.delete(widget);
  return true;
}

/** Call `changed` whenever the value of a widget is set, by hand or by a script. */
export function watchValue(widget, changed) {
  const inherited = describe(widget, "value");
  let stored = inherited?.value;
  Object.defineProperty(widget, "value", {
    configurable: true,
    enumerable: true,
    get: () => (inherited?.get ? inherited.get.call(widget) : stored),
    set: (value) => {
      if (inherited?.set) inherited.set.call(widget, value);
      else stored = value;
      changed();
    },
  });
  const { callback } = widget;
  widget.callback = function (...args) {
    const result = callback?.apply(this, args);
    changed();
    return result;
  };
}

/** Give a node the height that its visible widgets need; its width stays. */
export function fitHeight(node) {
  node.setSize([node.size[0], node.computeSize()[1]]);
  node.setDirtyCanvas?.(true, true);
}

/** Bring stored widget values into today's order before a node of this type takes them. */
export function migrateOnLoad(nodeType, migrate) {
  const { configure } = nodeType.prototype;
  nodeType.prototype.configure = function (stored, ...rest) {
    if (Array.isArray(stored?.widgets_values)) stored.widgets_values = migrate(stored.widgets_values);
    return configure.call(this, stored, ...rest);
  };
}

function describe(object, property) {
  for (let holder = object; holder; holder = Object.getPrototypeOf(holder)) {
    const found = Object.getOwnPropertyDescriptor(holder, property);
    if (found) return found;
  }
  return undefined;
}
