// Settings of several runs side by side. Pure.

import { leaves } from "../run/leaves.js";

/**
 * Return the rows of a table: `{path, values, differs}`, in the order in which the runs have the paths. `values` has one entry per
 * run, undefined where the run has no such path. Values differ where their JSON does.
 */
export function rowsOf(trees) {
  const rows = new Map();
  trees.forEach((tree, at) => {
    for (const [path, leaf] of leaves(tree)) {
      if (!rows.has(path)) rows.set(path, new Array(trees.length).fill(undefined));
      rows.get(path)[at] = leaf;
    }
  });
  return [...rows].map(([path, values]) => ({ path, values, differs: new Set(values.map((each) => JSON.stringify(each))).size > 1 }));
}
