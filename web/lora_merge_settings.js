/** LoRA Merge Settings: workflows of any age. */

import { app } from "../../scripts/app.js";
import { migrateMergeSettings } from "./lib/optimizer_layouts.js";
import { migrateOnLoad } from "./lib/widgets.js";

const NODE = "LoRAMergeSettings";

app.registerExtension({
  name: "LoRAAlloy.LoRAMergeSettings",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name === NODE) migrateOnLoad(nodeType, migrateMergeSettings);
  },
});
