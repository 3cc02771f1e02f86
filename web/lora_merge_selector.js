/** Merge Selector: workflows of any age. */

import { app } from "../../scripts/app.js";
import { followOutputs } from "./lib/outputs.js";
import { migrateSelector } from "./lib/tuner_layouts.js";
import { migrateOnLoad } from "./lib/widgets.js";

const NODE = "LoRAMergeSelector";

app.registerExtension({
  name: "LoRAAlloy.LoRAMergeSelector",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name !== NODE) return;
    migrateOnLoad(nodeType, migrateSelector);
    followOutputs(nodeType, nodeData.output_name);
  },
});
