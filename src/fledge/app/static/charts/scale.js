// Scales of a chart: range, ticks, and smoothing of a curve.

// Return about `count` round values within [low, high].
export function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.75) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const found = [];
  // by index, as a step may be too small to change a large number
  for (let k = 0; k <= 2 * count + 2; k += 1) {
    const value = Number(((first + k) * step).toPrecision(12));
    if (value > high + step * 1e-6) break;
    found.push(value);
  }
  return found;
}

// Return the range of some values with a margin. A few far outliers are left out; the chart marks them.
export function rangeOf(values, share) {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort();
  let [low, high] = [sorted[0], sorted[sorted.length - 1]];
  let cut = false;
  if (sorted.length >= 60) {
    const at = (p) => sorted[Math.round(p * (sorted.length - 1))];
    const [inner, outer] = [at(0.01), at(0.99)];
    if (outer - inner > 1e-6 * Math.max(Math.abs(low), Math.abs(high)) && high - low > 4 * (outer - inner)) {
      const room = 0.15 * (outer - inner);
      cut = low < inner - room || high > outer + room;
      [low, high] = [Math.max(low, inner - room), Math.min(high, outer + room)];
    }
  }
  const large = Math.max(Math.abs(low), Math.abs(high));
  const room = (high - low > 1e-6 * large ? high - low : large || 1) * 0.06;
  if (share) return { low: Math.max(0, low - room), high: Math.min(100, high + room) || 1, cut };
  return { low: low >= 0 && low < room * 3 ? 0 : low - room, high: high + room, cut };
}

// Return the exponential moving average with bias correction; gaps stay gaps. `weight` 0 to 0.99.
export function smooth(values, weight) {
  if (weight <= 0) return values;
  let [mean, mass] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

// Return the index of the entry of a sorted list that is nearest to `value`.
export function nearest(list, value) {
  let [low, high] = [0, list.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle;
    else high = middle;
  }
  return value - list[low] <= list[high] - value ? low : high;
}
