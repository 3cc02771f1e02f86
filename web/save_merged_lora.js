/** Save Merged LoRA: workflows of any age, and the proof on the node. */

import { app } from "../../scripts/app.js";
import { ComfyWidgets } from "../../scripts/widgets.js";
import { migrateSave } from "./lib/save_layouts.js";
import { findWidget, migrateOnLoad } from "./lib/widgets.js";

const NODE = "SaveMergedLoRA";
const PROOF = "proof";
const PROOF_HEIGHT = 90;

app.registerExtension({
  name: "LoRAAlloy.SaveMergedLoRA",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name !== NODE) return;
    const folder = nodeData.input?.required?.save_folder?.[0]?.[0] ?? "";
    migrateOnLoad(nodeType, (values) => migrateSave(values, folder));
    showProof(nodeType);
  },
});

/** After a run, what the node says of the file that it wrote; it is neither saved nor sent. */
function showProof(nodeType) {
  const { onExecuted } = nodeType.prototype;
  nodeType.prototype.onExecuted = function (message, ...rest) {
    onExecuted?.call(this, message, ...rest);
    const text = message?.text?.[0];
    if (typeof text !== "string") return;
    (findWidget(this, PROOF) ?? addProof(this)).value = text;
    this.setDirtyCanvas?.(true, true);
  };
}

function addProof(node) {
  const { widget } = ComfyWidgets.STRING(node, PROOF, ["STRING", { multiline: true }], app);
  widget.options.read_only = true;
  if (widget.element) widget.element.readOnly = true;
  widget.serialize = false;
  widget.options.serialize = false;
  widget.options.getMinHeight = () => PROOF_HEIGHT;
  const [width, height] = node.size;
  node.setSize([width, Math.max(height, node.computeSize()[1])]);
  return widget;
}
