/** One plain sentence on each quantity that the page shows. */

import { make } from "./dom.js";

/** @type {Record<string, [string, string]>} */
const WORDS = {
  measured: ["Measurement", "A value as it came, with its noise; the fainter its dot, the less the filter made of it."],
  estimate: [
    "Estimate",
    "What most probably lies behind the measurements at that moment, by all that came until then.",
  ],
  band: ["Band", "Where that value lies with the probability you chose: the wider, the less is known."],
  forecast: [
    "Forecast",
    "What the next measurements will probably be; its bands hold a measurement with the probability you chose.",
  ],
  weight: ["Weight", "The share of a measurement that the filter used: 100 % takes it as it is, 0 % not at all."],
  anomaly: ["Rarity", "How seldom this very series shows something so strange."],
  alarm: ["Alarm", "A measurement that is as rare as you asked for: so many come on a series that stays as it is."],
  missing: ["Missing", "A row without a value: the filter goes on alone, and grows less sure."],
  smoothed: ["Smoothed line", "The estimate once more, with what came afterwards known too."],
  samples: ["Sample path", "One course that the value behind may well have taken; several show what is still open."],
  passes: ["Passes", "How often a measurement is weighed anew before it is used; the model's own number is the most."],
  confidence: [
    "Confidence",
    "The probability that this token is the right next one; over many tokens it comes true so often.",
  ],
  logprob: ["Probability", "What the model itself gives a token, before temperature and the like change the draw."],
  latent: [
    "Latent sample",
    "A draw of what the model is unsure of inside, kept for a whole token: other draws, other texts.",
  ],
  decoding: [
    "Decoding",
    "Recurrent reads the past from a memory of constant size, attention looks at all of it again.",
  ],
  coverage: [
    "Coverage",
    "The share of measurements that lay inside their band, when it was checked on data kept aside.",
  ],
  ece: ["Calibration error", "How far stated and realised probability are apart, on average, on data kept aside."],
  digest: ["Digest", "The fingerprint of a model's files: two servers with the same one have the same model."],
  latency: ["Latency", "How long answers took; the 99th percentile is what one in a hundred took at least."],
  state: ["State", "All that a filter remembers, sealed by the server: from it a stream goes on anywhere."],
};

/**
 * What these words mean, to be opened.
 * @param {string[]} names of WORDS
 */
export function meaning(...names) {
  const entries = names.flatMap(name => [make("dt", {}, WORDS[name][0]), make("dd", {}, WORDS[name][1])]);
  return make("details", {}, make("summary", {}, "What the words mean"), make("dl", {}, ...entries));
}
