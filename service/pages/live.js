/** The tab with a live stream. It sends measurements, to which users can add disturbances. */

import { byId, fillSelect } from "./dom.js";
import { fieldsOf, fillForm, show } from "./fragment.js";
import { offerFilters } from "./models.js";
import { Pane } from "./pane.js";
import { offerCopies } from "./snippets.js";
import { SOURCES } from "./sources.js";
import { meaning } from "./words.js";

const TAB = "live";
/** Size of a spike, and the largest shift of the slider, relative to the amplitude of the source. */
const SPIKE = 3;
const FURTHEST_SHIFT = 2;

const form = /** @type {HTMLFormElement} */ (byId("live-form"));
/** @type {Pane[]} */
let panes = [];
/** @type {import("./sources.js").Source} */
let source = SOURCES.wave.make();
let row = 0;
let timer = 0;
let spike = 0;
/** @type {{component: number, value: number} | null} measurement that is set with the pointer */
let hand = null;

/** @param {URLSearchParams} fields of the address */
export async function startLive(fields) {
  fillSelect(
    byId("live-source"),
    Object.entries(SOURCES).map(([name, { shown }]) => [name, shown]),
  );
  fillForm(form, fields);
  byId("live-words").append(meaning("measured", "estimate", "band", "weight", "alarm", "state"));
  offerCopies(byId("live-copy"), () =>
    panes.map(({ stream }) => ({
      path: "filter/stream",
      frames: stream?.frames ?? [],
      measured: stream?.measured ?? 0,
    })),
  );
  listen();
  await begin(fields.get("state"));
}

/** Loads the list of models, and starts the streams. @param {string | null} state */
async function begin(state) {
  try {
    await offerFilters(byId("live-first"), "default");
    await offerFilters(byId("live-second"), "none");
  } catch (error) {
    return onFailure(/** @type {Error} */ (error).message);
  }
  restart(state);
}

function listen() {
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("change", event => {
    const { name } = /** @type {HTMLInputElement} */ (event.target);
    if (["source", "first", "second"].includes(name)) restart(null);
    if (name === "speed" && timer) play();
    show(TAB, fieldsOf(form));
  });
  byId("live-play").addEventListener("click", () => (timer ? pause() : play()));
  byId("live-step").addEventListener("click", () => {
    pause();
    measure();
  });
  byId("live-spike").addEventListener("click", () => (spike = SPIKE));
  byId("live-cut").addEventListener("click", () => byId("live-cut").setAttribute("aria-pressed", String(!isCut())));
  byId("live-again").addEventListener("click", () => begin(null));
  byId("live-save").addEventListener("click", save);
  byId("live-resume").addEventListener("click", () => begin(byId("live-state").value.trim()));
  document.addEventListener("tab", event => /** @type {CustomEvent} */ (event).detail !== TAB && pause());
}

/** Removes rounding errors of sums. @param {number} value */
const plain = value => Number(value.toPrecision(12));

const isCut = () => byId("live-cut").getAttribute("aria-pressed") === "true";

function play() {
  clearInterval(timer);
  const speed = Math.min(50, Math.max(1, Number(byId("live-speed").value)));
  timer = window.setInterval(measure, 1000 / speed);
  byId("live-play").textContent = "Pause";
}

function pause() {
  clearInterval(timer);
  timer = 0;
  byId("live-play").textContent = "Play";
}

/** Starts new streams. The first one continues from a state, if there is one. @param {string | null} state */
function restart(state) {
  pause();
  byId("live-error").textContent = "";
  source = SOURCES[byId("live-source").value].make();
  row = 0;
  const models = [byId("live-first").value, ...(byId("live-second").value ? [byId("live-second").value] : [])];
  panes.slice(models.length).forEach(pane => pane.stream?.drop());
  if (models.length !== panes.length) {
    byId("live-panes").replaceChildren();
    panes.forEach(pane => pane.stream?.drop());
    panes = models.map((_, k) => new Pane(byId("live-panes"), `live-plots-${k}`, { onHand, onReady, onFailure }));
  }
  panes.forEach((pane, k) => pane.open(source, models[k], k ? null : state));
}

/** @param {number} component @param {number | null} value */
function onHand(component, value) {
  hand = value === null ? null : { component, value: plain(value) };
}

/** Skips the rows before the state of a continued stream. @param {number} index */
function onReady(index) {
  row = Math.max(row, index);
}

/** @param {string} message */
function onFailure(message) {
  pause();
  byId("live-error").textContent = message;
}

/** Sends the next measurement with its disturbances to all streams. */
function measure() {
  if (!panes.length || !panes.every(({ stream }) => stream?.isFree)) return;
  const next = source.row(row);
  if (!next) return pause();
  row++;
  const slider = byId("live-shift");
  const disturbed = (FURTHEST_SHIFT * slider.value) / slider.max + spike;
  spike = 0;
  const seen = next.y.map((value, k) => {
    if (hand?.component === k) return hand.value;
    return value === null ? null : plain(value + disturbed * source.scales[k]);
  });
  for (const pane of panes) pane.send(next.t, isCut() || seen.every(value => value === null) ? null : seen);
}

async function save() {
  pause();
  const state = await panes[0].save(byId("live-first").value);
  if (!state) return onFailure("There is no state to save, because the stream has ended.");
  byId("live-state").value = state;
  byId("live-state-part").open = true;
  const fields = fieldsOf(form);
  fields.set("state", state);
  const link = byId("live-elsewhere");
  link.href = `${location.pathname}#${TAB}?${fields}`;
  link.hidden = false;
}
