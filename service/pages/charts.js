/** Charts with a common time axis: one chart for alarms and missing values, and one for each component. */

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { make } from "./dom.js";
import { axisNumbers } from "./format.js";
import { bandsOf, coarse, columnsOf, laneOf, limitsOf, seriesOf } from "./lines.js";
import { paintLane, paintMeasured, paintPicked } from "./paint.js";
import { reading } from "./picture.js";
import { colour, onScheme } from "./scheme.js";

/** @typedef {import("./picture.js").Picture} Picture */
/**
 * @typedef {object} Options
 * @property {(row: number) => void} [onPick] called when a row is selected
 * @property {(component: number, value: number | null) => void} [onHand] called when the pointer sets the next
 *     measurements to a value; null when it is released
 * @property {number} [height] height of a chart in pixels
 */

/** Width in pixels of the numbers of an axis, and of each letter of longer numbers. */
const AXIS = 66;
const LETTER = 8;
const AROUND_NUMBER = 18;
const LANE = 52;
/** Margin of the plot, in pixels. */
const MARGIN = 8;
/** Maximum number of entries per pixel. If there are more rows, their minima and maxima are drawn. */
const DENSE = 1;
/** Distance in pixels in which a click selects the row with the largest nis. */
const NEAR = 3;
/** Formats of times: the minimum step, the format of each time, and those at the start of a year and of a day. */
const CLOCK = /** @type {[number, string, string | null, string | null][]} */ ([
  [365 * 86400, "{YYYY}", null, null],
  [28 * 86400, "{MMM}", "\n{YYYY}", null],
  [86400, "{D} {MMM}", "\n{YYYY}", null],
  [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", "\n{D} {MMM}"],
  [1, "{HH}:{mm}:{ss}", "\n{D} {MMM} {YYYY}", "\n{D} {MMM}"],
  [0.001, "{ss}.{fff}", "\n{D} {MMM} {YYYY}", "\n{D} {MMM}"],
]).map(([step, each, year, day]) => [step, each, year, null, day, null, null, null, 1]);

export class Charts {
  /** @type {any[]} */
  #plots = [];
  /** @type {Picture | null} */
  #picture = null;
  #form = "";
  /** @type {[number, number] | null} range of times that is shown; null means all */
  #range = null;
  /** @type {[number, number]} the limits of the range, also if all times are shown */
  #limits = [0, 1];
  /** @type {number | null} */
  #picked = null;
  #row = 0;
  /** Width of the numbers of all axes. */
  #axisSize = AXIS;
  /** Number of rows for each entry of the plots. */
  #stride = 1;
  /** @type {Map<number, any[]>} columns by stride and chart */
  #columns = new Map();

  /**
   * @param {HTMLElement} host
   * @param {Options} [options]
   */
  constructor(host, options = {}) {
    this.host = host;
    this.options = options;
    new ResizeObserver(() => this.#resize()).observe(host);
    onScheme(() => this.#plots.forEach(plot => plot.redraw(false)));
  }

  get isEmpty() {
    return !this.#picture;
  }

  /** @param {Picture} picture */
  show(picture) {
    const form = JSON.stringify([
      picture.isDated,
      picture.components.map(one => [
        one.name,
        one.bands.length,
        one.fan.length,
        one.samples.length,
        Boolean(one.smoothed),
      ]),
    ]);
    const isSame = this.#picture && this.#picture.times[0] === picture.times[0] && this.#picture.rows === picture.rows;
    if (!isSame) [this.#range, this.#picked] = [null, null];
    this.#picture = picture;
    this.#stride = 1;
    if (form !== this.#form) this.#build();
    this.#thin();
    this.#fill();
    this.#form = form;
    this.#setRange(...this.#whole());
    const last = picture.times.length - 1;
    this.#say(this.options.onHand ? last : Math.min(this.#row, last));
  }

  /** Zooms around the middle of the range. @param {number} factor */
  zoom(factor) {
    if (!this.#picture) return;
    const [from, to] = this.#limits;
    const middle = (from + to) / 2;
    this.#setRange(middle - ((to - from) / 2) * factor, middle + ((to - from) / 2) * factor);
  }

  /** Moves the range. @param {number} share of its width */
  pan(share) {
    if (!this.#picture) return;
    const [from, to] = this.#limits;
    this.#setRange(from + share * (to - from), to + share * (to - from));
  }

  all() {
    if (!this.#picture) return;
    this.#range = null;
    this.#setRange(...this.#whole());
  }

  /** Marks a row, and zooms to it. @param {number} row @param {number} [around] number of rows on each side */
  pick(row, around = 0) {
    if (!this.#picture) return;
    const { times } = this.#picture;
    this.#picked = row;
    if (around) this.#setRange(times[Math.max(0, row - around)], times[Math.min(times.length - 1, row + around)]);
    this.#point(row);
    this.#plots.forEach(plot => plot.redraw(false));
  }

  #shownPicture() {
    return /** @type {Picture} */ (this.#picture);
  }

  #whole() {
    const { times } = this.#shownPicture();
    return /** @type {[number, number]} */ (this.#range ?? [times[0], times[times.length - 1]]);
  }

  /** @param {number} from @param {number} to */
  #setRange(from, to) {
    const { times } = this.#shownPicture();
    const first = times[0];
    const last = times[times.length - 1];
    const span = Math.min(to - from, last - first);
    const min = Math.max(first, Math.min(from, last - span));
    const max = min + (span || 1);
    this.#range = min === first && min + span === last ? null : [min, max];
    this.#limits = [min, max];
    this.#setStride((times.length * (max - min)) / (last - first || 1));
    for (const plot of this.#plots) plot.setScale("x", { min, max });
  }

  /** Adapts the stride to the width of the chart. @param {number} rows number of visible rows */
  #setStride(rows) {
    const stride = Math.min(this.#strideOf(rows), Math.max(...this.#columns.keys()));
    if (stride === this.#stride) return;
    this.#stride = stride;
    this.#fill();
  }

  /** @param {number} rows */
  #strideOf(rows) {
    return Math.max(1, 2 ** Math.floor(Math.log2(rows / (DENSE * this.#width()))));
  }

  /** Computes the columns for all strides in advance, because this takes too long while the range is moved. */
  #thin() {
    const picture = this.#shownPicture();
    const whole = this.#plots.map((_, k) => (k ? columnsOf(picture, k - 1) : laneOf(picture)));
    const limits = (/** @type {number} */ k) => (k ? limitsOf(picture.components[k - 1]) : 0);
    this.#columns = new Map([[1, whole]]);
    for (let stride = 2; stride <= this.#strideOf(picture.times.length); stride *= 2) {
      this.#columns.set(
        stride,
        whole.map((columns, k) => coarse(columns, limits(k), stride)),
      );
    }
  }

  #fill() {
    const columns = /** @type {any[]} */ (this.#columns.get(this.#stride));
    this.#plots.forEach((plot, k) => plot.setData(columns[k], false));
  }

  /** The row of an entry. @param {number} entry */
  #rowOf(entry) {
    return Math.min(entry * this.#stride, this.#shownPicture().times.length - 1);
  }

  /**
   * The row with the largest nis within a few pixels, so that a click near a peak selects the peak.
   * @param {any} u @param {number} entry
   */
  #oddestNear(u, entry) {
    const { nis, rows } = this.#shownPicture();
    const [from, to] = this.#rowsOf(u);
    const reach = Math.floor((NEAR * (to - from)) / u.over.clientWidth);
    const middle = this.#rowOf(entry);
    let oddest = middle;
    for (let row = Math.max(0, middle - reach); row < Math.min(middle + reach + 1, rows); row++) {
      if ((nis[row] ?? 0) > (nis[oddest] ?? 0)) oddest = row;
    }
    return oddest;
  }

  /** The first and the last visible row. @param {any} u @returns {[number, number]} */
  #rowsOf(u) {
    const [from, to] = u.series[0].idxs ?? [0, -1];
    return [from * this.#stride, Math.min((to + 1) * this.#stride, this.#shownPicture().times.length) - 1];
  }

  #build() {
    this.#axisSize = AXIS;
    this.#plots.forEach(plot => plot.destroy());
    const picture = this.#shownPicture();
    this.host.replaceChildren();
    this.#plots = [this.#lane(picture), ...picture.components.map((_, k) => this.#chart(picture, k))];
  }

  /** @param {Picture} picture */
  #lane(picture) {
    const plot = make("div", { class: "plot" });
    this.host.append(
      make("div", { class: "chart", role: "img", "aria-label": "Alarms and missing values" }, plot),
    );
    const hidden = { stroke: "transparent", points: { show: false }, paths: () => null };
    return new uPlot(
      {
        ...this.#common(picture, LANE),
        scales: { x: { time: picture.isDated }, y: { range: [0, 2] } },
        axes: [
          { show: false },
          {
            size: () => this.#axisSize,
            stroke: () => colour("soft"),
            splits: () => [0.5, 1.5],
            values: () => ["missing", "alarms"],
            grid: { show: false },
            ticks: { show: false },
            gap: 2,
            font: "12px system-ui",
          },
        ],
        series: [{}, hidden],
        hooks: {
          draw: [(/** @type {any} */ u) => paintLane(u, this.#shownPicture(), this.#rowsOf(u))],
          ...this.#hooks(),
        },
      },
      laneOf(picture),
      plot,
    );
  }

  /** @param {Picture} picture @param {number} k */
  #chart(picture, k) {
    const component = picture.components[k];
    const plot = make("div", {
      class: "plot",
      role: "slider",
      tabindex: 0,
      "aria-valuemin": 0,
      "aria-valuenow": 0,
      "aria-label": `Chart of ${component.name}: arrows move, plus and minus zoom, Enter explains, Escape shows all`,
    });
    const said = make("span", { class: "reading" });
    this.host.append(make("div", { class: "chart" }, make("div", { class: "title" }, component.name), plot, said));
    plot.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#key(event));
    const height = this.options.height ?? heightOf(picture.components.length);
    const chart = new uPlot(
      {
        ...this.#common(picture, height),
        scales: { x: { time: picture.isDated } },
        axes: [
          this.#axis(picture.isDated ? { values: CLOCK } : {}),
          this.#axis({
            size: (/** @type {any} */ u, /** @type {string[] | null} */ numbers) => this.#widen(u, numbers),
            values: (/** @type {any} */ _, /** @type {number[]} */ splits) => axisNumbers(splits),
          }),
        ],
        series: seriesOf(component),
        bands: bandsOf(component),
        hooks: {
          drawAxes: [(/** @type {any} */ u) => paintMeasured(u, this.#shownPicture(), k, this.#rowsOf(u))],
          draw: [
            (/** @type {any} */ u) => this.#picked !== null && paintPicked(u, this.#shownPicture(), k, this.#picked),
          ],
          ...this.#hooks(),
        },
      },
      columnsOf(picture, k),
      plot,
    );
    this.#listen(chart, k);
    return chart;
  }

  /** @param {Picture} picture @param {number} height */
  #common(picture, height) {
    return {
      width: this.#width(),
      height,
      legend: { show: false },
      padding: /** @type {[number, number, number, number]} */ ([6, 14, 0, 0]),
      tzDate: (/** @type {number} */ t) => uPlot.tzDate(new Date(1000 * t), "Etc/UTC"),
      cursor: {
        sync: { key: this.host.id },
        points: { show: false },
        y: false,
        drag: { x: !this.options.onHand, y: false, setScale: !this.options.onHand },
      },
    };
  }

  /**
   * The width for the numbers of an axis. All charts use the largest width, so that their times are aligned.
   * @param {any} u @param {string[] | null} numbers
   */
  #widen(u, numbers) {
    const longest = Math.max(0, ...(numbers ?? []).map(text => text.length));
    const size = Math.max(AXIS, LETTER * longest + AROUND_NUMBER);
    if (size > this.#axisSize) {
      this.#axisSize = size;
      queueMicrotask(() => this.#plots.forEach(plot => plot !== u && plot.redraw(false, true)));
    }
    return this.#axisSize;
  }

  /** @param {object} own */
  #axis(own) {
    const rule = () => colour("rule");
    return {
      stroke: () => colour("soft"),
      grid: { stroke: rule, width: 1 },
      ticks: { stroke: rule, width: 1 },
      font: "12px system-ui",
      ...own,
    };
  }

  #hooks() {
    return {
      setCursor: [
        (/** @type {any} */ { cursor: { idx } }) =>
          idx !== null && idx !== undefined && this.#say(this.#rowOf(idx)),
      ],
      setScale: [
        // Apply a zoom of one chart to the others.
        (/** @type {any} */ u, /** @type {string} */ name) => {
          const { min, max } = u.scales.x;
          const isNew = min !== this.#limits[0] || max !== this.#limits[1];
          if (name === "x" && min !== null && isNew) this.#setRange(min, max);
        },
      ],
    };
  }

  /** Listens to the pointer. @param {any} chart @param {number} k */
  #listen(chart, k) {
    const { over } = chart;
    const { onHand, onPick } = this.options;
    over.addEventListener(
      "wheel",
      (/** @type {WheelEvent} */ event) => {
        if (event.ctrlKey || event.metaKey) {
          this.#zoomAt(chart.posToVal(event.offsetX, "x"), event.deltaY > 0 ? 1.25 : 0.8);
        } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / over.clientWidth);
        else return;
        event.preventDefault();
      },
      { passive: false },
    );
    over.addEventListener("dblclick", () => this.all());
    const pick = (/** @type {number | null} */ entry) => entry !== null && onPick?.(this.#oddestNear(chart, entry));
    if (onPick) over.addEventListener("click", () => pick(chart.cursor.idx));
    if (!onHand) return;
    const hold = (/** @type {PointerEvent} */ event) => onHand(k, chart.posToVal(event.offsetY, "y"));
    over.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      over.setPointerCapture(event.pointerId);
      hold(event);
    });
    over.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => event.buttons && hold(event));
    for (const name of ["pointerup", "pointercancel"]) over.addEventListener(name, () => onHand(k, null));
  }

  /** @param {number} at @param {number} factor */
  #zoomAt(at, factor) {
    const [from, to] = this.#limits;
    this.#setRange(at - (at - from) * factor, at + (to - at) * factor);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const last = this.#shownPicture().times.length - 1;
    const step = event.shiftKey ? 10 : 1;
    /** @type {Record<string, () => void>} */
    const does = {
      ArrowRight: () => this.#point(Math.min(last, this.#row + step)),
      ArrowLeft: () => this.#point(Math.max(0, this.#row - step)),
      Home: () => this.#point(0),
      End: () => this.#point(last),
      "+": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      Escape: () => this.all(),
      Enter: () => this.options.onPick?.(this.#row),
    };
    if (!does[event.key]) return;
    does[event.key]();
    event.preventDefault();
  }

  /** Moves the cursor to a row, and scrolls to it. @param {number} row */
  #point(row) {
    const at = this.#shownPicture().times[row];
    const [from, to] = this.#limits;
    if (at < from || at > to) this.#setRange(at - (to - from) / 2, at + (to - from) / 2);
    const plot = this.#plots[1];
    // uPlot applies a new range in a microtask.
    queueMicrotask(() => {
      plot.setCursor({ left: plot.valToPos(at, "x"), top: 10 });
      this.#say(row);
    });
  }

  /** @param {number} row */
  #say(row) {
    const picture = this.#shownPicture();
    this.#row = row;
    picture.components.forEach((_, k) => {
      const plot = this.#plots[k + 1].root.parentNode;
      const text = reading(picture, k, row);
      plot.setAttribute("aria-valuemax", String(picture.times.length - 1));
      plot.setAttribute("aria-valuenow", String(row));
      plot.setAttribute("aria-valuetext", text);
      plot.nextSibling.textContent = text;
    });
  }

  #width() {
    return Math.max(120, this.host.clientWidth - MARGIN);
  }

  #resize() {
    const width = this.#width();
    for (const plot of this.#plots) if (plot.width !== width) plot.setSize({ width, height: plot.height });
  }
}

/** The height of a chart in pixels, given the number of charts. @param {number} charts */
const heightOf = charts => Math.max(charts > 1 ? 220 : 320, (0.5 * innerHeight) / Math.sqrt(charts));
