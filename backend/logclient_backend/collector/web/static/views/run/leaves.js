// A nested config or summary as a list of paths and values. A key with a dot in it is quoted, so `{"a.b": 1}` and
// `{"a": {"b": 1}}` have different paths.

const MAX = 5_000;

/** Return `[path, value]` of every leaf: `model.depth`, `layers[0].width`, `"a.b"`. At most 5,000 of them. */
export function leaves(tree) {
  const found = [];
  walk(tree, "", found);
  return found;
}

function walk(node, path, found) {
  if (found.length >= MAX) return;
  if (Array.isArray(node) && node.some((each) => each !== null && typeof each === "object")) {
    node.forEach((each, at) => walk(each, `${path}[${at}]`, found));
  } else if (node !== null && typeof node === "object" && !Array.isArray(node) && Object.keys(node).length) {
    for (const [name, each] of Object.entries(node)) walk(each, path ? `${path}.${quoted(name)}` : quoted(name), found);
  } else if (path) {
    found.push([path, node]);
  }
}

function quoted(name) {
  return /[.[\]"]/.test(name) || name === "" ? JSON.stringify(name) : name;
}
