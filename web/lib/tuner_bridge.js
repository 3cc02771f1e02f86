/** What AutoTuner and LoRA Optimizer (Legacy) have to do with each other on the screen. */

import { findWidget, fitHeight, setHidden, watchValue } from "./widgets.js";

export const TUNER = "LoRAAutoTuner";
export const OPTIMIZER = "LoRAOptimizer";

const SOCKET = "tuner_data";
/** By type of node: the widget that matters only while the socket is linked, what it is without, and its opposites. */
const SWITCHES = {
  [TUNER]: { widget: "output_mode", idle: "merge", opposite: { merge: "from_autotuner", tuning_only: "manual" } },
  [OPTIMIZER]: {
    widget: "settings_source",
    idle: "manual",
    opposite: { from_autotuner: "merge", manual: "tuning_only" },
  },
};
const CARRIED = [
  "output_strength",
  "clip_strength_multiplier",
  "normalize_keys",
  "architecture_preset",
  "auto_strength_floor",
  "cache_patches",
  "vram_budget",
];

const loading = new WeakSet();
let isFollowing = false;

/** Before nodes of this type are made: a stored value is not touched while its graph is being read. */
export function bridgeType(nodeType) {
  const { configure, onConnectionsChange } = nodeType.prototype;
  nodeType.prototype.configure = function (...args) {
    loading.add(this);
    try {
      return configure.apply(this, args);
    } finally {
      loading.delete(this);
      showSwitch(this);
    }
  };
  nodeType.prototype.onConnectionsChange = function (...args) {
    const result = onConnectionsChange?.apply(this, args);
    if (!loading.has(this)) relinked(this);
    return result;
  };
}

/** When a node of these types has been made. */
export function bridgeNode(node) {
  const widget = switchOf(node);
  if (!widget) return;
  watchValue(widget, () => follow(node));
  if (showSwitch(node)) fitHeight(node);
}

function switchOf(node) {
  return findWidget(node, SWITCHES[node.comfyClass]?.widget);
}

function isLinked(node) {
  if (node.comfyClass === TUNER) return node.outputs?.some(({ name, links }) => name === SOCKET && links?.length);
  return node.inputs?.some(({ name, link }) => name === SOCKET && link != null);
}

/** Show the switch where it matters. Returns whether that changed anything. */
function showSwitch(node) {
  const widget = switchOf(node);
  return widget ? setHidden(widget, !isLinked(node)) : false;
}

function relinked(node) {
  const widget = switchOf(node);
  if (!widget) return;
  const { idle } = SWITCHES[node.comfyClass];
  if (!isLinked(node) && widget.value !== idle && !isReading(node)) widget.value = idle;
  if (showSwitch(node)) fitHeight(node);
}

/** Whether the graph is being read or emptied, so that links come and go without anybody's wish. */
function isReading(node) {
  const partners = [...(node.graph?.nodes ?? [])].filter((other) => SWITCHES[other.comfyClass]);
  return !node.graph || partners.some((other) => loading.has(other));
}

/** One merges where the other does not: the switch of a partner that is directly linked goes along. */
function follow(node) {
  if (isFollowing || loading.has(node) || isReading(node)) return;
  const wanted = SWITCHES[node.comfyClass].opposite[switchOf(node).value];
  const partner = wanted && partnerOf(node);
  const other = partner && switchOf(partner);
  if (!other || other.value === wanted) return;
  isFollowing = true;
  try {
    other.value = wanted;
    partner.setDirtyCanvas?.(true, true);
  } finally {
    isFollowing = false;
  }
}

function partnerOf(node) {
  const links = node.comfyClass === TUNER
    ? node.outputs.find(({ name }) => name === SOCKET)?.links ?? []
    : [node.inputs.find(({ name }) => name === SOCKET)?.link].filter((id) => id != null);
  const wanted = node.comfyClass === TUNER ? OPTIMIZER : TUNER;
  for (const id of links) {
    const link = linkOf(node.graph, id);
    const other = node.graph.getNodeById(node.comfyClass === TUNER ? link?.target_id : link?.origin_id);
    if (other?.comfyClass === wanted) return other;
  }
  return undefined;
}

function linkOf(graph, id) {
  return graph?.getLink?.(id) ?? graph?.links?.get?.(id) ?? graph?.links?.[id];
}

/** The entry that puts the one in the place of the other; `make` makes a node of a type. */
export function swapItems(node, make, titles, asOneStep) {
  const other = node.comfyClass === TUNER ? OPTIMIZER : TUNER;
  const callback = () => asOneStep(() => swap(node, make(other)));
  return [null, { content: `Swap to ${titles[other]}`, callback }];
}

function swap(node, made) {
  const { graph } = node;
  made.pos = [...node.pos];
  graph.add(made);
  for (const name of CARRIED) {
    const [from, to] = [findWidget(node, name), findWidget(made, name)];
    if (from && to) to.value = from.value;
  }
  const incoming = (node.inputs ?? []).flatMap(({ name, link }) => {
    const found = link == null ? undefined : linkOf(graph, link);
    return found ? [{ name, id: found.origin_id, slot: found.origin_slot }] : [];
  });
  const outgoing = (node.outputs ?? []).flatMap(({ name, links }) =>
    (links ?? []).flatMap((link) => {
      const found = linkOf(graph, link);
      return found ? [{ name, id: found.target_id, slot: found.target_slot }] : [];
    }),
  );
  for (const { name, id, slot } of incoming) {
    const at = made.inputs.findIndex((input) => input.name === name);
    if (at >= 0) graph.getNodeById(id)?.connect(slot, made, at);
  }
  for (const { name, id, slot } of outgoing) {
    const at = made.outputs.findIndex((output) => output.name === name);
    const target = graph.getNodeById(id);
    if (at >= 0 && target) made.connect(at, target, slot);
  }
  graph.remove(node);
}
