/** A text whose tokens are coloured by their confidence. The pointer or the arrow keys select a token. */

import { make } from "./dom.js";
import { percent } from "./format.js";

/**
 * @typedef {object} Token
 * @property {number} id
 * @property {string} text
 * @property {number} logprob
 * @property {number} confidence
 * @property {{text: string, logprob: number}[]} top the most probable tokens at its position
 */

export class Tokens {
  /** @type {Token[]} */
  tokens = [];
  /** @type {any} details of the text, which are sent at its end */
  details = null;
  #at = -1;

  /**
   * @param {HTMLElement} host
   * @param {string} title
   * @param {string} prompt
   * @param {(token: Token) => void} onToken
   */
  constructor(host, title, prompt, onToken) {
    this.title = title;
    this.onToken = onToken;
    this.text = make(
      "div",
      {
        class: "text",
        tabindex: 0,
        role: "slider",
        "aria-label": `Tokens, ${title}: arrow keys select one`,
        "aria-valuemin": 0,
        "aria-valuenow": 0,
        "aria-valuemax": 0,
        "aria-valuetext": "no token yet",
      },
      prompt,
    );
    host.append(make("div", {}, make("h2", {}, title), this.text));
    this.text.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#key(event));
    for (const name of ["pointerover", "click"]) {
      this.text.addEventListener(name, (/** @type {PointerEvent} */ event) => {
        const place = /** @type {HTMLElement} */ (event.target).dataset.place;
        if (place !== undefined) this.#look(Number(place));
      });
    }
  }

  /** @param {Omit<Token, "top">} token @param {Token["top"]} top */
  add(token, top) {
    const span = make("span", { class: "token", "data-place": this.tokens.length }, token.text);
    span.style.background = `color-mix(in srgb, var(--sure) ${(100 * token.confidence).toFixed(1)}%, transparent)`;
    this.text.append(span);
    this.tokens.push({ ...token, top });
    this.text.setAttribute("aria-valuemax", String(this.tokens.length));
  }

  /** Marks the first token that differs from another text. @param {number} place */
  mark(place) {
    this.#span(place)?.classList.add("parted");
  }

  /** @param {number} place @returns {HTMLElement | null} */
  #span(place) {
    return this.text.querySelector(`[data-place="${place}"]`);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const to = { ArrowRight: this.#at + 1, ArrowLeft: this.#at - 1, Home: 0, End: this.tokens.length - 1 }[event.key];
    if (to === undefined || !this.tokens[to]) return;
    event.preventDefault();
    this.#look(to);
  }

  /** @param {number} place */
  #look(place) {
    this.#span(this.#at)?.classList.remove("chosen");
    this.#at = place;
    this.#span(place)?.classList.add("chosen");
    const token = this.tokens[place];
    this.text.setAttribute("aria-valuenow", String(place + 1));
    this.text.setAttribute(
      "aria-valuetext",
      `${token.text.trim() || "space"}, confidence ${percent(token.confidence)}`,
    );
    this.onToken(token);
  }
}
