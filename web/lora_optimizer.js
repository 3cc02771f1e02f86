/** LoRA Optimizer (Legacy): workflows of any age, and the tuned settings that it followed. */

import { app } from "../../scripts/app.js";
import { appliedSettings, migrateOptimizer } from "./lib/optimizer_layouts.js";
import { followOutputs } from "./lib/outputs.js";
import { findWidget, migrateOnLoad } from "./lib/widgets.js";

const NODE = "LoRAOptimizer";

app.registerExtension({
  name: "LoRAAlloy.LoRAOptimizer",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name !== NODE) return;
    migrateOnLoad(nodeType, migrateOptimizer);
    followOutputs(nodeType, nodeData.output_name);
    showWhatWasFollowed(nodeType);
  },
});

/** After a run by a tuning result, the widgets show what it was. */
function showWhatWasFollowed(nodeType) {
  const { onExecuted } = nodeType.prototype;
  nodeType.prototype.onExecuted = function (message, ...rest) {
    onExecuted?.call(this, message, ...rest);
    for (const [name, value] of Object.entries(appliedSettings(message?.applied_settings?.[0]))) {
      const widget = findWidget(this, name);
      if (widget) widget.value = value;
    }
    this.setDirtyCanvas?.(true, true);
  };
}
