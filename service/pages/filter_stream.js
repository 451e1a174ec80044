/** A live filter behind a WebSocket: one frame for each measurement, and one answer. */

import { key, askForKey } from "./key.js";
import { openSocket } from "./server_calls.js";

/** Measurements that may be on their way. */
const MOST_UNANSWERED = 16;
/** Frames that are kept to be copied. */
const MOST_KEPT = 40;

export class FilterStream {
  /** @type {object[]} frames that were sent, the first and some more */
  frames = [];
  #unanswered = 0;
  /** @type {(state: string | null) => void} */
  #closed = () => {};

  /**
   * @param {object} first frame
   * @param {{onReady: (ready: any) => void, onStep: (step: any) => void, onFailure: (message: string) => void}} hear
   */
  constructor(first, hear) {
    this.hear = hear;
    this.first = first;
    this.#open();
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Whether it is not behind. */
  get isFree() {
    return this.isOpen && this.isReady && this.#unanswered < MOST_UNANSWERED;
  }

  /** @param {object} frame */
  send(frame) {
    if (this.frames.length < MOST_KEPT) this.frames.push(frame);
    this.#unanswered++;
    this.socket?.send(JSON.stringify(frame));
  }

  /**
   * Ends the stream.
   * @returns {Promise<string | null>} its state
   */
  close() {
    return new Promise(resolve => {
      this.#closed = resolve;
      if (this.isOpen) this.socket?.send('{"close": true}');
      else resolve(null);
    });
  }

  /** Ends it without a word. */
  drop() {
    this.isDropped = true;
    this.socket?.close();
  }

  #open() {
    this.isReady = false;
    const socket = (this.socket = openSocket("filter/stream"));
    socket.addEventListener("open", () => {
      this.frames = [this.first];
      socket.send(JSON.stringify(this.first));
    });
    socket.addEventListener("message", event => this.#take(JSON.parse(event.data)));
    socket.addEventListener("close", () => this.#lost());
  }

  /** @param {any} document */
  #take(document) {
    if (this.isDropped) return;
    if (document.error) this.hear.onFailure(document.error.message);
    else if (document.ready) {
      this.isReady = true;
      this.hear.onReady(document);
    } else if (document.done) this.#closed(document.state);
    else {
      this.#unanswered--;
      this.hear.onStep(document);
    }
  }

  /** A browser does not say why a handshake was refused: where there is no key, it may be for that. */
  async #lost() {
    this.#closed(null);
    if (this.isReady || this.isDropped || this.frames.length) return;
    if (!key() && (await askForKey())) this.#open();
    else this.hear.onFailure("The stream could not be opened: is the server there, and the key right?");
  }
}
