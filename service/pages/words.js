/** Definitions of the quantities on the page. */

import { make } from "./dom.js";

/** @type {Record<string, [string, string]>} */
const WORDS = {
  measured: ["Measurement", "A measured value with noise. Fainter dots have a smaller weight."],
  estimate: ["Estimate", "The mean of the true value, given the measurements up to this time."],
  band: ["Interval", "A range that contains the true value with the selected probability."],
  forecast: [
    "Forecast",
    "The expected next measurements. Their intervals contain a measurement with the selected probability.",
  ],
  weight: ["Weight", "How much of a measurement the filter uses, from 0 % (it is ignored) to 100 % (it is fully used)."],
  anomaly: ["Rarity", "How rare measurements as unusual as this one are in the series."],
  alarm: ["Alarm", "A measurement that is at most as probable as the selected rate, if the series does not change."],
  missing: ["Missing", "A row without a value. The filter predicts it, with growing uncertainty."],
  smoothed: ["Smoothed line", "The estimate given all earlier and later measurements."],
  samples: ["Sample path", "A possible course of the true value. Several paths show the uncertainty."],
  passes: [
    "Passes",
    "The number of reweighting passes. Each pass updates the weight of a measurement. " +
      "The default is the maximum of the model.",
  ],
  confidence: ["Confidence", "The calibrated probability that this is the correct next token."],
  logprob: ["Probability", "The probability of a token under the model, before temperature and sampling filters."],
  latent: [
    "Latent sample",
    "A sample of the latent state of the model for each token. Different samples result in different texts.",
  ],
  decoding: [
    "Decoding",
    "The mode of the model. Recurrent mode uses memory slots of constant size, and attention mode all earlier tokens.",
  ],
  coverage: ["Coverage", "The fraction of held-out measurements inside their interval."],
  ece: ["Calibration error", "The mean difference between the predicted and the actual probability, on held-out data."],
  digest: ["Digest", "A hash of the files of the model. It is equal on servers with the same model."],
  latency: ["Latency", "The duration of replies. One reply in a hundred takes longer than the 99th percentile."],
  state: ["State", "The complete state of a filter, encrypted by the server. A stream can be continued from it."],
};

/**
 * A collapsed list of definitions.
 * @param {string[]} names keys of WORDS
 */
export function meaning(...names) {
  const entries = names.flatMap(name => [make("dt", {}, WORDS[name][0]), make("dd", {}, WORDS[name][1])]);
  return make("details", {}, make("summary", {}, "Definitions"), make("dl", {}, ...entries));
}
