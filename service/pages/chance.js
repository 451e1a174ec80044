/** Random numbers that are the same each time: a demonstration shows everybody the same. */

/**
 * Uniform numbers in [0, 1), by Marsaglia's xorshift.
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
 * Standard normal numbers, by Box and Muller.
 * @param {number} seed
 */
export function normal(seed) {
  const draw = even(seed);
  return () => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
}
