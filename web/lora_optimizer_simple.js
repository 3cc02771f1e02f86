/** LoRA Optimizer: workflows of any age. */

import { app } from "../../scripts/app.js";
import { followOutputs } from "./lib/outputs.js";

const NODE = "LoRAOptimizerSimple";

app.registerExtension({
  name: "LoRAAlloy.LoRAOptimizerSimple",

  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name === NODE) followOutputs(nodeType, nodeData.output_name);
  },
});
