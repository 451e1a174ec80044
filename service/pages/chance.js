/** Random numbers with fixed seeds, so that the examples are the same for all users. */

/**
 * A generator of uniform numbers in [0, 1): Marsaglia's xorshift.
 * @param {number} seed
 */
export function even(seed) {
  let state = (seed * 2654435761) >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state / 2 ** 32;
  };
}

/**
 * A generator of standard normal numbers: the method of Box and Muller.
 * @param {number} seed
 */
export function normal(seed) {
  const draw = even(seed);
  return () => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
}
