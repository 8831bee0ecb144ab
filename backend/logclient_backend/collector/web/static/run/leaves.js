// A nested config or summary as a list of names and values, by the rule of filters and columns (`runs/flatten.py`): keys are
// joined with `::`, items of lists go by their index, and what holds nothing is a value. So `{"a.b": 1}`, `{"a/b": 1}` and
// `{"a": {"b": 1}}` have different names.

const SEPARATOR = "::";
const MAX_DEPTH = 64;
const MAX = 5_000;

/** Return `[name, value]` of every leaf: `model::depth`, `layers::0::width`. At most 5,000 of them. */
export function leaves(tree) {
  const found = [];
  walk(tree, "", 1, found);
  return found;
}

function walk(node, before, depth, found) {
  for (const [key, value] of Object.entries(node)) {
    if (found.length >= MAX) return;
    const isNested = value !== null && typeof value === "object" && Object.keys(value).length > 0;
    if (!isNested) found.push([before + key, value]);
    else if (depth < MAX_DEPTH) walk(value, before + key + SEPARATOR, depth + 1, found);
  }
}
