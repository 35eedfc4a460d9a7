// Formatting of numbers.

const STEPS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

// 12345678 -> "12.3M"; 0.000123 -> "1.23e-4"
export function shortNumber(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  for (const [step, letter] of STEPS) {
    if (size >= step * 0.9995) return `${plain(value / step, digits)}${letter}`;
  }
  if (size < 1e-3) return value.toExponential(Math.max(digits - 1, 0)).replace(/\.?0+e/, "e");
  return plain(value, digits);
}

function plain(value, digits) {
  const text = Number(value.toPrecision(digits)).toString();
  return text.replace("-", "−");
}

export function wholeNumber(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
}

// 3725 -> "1 h 2 min"; rounded before it is split, so that 119.6 is "2 min 0 s" (`duration` in core/terminal.py)
export function duration(span) {
  if (span === null || span === undefined || !Number.isFinite(span)) return "–";
  const seconds = Math.round(span);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function megabytes(bytes) {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(2)} GB`;
  if (bytes >= 1e6) return `${(bytes / 1e6).toFixed(2)} MB`;
  return `${(bytes / 1e3).toFixed(1)} kB`;
}

// Create an element with classes and text. Content of files is inserted as text, never as markup.
export function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}
