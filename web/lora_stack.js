/** LoRA Stack: file names in its menu, and workflows of any age. */

import { app } from "../../scripts/app.js";
import { showFileNames } from "./lib/lora_names.js";
import { migrateStack } from "./lib/stack_layouts.js";
import { findWidget, migrateOnLoad } from "./lib/widgets.js";

const NODE = "LoRAStack";

app.registerExtension({
  name: "LoRAAlloy.LoRAStack",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name === NODE) migrateOnLoad(nodeType, migrateStack);
  },

  nodeCreated(node) {
    const menu = node.comfyClass === NODE && findWidget(node, "lora_name");
    if (menu) showFileNames(menu);
  },
});
