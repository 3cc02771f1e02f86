/** Base models of the installed LoRAs, as the pack ComfyUI-Lora-Manager knows them, where it is installed. */

import { slashed } from "./lora_names.js";

const PAGE_SIZE = 100;
const MOST_PAGES = 1000;

/** How the nodes of that pack are told from others. */
export function isCompanion(nodeName) {
  return nodeName.endsWith("(LoraManager)");
}

/**
 * Ask the companion for its models.
 * @param {(route: string) => Promise<Response>} fetchRoute
 * @returns {Promise<{names: string[], files: {path: string, model: string}[]} | null>} null where it has none
 */
export async function fetchBaseModels(fetchRoute) {
  try {
    const { base_models: models = [] } = await json(fetchRoute(`/lm/loras/base-models?limit=${PAGE_SIZE}`));
    const names = models.map((model) => model.name).filter(Boolean);
    if (names.length === 0) return null;
    const files = [];
    let pages = 1;
    for (let page = 1; page <= Math.min(pages, MOST_PAGES); page += 1) {
      const query = `page=${page}&page_size=${PAGE_SIZE}&sort_by=name`;
      const found = await json(fetchRoute(`/lm/loras/list?${query}`));
      for (const item of found.items ?? []) files.push({ path: slashed(item.file_path ?? ""), model: item.base_model });
      pages = found.total_pages ?? 1;
    }
    return { names, files };
  } catch {
    return null; // an optional neighbour: absent, of another version, or busy, it is simply not used
  }
}

/** The menu of LoRAs for one base model; the whole menu where none is chosen or nothing fits. */
export function filterByModel(values, model, files) {
  if (model === "All") return values;
  const paths = files.filter((file) => file.model === model).map((file) => `/${file.path}`);
  const fitting = values.filter((value) => paths.some((path) => path.endsWith(`/${slashed(value)}`)));
  return fitting.length > 0 ? ["None", ...fitting] : values;
}

async function json(answer) {
  const response = await answer;
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}
