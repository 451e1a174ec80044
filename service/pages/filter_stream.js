/** A live filter over a WebSocket. Each measurement is sent in a frame, and the server replies to each frame. */

import { key } from "./key.js";
import { get, openSocket } from "./server_calls.js";

/** Maximum number of measurements without a reply. */
const MOST_UNANSWERED = 16;
/** Maximum number of frames that are kept for copying. */
const MOST_KEPT = 40;

export class FilterStream {
  /** @type {object[]} the first frame, and the frames of the first measurements */
  frames = [];
  /** Number of sent measurements. */
  measured = 0;
  #unanswered = 0;
  #isReady = false;
  #isOver = false;
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {((state: string | null) => void) | null} resolves the promise of `close` */
  #closed = null;

  /**
   * @param {object} first frame
   * @param {{onReady: (ready: any) => void, onStep: (step: any) => void, onFailure: (message: string) => void,
   *   onRefused: (message: string) => void}} hear
   */
  constructor(first, hear) {
    this.hear = hear;
    this.first = first;
    this.#open();
  }

  /** Whether a measurement can be sent now. */
  get isFree() {
    return this.#isReady && !this.#isOver && !this.#closed && this.#unanswered < MOST_UNANSWERED;
  }

  /** @param {object} frame */
  send(frame) {
    if (this.measured < MOST_KEPT) this.frames.push(frame);
    this.measured++;
    this.#unanswered++;
    this.#socket?.send(JSON.stringify(frame));
  }

  /**
   * Ends the stream.
   * @returns {Promise<string | null>} its state
   */
  close() {
    return new Promise(resolve => {
      if (!this.#isReady || this.#isOver) return resolve(null);
      if (!this.#closed) this.#socket?.send('{"close": true}');
      this.#closed = resolve;
    });
  }

  /** Closes the connection without ending the stream. */
  drop() {
    this.#isOver = true;
    this.#socket?.close();
  }

  #open() {
    const socket = openSocket("filter/stream");
    this.#socket = socket;
    socket.addEventListener("open", () => {
      this.frames = [this.first];
      socket.send(JSON.stringify(this.first));
    });
    socket.addEventListener("message", event => this.#take(JSON.parse(event.data)));
    socket.addEventListener("close", () => this.#lost());
  }

  /** @param {any} document */
  #take(document) {
    if (this.#isOver) return;
    if (document.ready) {
      this.#isReady = true;
      this.hear.onReady(document);
    } else if (document.error && "index" in document) {
      this.#unanswered--;
      this.hear.onRefused(document.error.message);
    } else if (document.error) this.#fail(document.error.message);
    else if (document.done && this.#closed) this.#end(document.state);
    else if (document.done) this.#fail("The server has ended the stream. Begin again from the start.");
    else {
      this.#unanswered--;
      this.hear.onStep(document);
    }
  }

  /** Browsers hide why a handshake was rejected. A request finds the reason, and asks for a key if needed. */
  async #lost() {
    if (this.#isOver) return;
    if (this.frames.length) return this.#fail("The connection to the server was lost. Begin again from the start.");
    const before = key();
    const error = await get("info").then(
      () => null,
      reason => reason,
    );
    if (this.#isOver) return;
    if (key() !== before) this.#open();
    else this.#fail(error?.message ?? "The server refused to open the stream. Try again from the start.");
  }

  /** @param {string | null} state */
  #end(state) {
    this.#isOver = true;
    this.#closed?.(state);
  }

  /** @param {string} message */
  #fail(message) {
    this.#end(null);
    this.hear.onFailure(message);
  }
}
