/** Parse the reply of /metrics, which is in the text format of Prometheus. */

/** @typedef {{name: string, labels: Record<string, string>, value: number}} Sample */

/**
 * @param {string} text
 * @returns {Sample[]}
 */
export function samples(text) {
  return text.split("\n").flatMap(line => {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found || line.startsWith("#")) return [];
    const labels = Object.fromEntries(
      [...(found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]),
    );
    return [{ name: found[1], labels, value: Number(found[3].replace("Inf", "Infinity")) }];
  });
}

/**
 * The sum of a metric over all processes.
 * @param {Sample[]} all
 * @param {string} name
 * @param {Record<string, string>} [labels] labels that the samples must have
 */
export const total = (all, name, labels = {}) =>
  all.filter(sample => sample.name === name && has(sample, labels)).reduce((sum, { value }) => sum + value, 0);

/** @param {Sample} sample @param {Record<string, string>} labels */
const has = (sample, labels) => Object.entries(labels).every(([name, value]) => sample.labels[name] === value);

/**
 * A histogram over all processes and labels, with the count between each bound and the previous one.
 * @param {Sample[]} all
 * @param {string} name
 * @returns {{upTo: number, count: number}[]}
 */
export function histogram(all, name) {
  /** @type {Map<number, number>} */
  const upTo = new Map();
  for (const { name: found, labels, value } of all) {
    if (found !== `${name}_bucket`) continue;
    const bound = Number(labels.le.replace("Inf", "Infinity"));
    upTo.set(bound, (upTo.get(bound) ?? 0) + value);
  }
  const bounds = [...upTo].sort(([a], [b]) => a - b);
  return bounds.map(([bound, count], k) => ({ upTo: bound, count: count - (k ? bounds[k - 1][1] : 0) }));
}

/**
 * An upper bound on a quantile. It is NaN for an empty histogram.
 * @param {{upTo: number, count: number}[]} bins
 * @param {number} share
 */
export function quantile(bins, share) {
  const all = bins.reduce((sum, { count }) => sum + count, 0);
  let sum = 0;
  for (const { upTo, count } of bins) {
    sum += count;
    if (all && sum >= share * all) return upTo;
  }
  return NaN;
}
