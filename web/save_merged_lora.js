/** Save Merged LoRA: workflows of any age. */

import { app } from "../../scripts/app.js";
import { migrateSave } from "./lib/save_layouts.js";
import { migrateOnLoad } from "./lib/widgets.js";

const NODE = "SaveMergedLoRA";

app.registerExtension({
  name: "LoRAAlloy.SaveMergedLoRA",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name !== NODE) return;
    const folder = nodeData.input?.required?.save_folder?.[0]?.[0] ?? "";
    migrateOnLoad(nodeType, (values) => migrateSave(values, folder));
  },
});
