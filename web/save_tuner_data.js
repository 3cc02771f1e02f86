/** Save Tuner Data: workflows of any age. */

import { app } from "../../scripts/app.js";
import { migrateSaveTuner } from "./lib/tuner_layouts.js";
import { migrateOnLoad } from "./lib/widgets.js";

const NODE = "SaveTunerData";

app.registerExtension({
  name: "LoRAAlloy.SaveTunerData",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name !== NODE) return;
    const folder = nodeData.input?.required?.save_folder?.[0]?.[0] ?? "";
    migrateOnLoad(nodeType, (values) => migrateSaveTuner(values, folder));
  },
});
