/** LoRA AutoTuner: workflows of any age, and its place beside LoRA Optimizer (Legacy). */

import { app } from "../../scripts/app.js";
import { addMenuTheOldWay, asOneStep, menuOf } from "./lib/menu.js";
import { followOutputs } from "./lib/outputs.js";
import { bridgeNode, bridgeType, swapItems, TUNER, OPTIMIZER } from "./lib/tuner_bridge.js";
import { migrateTuner } from "./lib/tuner_layouts.js";
import { migrateOnLoad } from "./lib/widgets.js";

const TITLES = { [TUNER]: "LoRA AutoTuner", [OPTIMIZER]: "LoRA Optimizer" };
const MIGRATIONS = { [TUNER]: migrateTuner };
const make = (type) => globalThis.LiteGraph.createNode(type);
const items = (node) => swapItems(node, make, TITLES, (change) => asOneStep(app, change));

for (const type of [TUNER, OPTIMIZER]) {
  app.registerExtension({
    name: `LoRAAlloy.Bridge.${type}`,

    beforeRegisterNodeDef(nodeType, nodeData) {
      if (nodeData.name !== type) return;
      if (MIGRATIONS[type]) {
        migrateOnLoad(nodeType, MIGRATIONS[type]);
        followOutputs(nodeType, nodeData.output_name);
      }
      bridgeType(nodeType);
      addMenuTheOldWay(app, nodeType, items);
    },

    nodeCreated(node) {
      if (node.comfyClass === type) bridgeNode(node);
    },

    ...menuOf(type, items),
  });
}
