/** LoRA AutoTuner Settings: workflows of any age. */

import { app } from "../../scripts/app.js";
import { followOutputs } from "./lib/outputs.js";
import { migrateTunerSettings } from "./lib/tuner_layouts.js";
import { migrateOnLoad } from "./lib/widgets.js";

const NODE = "LoRAAutoTunerSettings";

app.registerExtension({
  name: "LoRAAlloy.LoRAAutoTunerSettings",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name !== NODE) return;
    migrateOnLoad(nodeType, migrateTunerSettings);
    followOutputs(nodeType, nodeData.output_name);
  },
});
