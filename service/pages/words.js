/** A definition of each quantity on the page. */

import { make } from "./dom.js";

/** @type {Record<string, [string, string]>} */
const WORDS = {
  measured: ["Measurement", "A measured value with its noise; the fainter its dot, the less weight it had."],
  estimate: ["Estimate", "The most probable true value, given all measurements up to then."],
  band: ["Interval", "The range that has the true value with the chosen probability."],
  forecast: ["Forecast", "The expected next measurements; their intervals have a measurement with that probability."],
  weight: ["Weight", "The share of a measurement that the filter used: 100 % uses it fully, 0 % not at all."],
  anomaly: ["Rarity", "How rarely this series has measurements that are as unusual."],
  alarm: ["Alarm", "A measurement that is as rare as the chosen rate, if the series does not change."],
  missing: ["Missing", "A row without a value: the filter predicts it, with growing uncertainty."],
  smoothed: ["Smoothed line", "The estimate given all measurements, earlier and later."],
  samples: ["Sample path", "A possible course of the true value; several show the uncertainty."],
  passes: ["Passes", "How often the weight of a measurement is computed; at most the model's own number."],
  confidence: ["Confidence", "The calibrated probability that this token is the right next one."],
  logprob: ["Probability", "The model's probability of a token, before temperature and filters."],
  latent: ["Latent sample", "A sample of the model's latent state for each token; other samples give other texts."],
  decoding: ["Decoding", "Recurrent uses a memory of constant size, attention all earlier tokens."],
  coverage: ["Coverage", "The share of held-out measurements inside their interval."],
  ece: ["Calibration error", "The mean difference between stated and actual probability, on held-out data."],
  digest: ["Digest", "A hash of the model's files: equal on servers with the same model."],
  latency: ["Latency", "Duration of replies; one in a hundred took longer than the 99th percentile."],
  state: ["State", "The complete state of a filter, sealed by the server; a stream can continue from it anywhere."],
};

/**
 * Definitions, collapsed.
 * @param {string[]} names keys of WORDS
 */
export function meaning(...names) {
  const entries = names.flatMap(name => [make("dt", {}, WORDS[name][0]), make("dd", {}, WORDS[name][1])]);
  return make("details", {}, make("summary", {}, "Definitions"), make("dl", {}, ...entries));
}
